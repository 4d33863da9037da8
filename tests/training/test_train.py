"""A whole run in seconds: recall, demonstrations and reinforcement learning on yes-or-no questions.

Such questions need no search, so a tiny model gets some right after a few demonstrations and the rewards of a group
differ: every stage takes real optimiser steps.
"""

from __future__ import annotations

import copy
import json
import math
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from builders import use_fp64_norms
from precision import rounding
from small_runs import RECALL_STEPS, RL_STEPS, SFT_STEPS, yes_or_no
from small_runs import config as config
from worlds import SMALL, rollout

from mem1.configuration import load_toml
from mem1.durable import read_manifest
from mem1.engines.workers import PROCESSES, one_thread
from mem1.envs.atlas import AtlasTasks
from mem1.envs.search import MultihopTasks
from mem1.envs.tasks import TasksConfig
from mem1.envs.webshop.tasks import WebShopTasks
from mem1.errors import UserError
from mem1.evaluation.report.run_folders import read_runs, write_run_report
from mem1.interrupts import Interrupted
from mem1.policy.policy import Policy, load_policy, make_policy
from mem1.protocol import ACT, PAPER, extended
from mem1.recipe.evaluation import Evaluation
from mem1.recipe.model import Lora, ModelConfig, TinyModel
from mem1.recipe.recipe import Kept, Recipe
from mem1.recipe.rl import Phase, Rl
from mem1.recipe.supervised import Sft
from mem1.records import Ended, Group, Task, Trajectory, Turn
from mem1.retrieval.client import RetrievalServer
from mem1.rollout import Budget
from mem1.run_folder import BEST, kept_steps, read_metrics
from mem1.tasks.compose import Split
from mem1.training.monitoring.metrics_log import KeptAttempts
from mem1.training.monitoring.validation import Validation, attempt_metrics
from mem1.training.rl import RlStage
from mem1.training.runs.checkpoint import export_checkpoint, latest_checkpoint
from mem1.training.sampling.group_sampling import GroupSampler
from mem1.training.supervised import SftStage, demonstrate
from mem1.training.train import Finished, Progress, make_rollout, train
from mem1.trajectory_files import read_trajectories

SOURCE = SMALL.source("train", PAPER)
STEPS = RECALL_STEPS + SFT_STEPS + RL_STEPS


def run(config: Recipe, out: Path, *, on_step: Callable[[Progress], None] | None = None) -> Finished:
    return train(config, out, command=["mem1"], resume=out.exists(), on_step=on_step)


@dataclass
class Watched:
    """A run that was never stopped, and what was seen at each of its steps."""

    out: Path
    finished: Finished
    steps: list[tuple[str, int, int]]
    flushes_denormals: set[bool]


