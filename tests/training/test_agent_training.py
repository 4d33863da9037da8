"""A recipe with [agent]: trained, validated, evaluated and imitated like any other; what cannot work is said before."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from policies import policy_server, tiny
from typer.testing import CliRunner
from worlds import CODEC, SAMPLING, SMALL

import mem1
from mem1.cli.main import app
from mem1.dialogue import NativeDialogue
from mem1.engines.chat_messages import ChatMessages
from mem1.engines.dialects import DIALECTS
from mem1.engines.openai import OpenAIEngine
from mem1.engines.servers import ModelServer
from mem1.errors import UserError
from mem1.evaluation.report.run_folders import facts as run_facts
from mem1.planning.preflight import checks
from mem1.protocol import PAPER
from mem1.recipe.recipe import Recipe
from mem1.recipe.rollouts import recipe_rollout
from mem1.training.checks import SAMPLER_LIMIT

RECIPE = """
checkpoint_every = 1
[model.new]
hidden_size = 32
layers = 2
heads = 2
feed_forward = 48
[agent]
entry = "endpoint_agents:run"
[budget]
completion_per_objective = 2
completion_extra = 12
[tasks]
kind = "atlas"
worlds = 1
entities = 40
questions_per_world = 20
reward = "endpoint_agents:chance"
[trajectories]
groups = 2
[rl]
curriculum = [{ steps = 2, objectives = [1] }]
tasks_per_step = 2
group_size = 3
pack_tokens = 2048
[evaluation]
objectives = [1]
tasks = 3
every = 2
validation_tasks = 2
"""


def recipe(tmp_path: Path, *overrides: str, text: str = RECIPE) -> Recipe:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return mem1.load_recipe(path, *overrides)


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_trains_validates_and_its_attempts_can_be_imitated(tmp_path: Path):
    config, run = recipe(tmp_path), tmp_path / "run"
    finished = mem1.train(config, run)
    assert finished.complete
    for row in rows(run):
        assert row["reencoded_share"] == 0 and row["sampler_trainer_max"] < SAMPLER_LIMIT
        assert row["grad_norm"] > 0 and row["completion_tokens"] > 0
    assert "validation" in rows(run)[-1]
    table = mem1.evaluate(config, finished.policy, out=tmp_path / "eval")
    assert [(row.tasks, row.context) for row in table] == [(3, "agent endpoint_agents:run")]
    attempts = tmp_path / "eval" / "policy-1.jsonl"
    before = attempts.read_bytes()
    mem1.evaluate(config, finished.policy, out=tmp_path / "eval")
    assert attempts.read_bytes() == before
    with pytest.raises(UserError, match="context"):
        mem1.evaluate(recipe(tmp_path, "agent.entry=endpoint_agents:nothing"), finished.policy, out=tmp_path / "eval")

    given = json.loads(attempts.read_text().splitlines()[0])
    answered = {**given, "ended": "answered"}
    (tmp_path / "answered.jsonl").write_text(json.dumps(answered) + "\n")
    sft = f'\n[sft]\nsteps = 1\ntokens = 1024\ntrajectories = "{tmp_path}/answered.jsonl"\n'
    imitating = recipe(tmp_path, f"model.path={run / 'policy'}", text=RECIPE.partition("[rl]")[0].replace(
        RECIPE[RECIPE.index("[model.new]") : RECIPE.index("[agent]")], "") + sft)  # fmt: skip
    assert mem1.train(imitating, tmp_path / "imitated").complete
    assert rows(tmp_path / "imitated")[0]["loss"] > 0


@pytest.mark.parametrize("entry", ["raises", "rewards"])
def test_a_run_goes_on_whatever_its_agent_does(entry: str, tmp_path: Path):
    config = recipe(tmp_path, text=RECIPE.replace("agents:run", f"agents:{entry}").replace("reward =", "# reward ="))
    finished = mem1.train(config, tmp_path / "run")
    assert finished.complete and [row["step"] for row in rows(tmp_path / "run")] == [1, 2]
    ended = "agent_failed" if entry == "raises" else "answered"
    assert {name for row in rows(tmp_path / "run") for name in row["endings"]} == {ended}
    (row,) = mem1.evaluate(config, finished.policy)
    assert (row.endings[ended], row.reward) == (3, 0.0 if entry == "raises" else 2.0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (RECIPE.replace("[budget]", 'command = ["python"]\n[budget]'), "give either entry, a function of yours, or"),
        (RECIPE.replace("agents:run", "agents:nobody"), "endpoint_agents has no 'nobody'"),
        (RECIPE.replace("[budget]", "limit = 3\n[budget]"), "unknown key agent.limit"),
        (RECIPE.replace("[budget]", 'memory = "folds(2)"\n[budget]'), "unknown memory 'folds(2)'"),
        (RECIPE.replace("[budget]", "time_limit_s = 0\n[budget]"), "agent.time_limit_s"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused(text: str, why: str, tmp_path: Path):
    with pytest.raises(UserError) as caught:
        recipe(tmp_path, text=text)
    assert why in str(caught.value)


def test_a_dry_run_looks_for_the_agent_and_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def agent(text: str = RECIPE) -> tuple[bool, str]:
        found = checks(recipe(tmp_path, text=text), disk=0, out=tmp_path / "run")
        return next((check.ok, check.detail) for check in found if check.name == "agent")

    assert agent() == (True, "endpoint_agents:run, 32 attempts at a time")
    ok, detail = agent(RECIPE.replace('entry = "endpoint_agents:run"', 'command = ["no-such-program", "x"]'))
    assert not ok and "there is no program 'no-such-program'" in detail


def rollout_with(tmp_path: Path, engine: Any) -> Any:
    dialogue = NativeDialogue(ChatMessages.in_tags(CODEC, PAPER), PAPER)
    return recipe_rollout(recipe(tmp_path), engine=engine, dialogue=dialogue, source=SMALL.source("train", PAPER))


def test_a_server_without_token_ids_is_refused_and_one_with_them_is_recorded(tmp_path: Path):
    class Texts:
        dialect = DIALECTS["chat"][0]

    with pytest.raises(UserError, match=r"\[agent\] records the exact tokens of each call, and this server exchanges"):
        rollout_with(tmp_path, Texts())

    tasks = SMALL.source("train", PAPER).tasks(objectives=1, count=3, seed=0)
    with policy_server(tmp_path, tiny()) as (address, _):
        server = ModelServer(urls=(f"{address}/v1",), model="policy", processed_logprobs=True)
        made = rollout_with(tmp_path, OpenAIEngine.open(server, CODEC, PAPER.stop_strings))
        attempts = made(tasks, sampling=SAMPLING)
    turns = [turn for attempt in attempts for turn in attempt.turns]
    assert len(turns) >= 3 and all(len(turn.logprobs) == len(turn.completion_ids) > 0 for turn in turns)


@pytest.mark.slow
def test_the_program_of_the_page_is_verified_trained_and_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = (Path(__file__).parents[2] / "docs" / "agents-elsewhere.md").read_text(encoding="utf-8")
    for name, text in re.findall(r'^```\w+ title="(.*?)"\n(.*?)^```', page, flags=re.M | re.S):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    few = [
        *(
            "tasks.worlds=1",
            "tasks.entities=60",
            "tasks.questions_per_world=40",
            "rl.tasks_per_step=1",
            "rl.group_size=2",
        ),
        *("rl.curriculum=[{ steps = 1, objectives = [2] }]", "rl.epochs=1", "evaluation.tasks=1"),
    ]
    verified = CliRunner().invoke(app, ["verify", "recipe.toml", *few, "--attempts", "2", "--json"])
    assert verified.exit_code == 0, verified.output
    facts = json.loads(verified.stdout.splitlines()[-1])
    assert facts["passed"] and facts["context"] == "agent my_agent:run" and facts["turns"] > facts["trajectories"]
    trained = CliRunner().invoke(app, ["train", "recipe.toml", *few, "--out", "runs/mine"])
    assert trained.exit_code == 0, trained.output
    report = CliRunner().invoke(app, ["report", "runs/mine", "--out", "report.html"])
    assert report.exit_code == 0, report.output
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "agent my_agent:run" in page and "searches" in page
    made = run_facts(tmp_path / "runs" / "mine")
    assert made["agent"] == "my_agent:run" and "memory" not in made
    (row,) = rows(tmp_path / "runs" / "mine")
    assert row["reencoded_share"] == 0 and row["searches"] > 0
    shown = CliRunner().invoke(app, ["eval", "recipe.toml", *few, "model.path=runs/mine/policy"])
    assert shown.exit_code == 0 and "agent" in shown.output
