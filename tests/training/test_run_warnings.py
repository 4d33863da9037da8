"""Warnings of a run that goes wrong: when each rule holds, that it is said once, and that a report shows it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest

import mem1
from mem1.evaluation.report.run_folders import write_run_report
from mem1.recipe.evaluation import RuleName, RunWarnings
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Phase, Rl
from mem1.run_folder import read_metrics
from mem1.training.monitoring.metrics_log import MetricsLog
from mem1.training.monitoring.run_warnings import (
    RULES,
    Circumstances,
    Finding,
    Row,
    Watch,
    circumstances,
    found,
)
from mem1.training.train import Progress

HEALTHY: Row = {
    "reward": 0.7,
    "turns": 3.0,
    "completion_tokens": 60.0,
    "endings": {"answered": 90.0, "out_of_turns": 6.0},
    "malformed": 0.01,
    "groups_with_variance": 0.5,
    "learning_rate": 1e-4,
    "entropy": 0.03,
    "sampler_trainer_mean": 1e-7,
    "explained_variance": 0.4,
}
WRONG: dict[str, dict[str, Any]] = {
    "equal_rewards": {"groups_with_variance": 0.0},
    "long_outputs": {"completion_tokens": 200.0},
    "cut_attempts": {"endings": {"answered": 50.0, "out_of_tokens": 46.0}},
    "malformed": {"malformed": 0.3},
    "entropy": {"entropy": 0.002},
    "sampler_trainer": {"sampler_trainer_mean": 0.01},
    "critic": {"explained_variance": -0.2},
}
"""What a rule alone complains of, in steps 11 to 15."""


def rows(*changes: Row, start: int = 1) -> list[Row]:
    """A row for each change of the healthy one."""
    return [{"step": start + i, **HEALTHY, **change} for i, change in enumerate(changes)]


def judge(given: Sequence[Row], limits: RunWarnings | None = None, **facts: Any) -> list[Finding]:
    return found(given, limits or RunWarnings(), Circumstances(**facts))


def test_a_healthy_run_has_no_warning_after_any_step():
    healthy = rows(*[{}] * 30)
    assert [judge(healthy[:n], steps=30) for n in range(31)] == [[]] * 31


@pytest.mark.parametrize("name", RULES)
def test_each_rule_holds_after_five_wrong_steps_and_not_after_four_or_where_it_is_off(name: str):
    wrong = rows(*[{}] * 10, *[WRONG[name]] * 5)
    (finding,) = judge(wrong)
    assert (finding.rule, finding.since, finding.page) == (name, 11, f"docs/metrics.md#{name}")
    lasting = name in ("equal_rewards", "sampler_trainer", "critic")
    if lasting:
        assert judge(wrong[:-1]) == [] and judge(rows(*[WRONG[name]] * 4, {})) == []
    assert judge(wrong, RunWarnings(off=(name,))) == judge(wrong, RunWarnings(off=("all",))) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "change"),
    [
        ({"equal_rewards": 0.0}, {"groups_with_variance": 0.01}),
        ({"long_outputs": 4.0}, {"completion_tokens": 200.0}),
        ({"cut_attempts": 0.5}, WRONG["cut_attempts"]),
        ({"malformed": 0.5}, WRONG["malformed"]),
        ({"entropy": 0.01}, WRONG["entropy"]),
        ({"sampler_trainer": 0.02}, WRONG["sampler_trainer"]),
        ({"critic": -0.5}, WRONG["critic"]),
    ],
)
def test_limits_are_settings(limits: dict[str, Any], change: Row):
    wrong = rows(*[{}] * 10, *[change] * 5)
    assert len(judge(wrong)) == 1 and judge(wrong, RunWarnings(**limits)) == []


def test_values_of_the_text_are_means_over_the_first_and_the_last_steps():
    (finding,) = judge(rows(*[{}] * 5, *({"entropy": e} for e in (0.004, 0.002, 0.001, 0.002, 0.001))))
    assert finding.value == pytest.approx(0.002) and "from 0.03 to 0.002 nats" in finding.text


def test_longer_attempts_of_more_turns_are_no_exploding_length():
    assert judge(rows(*[{}] * 5, *[{"turns": 12.0, "completion_tokens": 240.0}] * 5)) == []


def test_steps_without_a_number_are_left_out():
    assert judge(rows(*[{"entropy": None, "explained_variance": None}] * 20)) == []
    (finding,) = judge(rows(*[{}] * 5, *[{"entropy": None}, {"entropy": 0.001}] * 5))
    assert (finding.rule, finding.since) == ("entropy", 7)


def test_rewards_are_compared_only_by_algorithms_that_compare_and_a_short_phase_is_judged_at_its_end():
    equal = rows(*[WRONG["equal_rewards"]] * 2)
    assert judge(equal) == [] and judge(equal, steps=3) == [] and judge(equal, steps=2, compares_attempts=False) == []
    (finding,) = judge(rows({**WRONG["equal_rewards"], "reward": 0.0}, WRONG["equal_rewards"]), steps=2)
    assert "the mean reward is 0.35" in finding.text and "rl.curriculum" in finding.text
    (finding,) = judge(rows({**WRONG["equal_rewards"], "reward": None}), steps=1)
    assert "unknown, as every attempt's tool failed" in finding.text


def test_drift_beyond_float32_is_precision_in_bfloat16():
    drift = rows(*[WRONG["sampler_trainer"]] * 5)
    assert len(judge(drift)) == 1 and judge(drift, bfloat16=True) == []
    assert len(judge(rows(*[{"sampler_trainer_mean": 0.2}] * 5), bfloat16=True)) == 1


def test_a_critic_that_warms_up_need_not_explain_anything():
    warming = {"learning_rate": 0.0, "explained_variance": -1.0}
    assert judge(rows(*[warming] * 20, *[WRONG["critic"]] * 4)) == []


def test_every_rule_has_a_name_and_a_section_in_the_documentation():
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8").split("\n## Warnings\n")[1]
    assert set(re.findall(r"^### (\w+)$", page, re.M)) == set(RULES) == {*get_args(RuleName)} - {"all"} == set(WRONG)


def test_what_a_recipe_says_of_its_precision_and_its_phases():
    recipe = mem1.load_recipe("atlas-ppo")
    assert circumstances(recipe, 7) == Circumstances(steps=7, compares_attempts=False, bfloat16=False)
    assert circumstances(mem1.load_recipe("atlas-quick", "model.dtype=bfloat16"), 7).bfloat16
    rl = Rl(curriculum=(Phase(steps=2), Phase(steps=3)))
    assert [(begin, phase.steps) for begin, phase in map(rl.phase_at, (0, 1, 2, 4))] == [(0, 2), (0, 2), (2, 3), (2, 3)]


def watched(folder: Path, recipe: Recipe, changes: Sequence[Row], *, before: int, kept: int = 0) -> list[str]:
    """Steps of [rl] after `before` steps of other stages, as a run takes them that has kept some; returns alerts."""
    alerts: list[str] = []
    watch = Watch(recipe, folder, alert=alerts.append)
    with MetricsLog(folder) as log:
        log.truncate_after(before + kept)
        watch.begin("rl", before)
        for row in rows(*changes, start=before + 1)[kept:]:
            metrics = {key: value for key, value in row.items() if key != "step"}
            log.append(row["step"], metrics)
            watch.look(row["step"], metrics)
    return alerts


def test_a_warning_is_said_once_and_a_resume_says_only_what_it_has_not_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    recipe = mem1.load_recipe("atlas-quick")
    broken, unbroken = tmp_path / "broken", tmp_path / "unbroken"
    broken.mkdir()
    unbroken.mkdir()
    wrong = [*[WRONG["equal_rewards"]] * 8, *[WRONG["equal_rewards"] | WRONG["malformed"]] * 8]
    first, second = watched(unbroken, recipe, wrong, before=10)
    assert first.startswith("since step 11: hardly any group") and second.startswith("since step 18: 24% of the turns")
    assert [record.message for record in caplog.records] == [f"warning: {first}", f"warning: {second}"]
    watched(broken, recipe, wrong[:15], before=10)
    assert watched(broken, recipe, wrong, before=10, kept=9) == [second]
    assert (broken / "warnings.jsonl").read_bytes() == (unbroken / "warnings.jsonl").read_bytes()


def test_a_new_phase_has_a_start_of_its_own(tmp_path: Path):
    recipe = mem1.load_recipe("atlas-quick", "rl.curriculum=[{steps=10}, {steps=20, objectives=[16]}]")
    longer = {"completion_tokens": 200.0}
    assert watched(tmp_path, recipe, [*[{}] * 10, *[longer] * 10], before=0) == []
    (alert,) = watched(tmp_path, recipe, [*[{}] * 15, *[longer] * 10], before=0)
    assert alert.startswith("since step 16")


class Down:
    """A writer whose network is down."""

    def __init__(self, run: mem1.WrittenRun) -> None:
        pass

    def write(self, step: int, values: Mapping[str, float]) -> None:
        raise ConnectionError("the network is down")

    def close(self, failed: bool) -> None:
        raise ConnectionError("still")


def test_a_run_whose_reward_is_constant_says_so_keeps_it_and_its_report_shows_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(mem1.register.reward._registered, "constant", lambda task, attempt: 0.5)
    monkeypatch.setitem(mem1.register.writer._registered, "down", Down)
    tiny = ("hidden_size=32", "layers=1", "heads=2", "feed_forward=32", "look_back=[]")
    settings = (
        *(f"model.new.{setting}" for setting in tiny),
        *("tasks.reward=constant", "tasks.worlds=1", "budget.completion_extra=8", "warnings.steps=2"),
        *("rl.tasks_per_step=2", "rl.group_size=2", "rl.curriculum=[{steps=3, objectives=[1]}]", "workers=1"),
        *("checkpoint_every=1", 'writers=["down"]'),
    )
    recipe = mem1.load_recipe("atlas-quick", *settings)

    def killed(now: Progress) -> None:
        if now.step == 3:
            raise KeyboardInterrupt

    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        mem1.train(recipe, out=run, on_step=killed)
    mem1.train(recipe, out=run, resume=True)
    writer, row = read_metrics(run / "warnings.jsonl")
    assert (writer["step"], writer["warning"]) == (
        1,
        "writer down",
    ) and "ConnectionError: the network is down" in writer["text"]
    assert (row["step"], row["stage"], row["warning"], row["value"]) == (2, "rl", "equal_rewards", 0.0)
    said = [record.message for record in caplog.records if record.message.startswith("warning: ")]
    texts = [f"warning: {text}" for text in (writer["text"], row["text"], writer["text"])]
    assert said == texts, "the resumed run knows what was said, and its new writer fails again"
    assert "the mean reward is 0.50" in row["text"] and row["text"].endswith("docs/metrics.md#equal_rewards")
    page = write_run_report(run).read_text(encoding="utf-8")
    assert "<li>step 2: since step 1: hardly any group has rewards that differ" in page