@pytest.fixture(scope="module")
def watched(config: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Watched:
    out = tmp_path_factory.mktemp("runs") / "unbroken"
    steps: list[tuple[str, int, int]] = []
    flushes: set[bool] = set()

    def on_step(progress: Progress) -> None:
        steps.append((progress.stage, progress.step, progress.steps))
        flushes.add(sys.float_info.min / 2 == 0.0)

    return Watched(out, run(config, out, on_step=on_step), steps, flushes)


@pytest.fixture(scope="module")
def unbroken(watched: Watched) -> Path:
    """The folder of a run that was never stopped."""
    return watched.out


def metrics(out: Path) -> list[dict[str, Any]]:
    return read_metrics(out / "metrics.jsonl")


def stop_at(step: int) -> Callable[[Progress], None]:
    """Sends Ctrl-C in mid-run, once `step` steps are done."""
    done: list[Progress] = []

    def on_step(progress: Progress) -> None:
        done.append(progress)
        if len(done) == step:
            signal.raise_signal(signal.SIGINT)

    return on_step


def weights(out: Path, name: str = "policy") -> bytes:
    return (out / name / "model.safetensors").read_bytes()


@pytest.fixture(autouse=True)
def ctrl_c_as_in_a_terminal():
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


def test_a_run_goes_through_all_stages_and_leaves_finite_metrics_and_a_policy(watched: Watched):
    seen, finished = watched.steps, watched.finished
    assert finished.complete
    assert [s[0] for s in seen] == ["recall"] * RECALL_STEPS + ["sft"] * SFT_STEPS + ["rl"] * RL_STEPS
    assert seen[-1] == ("rl", RL_STEPS, RL_STEPS)
    rows = metrics(watched.out)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    losses = [row["loss"] for row in rows[RECALL_STEPS : RECALL_STEPS + SFT_STEPS]]
    assert losses[-1] < 0.8 * losses[0]
    learned = [row for row in rows[-RL_STEPS:] if row["groups_with_variance"] > 0]
    assert learned, "some group must have had something to teach"
    for row in learned:
        assert row["grad_norm"] > 0 and row["entropy"] > 0 and 0 <= row["em"] <= 1
        assert row["sampler_trainer_max"] < rounding(finished.policy.model, tokens=200, magnitude=10.0)
        assert row["reencoded_share"] == 0
        assert sum(row["endings"].values()) == 24
    trained = load_policy(watched.out / "policy")
    for a, b in zip(trained.model.parameters(), finished.policy.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_denormal_numbers_are_zero_while_a_run_lasts_and_not_after_it(watched: Watched):
    assert watched.flushes_denormals == {torch.set_flush_denormal(False)}, "where the processor can"
    assert sys.float_info.min / 2 > 0.0


def test_another_seed_gives_another_run(config: Recipe, unbroken: Path, tmp_path: Path):
    run(config.model_copy(update={"seed": 1}), tmp_path / "other", on_step=stop_at(RECALL_STEPS + 1))
    for row, other in zip(metrics(tmp_path / "other"), metrics(unbroken), strict=False):
        assert row["loss"] != other["loss"]


@pytest.mark.parametrize("step", [RECALL_STEPS, 9, STEPS - 1])
def test_a_run_stopped_by_ctrl_c_and_resumed_is_an_unbroken_one_bit_for_bit(
    config: Recipe, unbroken: Path, tmp_path: Path, step: int
):
    stopped = run(config, tmp_path / "run", on_step=stop_at(step))
    assert not stopped.complete and not (tmp_path / "run" / "policy").exists()
    checkpoint = latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert checkpoint is not None and checkpoint.name == f"checkpoint-{step:06d}"
    assert run(config, tmp_path / "run").complete
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (unbroken / "metrics.jsonl").read_bytes()
    assert weights(tmp_path / "run") == weights(unbroken)
    assert weights(tmp_path / "run", BEST) == weights(unbroken, BEST)


@pytest.mark.parametrize(
    ("function", "call", "where", "checkpoint"),
    [
        ("mem1.training.supervised.recall_loss", 2, "taking step 2 of 2 of [recall]", 1),
        ("mem1.rollout.Rollout._take", 1, "making demonstrations", RECALL_STEPS),
        ("mem1.training.supervised.split_into_packs", 3, "taking step 1 of 10 of [sft]", RECALL_STEPS),
        ("mem1.training.gradients.pack_workers.PackWorkers.backward", 7, "step 7 of 10 of [sft]", RECALL_STEPS + 6),
        ("mem1.engines.local.Batch.step", 1, "step 1 of 3 of [rl]", RECALL_STEPS + SFT_STEPS),
        ("mem1.training.gradients.pack_workers.PackWorkers.backward", 12, "step 2 of 3 of [rl]", STEPS - 2),
    ],
)
def test_ctrl_c_breaks_off_a_long_step_as_if_it_had_never_begun(
    config: Recipe, unbroken: Path, tmp_path: Path, ctrl_c, function: str, call: int, where: str, checkpoint: int
):
    calls = ctrl_c(function, call)
    stopped = run(config, tmp_path / "run")
    assert (stopped.complete, calls) == (False, [call]), "nothing is done after it"
    assert where in stopped.where
    found = latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert found is not None and found.name == f"checkpoint-{checkpoint:06d}"
    assert run(config, tmp_path / "run").complete
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (unbroken / "metrics.jsonl").read_bytes()
    assert weights(tmp_path / "run") == weights(unbroken)


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("torch.optim.AdamW.step", RECALL_STEPS + 7),
        ("mem1.training.rl.rollout_metrics", 2),
    ],
)
def test_a_step_broken_off_once_weights_have_changed_is_taken_again_from_the_last_checkpoint(
    config: Recipe, unbroken: Path, tmp_path: Path, ctrl_c, function: str, call: int
):
    ctrl_c(function, call)
    with pytest.raises(Interrupted, match=r"while taking step \d+ of (10 of \[sft\]|3 of \[rl\])"):
        run(config, tmp_path / "run")
    assert run(config, tmp_path / "run").complete
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (unbroken / "metrics.jsonl").read_bytes()
    assert weights(tmp_path / "run") == weights(unbroken)


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_step_whose_validation_is_broken_off_is_kept_and_validated_on_resume(
    config: Recipe, unbroken: Path, tmp_path: Path, ctrl_c, call: int
):
    due = [row["step"] for row in metrics(unbroken) if "validation" in row]
    if call > len(due):
        pytest.skip("there are fewer")
    calls = ctrl_c("mem1.training.rl.validation_metrics", call)
    stopped = run(config, tmp_path / "run")
    assert not stopped.complete and calls == [call]
    step = due[call - 1] - RECALL_STEPS - SFT_STEPS
    assert stopped.where == f"while validating after step {step} of {RL_STEPS} of [rl]"
    checkpoint = latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert checkpoint is not None and checkpoint.name == f"checkpoint-{due[call - 1]:06d}"
    assert [row["step"] for row in metrics(tmp_path / "run")] == list(range(1, due[call - 1]))
    ctrl_c("mem1.training.rl.validation_metrics", 1)
    assert not run(config, tmp_path / "run").complete, "broken off again"
    assert run(config, tmp_path / "run").complete
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (unbroken / "metrics.jsonl").read_bytes()
    assert [step for step, _ in kept_steps(tmp_path / "run")] == [step for step, _ in kept_steps(unbroken)]
    assert weights(tmp_path / "run") == weights(unbroken)
    assert weights(tmp_path / "run", BEST) == weights(unbroken, BEST)


def test_a_validation_that_came_again_is_not_lost_with_a_kill_after_it(
    config: Recipe, unbroken: Path, tmp_path: Path, ctrl_c
):
    ctrl_c("mem1.training.rl.validation_metrics", 1)
    run(config, tmp_path / "run")

    def killed(progress: Progress) -> None:
        raise RuntimeError("killed once the row is written, before any checkpoint")

    with pytest.raises(RuntimeError, match="killed"):
        run(config, tmp_path / "run", on_step=killed)
    assert run(config, tmp_path / "run").complete
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (unbroken / "metrics.jsonl").read_bytes()


def test_a_step_that_diverges_is_not_the_best(config: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "mem1.training.rl.rollout_metrics", lambda attempts: {**attempt_metrics(attempts), "turns": math.nan}
    )
    with pytest.raises(UserError, match="turns is nan, so the run has diverged"):
        run(config.model_copy(update={"evaluation": Evaluation(every=1, validation_tasks=1)}), tmp_path / "run")
    assert not (tmp_path / "run" / BEST).exists()


@pytest.mark.parametrize("was", ["finished", "resumed", "killed"])
def test_a_run_that_has_lost_its_checkpoints_does_not_begin_anew(
    config: Recipe, tmp_path: Path, unbroken: Path, was: str
):
    shutil.copytree(unbroken, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    if was != "finished":
        shutil.rmtree(tmp_path / "run" / "policy")
    if was == "resumed":
        resolved = json.loads((tmp_path / "run" / "resolved.json").read_text())
        resolved["starts"] = [{"after_step": 0, "ranks": 1}, {"after_step": 2, "ranks": 1}]
        (tmp_path / "run" / "resolved.json").write_text(json.dumps(resolved))
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match="finished run without checkpoints" if was == "finished" else "has none now"):
        run(config, tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_steps_that_no_checkpoint_has_are_counted(
    config: Recipe, tmp_path: Path, unbroken: Path, caplog: pytest.LogCaptureFixture
):
    shutil.copytree(unbroken, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "policy")
    newest, *_ = sorted((tmp_path / "run" / "checkpoints").iterdir(), reverse=True)
    (newest / "manifest.json").unlink()
    older = latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert older is not None and run(config, tmp_path / "run").complete
    kept = int(older.name.rpartition("-")[2])
    text = f"recorded steps after step {kept} are in no checkpoint, and are taken again: {STEPS - kept}"
    assert text in caplog.text


def test_a_run_from_a_policy_that_was_moved_goes_on_and_from_another_it_does_not(
    config: Recipe, unbroken: Path, tmp_path: Path
):
    shutil.copytree(unbroken / "policy", tmp_path / "start")
    changes = {"recall": None, "sft": None, "checkpoint_every": 1}

    def from_(folder: str) -> Recipe:
        return config.model_copy(update={**changes, "model": ModelConfig(path=str(tmp_path / folder))})

    run(from_("start"), tmp_path / "whole")
    assert not run(from_("start"), tmp_path / "run", on_step=stop_at(1)).complete
    (tmp_path / "start").rename(tmp_path / "moved")
    assert run(from_("moved"), tmp_path / "run").complete
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    export_checkpoint(min((unbroken / "checkpoints").iterdir()), tmp_path / "other")
    with pytest.raises(UserError, match=r"model\.path: .*start\" in the folder, .*other\" now"):
        run(from_("other"), tmp_path / "run")


def test_ctrl_c_in_the_last_step_is_obeyed_once_the_policy_is_saved(config: Recipe, unbroken: Path, tmp_path: Path):
    with pytest.raises(Interrupted, match="after the last step"):
        run(config, tmp_path / "run", on_step=stop_at(STEPS))
    assert weights(tmp_path / "run") == weights(unbroken)
    assert run(config, tmp_path / "run").complete


def train_and_tell(config: Recipe, out: Path, told: Connection) -> None:
    train(config, out, command=["mem1"], on_step=lambda p: told.send((p.stage, p.step)))


def test_a_run_killed_in_mid_step_and_resumed_writes_the_metrics_of_an_unbroken_one(
    config: Recipe, unbroken: Path, tmp_path: Path
):
    heard, told = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=train_and_tell, args=(config, tmp_path / "run", told), daemon=True)
    process.start()
    told.close()
    while heard.recv() != ("rl", 2):  # the last checkpoint was after the last demonstrations, two steps before
        pass
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert STEPS > len(metrics(tmp_path / "run")) >= STEPS - 1
    assert run(config, tmp_path / "run").complete
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (unbroken / "metrics.jsonl").read_bytes()
    assert weights(tmp_path / "run", BEST) == weights(unbroken, BEST)


def test_validation_changes_no_other_number_and_keeps_the_policy_that_did_best(
    config: Recipe, unbroken: Path, tmp_path: Path
):
    run(config.model_copy(update={"evaluation": Evaluation(objectives=(1,), tasks=4)}), tmp_path / "without")
    assert not (tmp_path / "without" / BEST).exists()
    assert weights(tmp_path / "without") == weights(unbroken)
    validated = metrics(unbroken)
    rewards = {row["step"]: row.pop("validation")["reward"] for row in validated if "validation" in row}
    assert validated == metrics(tmp_path / "without")
    assert list(rewards) == [STEPS - 2, STEPS - 1, STEPS] and max(rewards.values()) > 0
    manifest = read_manifest(unbroken / BEST)
    assert manifest is not None and rewards[manifest.facts["step"]] == manifest.facts["reward"]
    assert manifest.facts["step"] == max(rewards, key=lambda step: (rewards[step], -step)), "the first of the best"
    assert load_policy(unbroken / BEST).codec.vocab_size == 300


def test_attempts_of_each_step_are_kept_and_reported_while_the_run_goes_on(
    config: Recipe, unbroken: Path, tmp_path: Path
):
    kept = config.model_copy(update={"trajectories": Kept(groups=2)})
    assert not run(kept, tmp_path / "run", on_step=stop_at(STEPS - 1)).complete
    files = kept_steps(tmp_path / "run")
    assert [step for step, _ in files] == [STEPS - 2, STEPS - 1]
    attempts = read_trajectories(files[0][1])
    assert len(attempts) == 12 and all(t.reward is not None and t.turns[0].logprobs for t in attempts)
    (tmp_path / "run" / "trajectories" / f"step-{STEPS:06d}.jsonl").write_bytes(files[0][1].read_bytes()[:-100])
    (found,) = read_runs([tmp_path / "run"])
    assert [(len(one.trajectories), one.row.policy) for one in found.kept] == [
        (12, f"training step {STEPS - 2}"),
        (12, f"training step {STEPS - 1}"),
        (11, f"training step {STEPS}"),
    ]
    assert found.decode(attempts[0].turns[0].completion_ids) == attempts[0].turns[0].text
    write_run_report(tmp_path / "run")
    assert run(kept, tmp_path / "run").complete
    few = Kept(groups=1, megabytes=files[0][1].stat().st_size * 2.2 / 1e6)
    folder = KeptAttempts(tmp_path / "run", few, load_policy(unbroken / BEST).codec)
    folder.keep(STEPS + 1, [Group(trajectories=tuple(attempts[:6]))])
    assert [step for step, _ in kept_steps(tmp_path / "run")] == [STEPS, STEPS + 1]
    KeptAttempts(tmp_path, Kept(groups=0), folder.codec).keep(1, [Group(trajectories=tuple(attempts[:6]))])
    assert not kept_steps(tmp_path)


def test_validation_attempts_development_tasks_alone(config: Recipe, demonstrated: Policy):
    assert config.rl is not None
    source = config.tasks.source("train", PAPER)
    rollout = make_rollout(config, demonstrated, source)
    validation = Validation.of(config, rollout, PAPER, demonstrated.codec)
    assert validation is not None and {t.questions[0].text for t in validation.tasks} == {
        question.text for question in yes_or_no("oak")
    }
    sizes = config.evaluation.model_copy(update={"validation_objectives": (1, 2), "validation_tasks": 3})
    validation = Validation.of(config.model_copy(update={"evaluation": sizes}), rollout, PAPER, demonstrated.codec)
    assert validation is not None
    learner = stage(config, demonstrated)
    learner.validation = validation
    found = dict(learner.validated(0) or {})
    assert found == learner.validated(0), "greedily"
    both = [cast(dict, found[f"objectives_{n}"])["reward"] for n in (1, 2)]
    assert found["reward"] == pytest.approx(sum(both) / 2)


@pytest.mark.parametrize("name", ["train.jsonl", "test.jsonl"])
def test_development_questions_are_others_than_those_of_training_and_of_the_evaluation(config: Recipe, name: str):
    tasks = cast(MultihopTasks, config.tasks)
    with pytest.raises(UserError, match="give their file by tasks\\.development_questions"):
        tasks.model_copy(update={"development_questions": None}).development()
    taken = str(Path(str(tasks.questions)).with_name(name))
    with pytest.raises(UserError, match=f"are also questions of {taken}, by text or id"):
        tasks.model_copy(update={"development_questions": taken}).development()


@pytest.mark.parametrize("tasks", [AtlasTasks(entities=60, worlds=1), WebShopTasks(products=150)])
def test_development_tasks_of_invented_domains_are_in_neither_half(tasks: TasksConfig):
    tags = extended(PAPER, ACT)
    development = tasks.development()
    parts: list[tuple[TasksConfig, Split]] = [(tasks, "train"), (tasks, "evaluation"), (development, "evaluation")]
    drawn = [
        {q.text for t in c.source(split, tags).tasks(objectives=1, count=100, seed=0) for q in t.questions}
        for c, split in parts
    ]
    assert all(drawn) and not drawn[2] & (drawn[0] | drawn[1])
    with pytest.raises(UserError, match=r"give TasksConfig a method development\(\)"):
        TasksConfig().development()


def test_going_on_with_a_finished_run_changes_nothing(config: Recipe, unbroken: Path):
    before = [(unbroken / "metrics.jsonl").read_bytes(), weights(unbroken)]
    steps: list[Progress] = []
    assert run(config, unbroken, on_step=steps.append).complete
    assert not steps
    assert [(unbroken / "metrics.jsonl").read_bytes(), weights(unbroken)] == before


def test_a_checkpoint_is_exported_as_the_policy_that_it_holds(unbroken: Path, tmp_path: Path):
    checkpoint = latest_checkpoint(unbroken / "checkpoints")
    assert checkpoint is not None
    export_checkpoint(checkpoint, tmp_path / "policy")
    assert (tmp_path / "policy" / "model.safetensors").read_bytes() == weights(unbroken)
    assert load_policy(tmp_path / "policy").fingerprint() == load_policy(unbroken / "policy").fingerprint()
    with pytest.raises(UserError, match="exists and is not empty"):
        export_checkpoint(checkpoint, tmp_path / "policy")
    with pytest.raises(UserError, match="is in no run's folder"):
        export_checkpoint(tmp_path / "policy", tmp_path / "other")


def test_a_run_with_adapters_samples_with_them(config: Recipe, unbroken: Path, tmp_path: Path):
    pytest.importorskip("peft")
    model = ModelConfig(path=str(unbroken / "policy"))
    changes = {"model": model, "recall": None, "sft": None, "lora": Lora(rank=4), "checkpoint_every": 2}
    adapted = config.model_copy(update=changes)
    stopped = run(adapted, tmp_path / "run", on_step=stop_at(2))
    assert not stopped.complete
    assert run(adapted, tmp_path / "run").complete
    assert run(adapted, tmp_path / "again").complete
    assert metrics(tmp_path / "run") == metrics(tmp_path / "again")
    rows = metrics(tmp_path / "run")
    limit = rounding(load_policy(unbroken / "policy").model, tokens=200, magnitude=10.0)
    assert any(row["grad_norm"] > 0 for row in rows) and all(row["sampler_trainer_max"] < limit for row in rows)
    assert weights(tmp_path / "run") == weights(tmp_path / "again") != weights(unbroken)
    checkpoint = latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert checkpoint is not None
    export_checkpoint(checkpoint, tmp_path / "policy")
    assert weights(tmp_path / "run") == (tmp_path / "policy" / "model.safetensors").read_bytes()


def test_a_run_is_not_resumed_under_another_configuration(config: Recipe, tmp_path: Path):
    run(config, tmp_path / "run", on_step=stop_at(3))
    with pytest.raises(UserError, match=r"seed: 0 in the folder, 1 now"):
        run(config.model_copy(update={"seed": 1}), tmp_path / "run")
    changes = {"evaluation": Evaluation(objectives=(2,)), "checkpoint_every": 50, "workers": 3 - config.workers}
    evaluation = config.model_copy(update=changes)
    run(evaluation, tmp_path / "run", on_step=stop_at(1))
    assert len(metrics(tmp_path / "run")) == 4


@pytest.mark.parametrize("changed", ["train_questions", "corpus"])
def test_a_run_is_not_resumed_on_other_questions_or_another_corpus(config: Recipe, tmp_path: Path, changed: str):
    assert isinstance(config.tasks, MultihopTasks)
    file = tmp_path / f"{changed}.jsonl"
    shutil.copy(getattr(config.tasks, changed), file)
    own = config.model_copy(update={"tasks": config.tasks.model_copy(update={changed: str(file)})})
    out, resolved = tmp_path / "run", tmp_path / "run" / "resolved.json"
    run(own, out, on_step=stop_at(1))
    whole = file.read_text()
    file.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    with pytest.raises(UserError, match=r"of \[tasks\] are not those that .* began with"):
        run(own, out)
    file.write_text(whole)
    resolved.write_text(json.dumps({k: v for k, v in json.loads(resolved.read_text()).items() if k != "tasks"}))
    run(own, out, on_step=stop_at(2))  # one that was begun before anything was noted
    assert json.loads(resolved.read_text())["tasks"]["digest"] == own.tasks.trained_on()


def test_another_class_of_retriever_is_another_corpus_and_another_address_is_not(config: Recipe):
    def noted(retriever: str | RetrievalServer) -> str:
        return config.tasks.model_copy(update={"corpus": None, "retriever": retriever}).trained_on()

    one, other = (RetrievalServer(urls=(f"http://127.0.0.1:{port}",)) for port in (8001, 8002))
    assert noted(one) == noted(other) != noted("mine:Retriever") != noted("mine:Another")


def test_a_folder_that_holds_something_else_is_not_written_to(config: Recipe, tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("")
    with pytest.raises(UserError, match="exists, is not empty, and holds no run"):
        train(config, tmp_path / "run", command=["mem1"])
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_questions": None}, r"tasks\.train_questions is missing"),
        ({"train_questions": "nowhere.jsonl"}, r"nowhere\.jsonl"),
        ({"questions": None}, "evaluation questions are also training questions"),
    ],
)
def test_a_faulty_task_is_found_before_anything_is_written(
    config: Recipe, tmp_path: Path, changes: dict[str, Any], message: str
):
    tasks: dict[str, Any] = config.tasks.model_dump() | changes
    tasks["questions"] = tasks["questions"] or tasks["train_questions"]
    faulty = config.model_copy(update={"tasks": MultihopTasks(**tasks)})
    with pytest.raises(UserError, match=message):
        run(faulty, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_more_objectives_than_questions_are_found_before_anything_is_written(config: Recipe, tmp_path: Path):
    rl = config.rl
    assert rl is not None
    many = config.model_copy(update={"rl": rl.model_copy(update={"curriculum": (Phase(steps=1, objectives=(1, 9)),)})})
    with pytest.raises(UserError, match="9 objectives need 9 different questions, but there are 8"):
        run(many, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_unknown_memory_is_refused_with_the_recipe(config: Recipe):
    with pytest.raises(
        ValueError, match=r"unknown memory 'constnat' \(did you mean constant\?\); known: constant, fold"
    ):
        Recipe(**{**config.model_dump(), "memory": "constnat"})


def test_demonstrations_that_the_budget_cuts_are_refused(config: Recipe, tmp_path: Path):
    cut = config.model_copy(update={"budget": Budget(completion_extra=1, completion_per_objective=0)})
    with pytest.raises(UserError, match="none of the 8 demonstrations answers; the first ended with out_of_tokens"):
        run(cut, tmp_path / "run")


@pytest.fixture(scope="module")
def demonstrated(config: Recipe) -> Policy:
    """A policy that has seen demonstrations."""
    assert config.sft is not None
    policy = make_policy(config)
    source = config.tasks.source("train", PAPER)
    rollout = make_rollout(config, policy, source)
    sft = SftStage(policy, config.sft, lambda: demonstrate(config, rollout, source, PAPER), seed=0)
    for index in range(SFT_STEPS):
        sft.step(index)
    return policy


def stage(config: Recipe, demonstrated: Policy, **changes: Any) -> RlStage:
    """The stage of reinforcement learning, on a copy of the policy."""
    assert config.rl is not None
    policy = replace(demonstrated, model=copy.deepcopy(demonstrated.model))
    source = config.tasks.source("train", PAPER)
    rollout = make_rollout(config, policy, source)
    return RlStage(policy, config.rl.model_copy(update=changes), rollout, source, seed=0)


ADAMW_IN_FLOAT64 = 1e-4
"""AdamW divides by |gradient| + 1e-8, so 1e-12 more in a gradient moves a weight by 1e-4 of the learning rate."""


def in_float64(policy: Policy) -> Policy:
    """The same weights in float64, so that two ways of computing a gradient agree to 1e-12."""
    model = copy.deepcopy(policy.model).double()
    use_fp64_norms(model)
    return replace(policy, model=model)


@pytest.mark.numeric
def test_packs_and_workers_do_not_change_a_supervised_step(config: Recipe):
    assert config.sft is not None
    rate = config.sft.rates[1]
    config = config.model_copy(update={"sft": config.sft.model_copy(update={"tasks": 40})})
    source = config.tasks.source("train", PAPER)
    shown = demonstrate(config, make_rollout(config, make_policy(config), source), source, PAPER)

    # in float64: what Muon and AdamW normalise is moved by rounding alone
    def after(pack_tokens: int, workers: int) -> tuple[dict[str, Any], torch.Tensor]:
        assert config.sft is not None
        policy = in_float64(make_policy(config))
        sft = config.sft.model_copy(update={"tokens": 512, "pack_tokens": pack_tokens})
        learner = SftStage(policy, sft, lambda: shown, seed=0, workers=workers)
        row = dict(learner.step(0))
        return row, torch.cat([p.detach().flatten() for p in policy.model.parameters()])

    whole, after_whole = after(512, 1)
    with one_thread():  # as each of two workers has: the same sums in the same order
        (one, after_one), (two, after_two) = after(64, 1), after(64, 2)
    assert one["tokens"] > whole["tokens"]  # what two packs share is counted in both
    assert one["loss"] == pytest.approx(whole["loss"], rel=1e-12)
    assert one["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-12)
    torch.testing.assert_close(after_one, after_whole, rtol=0, atol=ADAMW_IN_FLOAT64 * rate)
    assert one == two
    assert torch.equal(after_one, after_two)


def test_the_groups_of_a_step_share_out_its_numbers_of_objectives(config: Recipe, demonstrated: Policy):
    phases = (Phase(steps=1, objectives=(1,)), Phase(steps=2, objectives=(1, 2)))
    learner = stage(config, demonstrated, curriculum=phases, group_size=2)
    sizes = [[g.trajectories[0].task.objectives for g in learner.sample(i) if g.trajectories[0].task] for i in (0, 1)]
    assert sizes == [[1, 1, 1, 1], [1, 1, 2, 2]]
    assert learner.steps == 3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda tasks: tasks[:3], "3 tasks of 2 objectives, not 4, as asked for; return as many"),
        (lambda tasks: tasks * 2, "8 tasks of 2 objectives, not 4"),
        (lambda tasks: [SOURCE.tasks(objectives=1, count=1, seed=0)[0]] * 4, "a task of 1 questions, not 2, as asked"),
        (lambda tasks: [task.prompt for task in tasks], ".*; it returns a list of Task"),
    ],
)
def test_a_source_that_returns_other_tasks_than_are_asked_for_is_named_by_both_stages(
    wrong: Callable[[list[Task]], Any], said: str
):
    """But for their number in [sft], which trains what there is."""

    class Own:
        environment = SOURCE.environment

        def tasks(self, *, objectives: int, count: int, seed: int) -> Any:
            return wrong(SOURCE.tasks(objectives=objectives, count=count, seed=seed))

    made, rl = rollout(lambda _: "", SOURCE.environment), Rl(curriculum=(Phase(steps=1, objectives=(2,)),))
    sampler = GroupSampler(cast(Any, None), rl.model_copy(update={"tasks_per_step": 4}), made, Own(), seed=0)
    with pytest.raises(UserError, match=rf"^Own\.tasks returned {said}"):
        sampler.sample(0)
    recipe = Recipe(tasks=SMALL, sft=Sft(objectives=(2,), tasks=4), writers=())
    if said[0] in "38":
        assert len(demonstrate(recipe, made, Own(), PAPER)) == int(said[0])
    else:
        with pytest.raises(UserError, match=rf"^Own\.tasks returned {said}"):
            demonstrate(recipe, made, Own(), PAPER)


def test_demonstrations_in_atlas_are_those_of_the_expert_with_the_recipes_context(config: Recipe):
    atlas = config.model_copy(
        update={
            "tasks": SMALL,
            "memory": "full",
            "model": ModelConfig(new=TinyModel(hidden_size=32, layers=2, feed_forward=64)),
            "sft": Sft(objectives=(1, 2), tasks=5),
        }
    )
    source = SMALL.source("train", PAPER)
    shown = demonstrate(atlas, make_rollout(atlas, make_policy(atlas), source), source, PAPER)
    assert [t.task.objectives for t in shown if t.task] == [1] * 5 + [2] * 5
    assert {(t.context, t.ended, sum(t.per_objective("em")) / len(t.per_objective("em"))) for t in shown} == {
        ("full", Ended.ANSWERED, 1.0)
    }


def test_demonstrations_that_are_cut_short_show_the_forced_answer(config: Recipe):
    sft = Sft(objectives=(4,), tasks=10, cut_short=0.5)
    update = {"tasks": SMALL, "sft": sft, "model": ModelConfig(new=TinyModel(hidden_size=32, layers=2))}
    atlas = config.model_copy(update=update)
    source = SMALL.source("train", PAPER)
    shown = demonstrate(atlas, make_rollout(atlas, make_policy(atlas), source), source, PAPER)
    forced = [t for t in shown if t.turns[-1].prefilled]
    assert {t.ended for t in shown} == {Ended.ANSWERED}
    assert 2 <= len(forced) <= 8
    assert any(sum(t.per_objective("em")) < 4 for t in forced)
    assert all(sum(t.per_objective("em")) == 4 for t in shown if t not in forced)


def test_the_run_folder_records_recipe_and_command(config: Recipe, unbroken: Path):
    assert load_toml(unbroken / "config.toml", Recipe) == config
    resolved = json.loads((unbroken / "resolved.json").read_text())
    assert resolved["command"] == ["mem1"] and "torch" in resolved["versions"]


def test_what_attempts_did_is_counted_by_turn():
    def turn(kind: str, **spans: tuple[int, int]) -> Turn:
        return Turn(context_ids=(1,), completion_ids=(1,) * 9, action=kind, completion_spans=spans)

    lost = Trajectory(turns=(turn("search", state=(0, 4)), turn("search", state=(0, 6))), ended=Ended.OUT_OF_TURNS)
    right = Trajectory(turns=(turn("search"), turn("answer", state=(0, 5), action=(5, 8))), ended=Ended.ANSWERED)
    bad = Trajectory(turns=(turn("malformed"),), ended=Ended.BAD_TAGS)
    broken = Trajectory(turns=(turn("search"),), ended=Ended.TOOL_FAILED)
    found = attempt_metrics([replace(t, reward=0.0) for t in (lost, right, bad)] + [broken])
    assert found["searches"] == 1.0 and found["valid_actions"] == 3 / 5 and found["malformed"] == 1 / 5
    assert found["answer_tokens"] == 3.0 and found["state_tokens"] == 5.0
    shop = attempt_metrics([Trajectory(turns=(turn("act"),), ended=Ended.OUT_OF_TURNS, reward=0.0)])
    with pytest.raises(UserError, match="the environment's metric 'turns' has the name of a number"):
        attempt_metrics([replace(right, reward=0.0, metrics={"turns": 3.0})])
    assert "searches" not in shop and shop["valid_actions"] == 1.0 and shop["answer_tokens"] is None
