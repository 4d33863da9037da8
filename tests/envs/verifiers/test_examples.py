"""Example environments of verifiers' repository, trained and evaluated on a CPU. `make test-verifiers` runs these."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from native_models import check_episodes
from typer.testing import CliRunner

from mem1.cli.main import app

pytest.importorskip("verifiers.v1")

RECIPE = """
[model.new]
tokenizer = "bpe"
vocab_size = 400
hidden_size = 32
layers = 1
heads = 2
feed_forward = 32
look_back = [1]
max_positions = 1024

[tasks]
kind = "demonstrated:{name}"
taskset = "{taskset}"
prompt = "plain"
reward = "demonstrated:with_turns"
turn_limit = 4
live = 8

[budget]
completion_extra = 80
context = 1024

[sft]
tasks = {tasks}
objectives = [1]
steps = 150
tokens = 2048


[rl]
curriculum = [{{ steps = 2, objectives = [1] }}]
tasks_per_step = 2
group_size = 4

[evaluation]
objectives = [1]
tasks = 2
"""
DEMONSTRATED = """
from mem1.envs.verifiers.tasks import VerifiersTasks


def with_turns(task, attempt):
    return attempt.reward + 0.1 * len(attempt.turns)


class Reverse(VerifiersTasks):
    def expert(self, tasks, environment, tags, *, seed):
        def script(context):
            task = next(task for task in tasks if context.startswith(task.prompt))
            text = task.prompt.split("\\n\\n")[-1]
            return f"<IS> x </IS> <action> <reversed_text>{text[::-1]}</reversed_text> </action>"

        return script


class Glossary(VerifiersTasks):
    def expert(self, tasks, environment, tags, *, seed):
        def script(context):
            if "<info>" in context:
                found = context.split("[/HINT]")[-1].split("</info>")[0].strip()
                return f"<IS> x </IS> <action> <answer>{found}</answer> </action>"
            name = context.split('"')[1]
            return '<IS> x </IS> <action> facts_lookup({"name": "%s"}) </action>' % name

        return script
"""


def written(name: str, taskset: str, folder: Path, *, tasks: int) -> None:
    (folder / "demonstrated.py").write_text(DEMONSTRATED, encoding="utf-8")
    (folder / "recipe.toml").write_text(RECIPE.format(name=name, taskset=taskset, tasks=tasks), encoding="utf-8")


def run(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return result.stdout


@pytest.mark.timeout(900)  # a server of tools takes seconds to start
@pytest.mark.parametrize(
    ("name", "taskset", "module"), [("Reverse", "reverse-text", "reverse_text"), ("Glossary", "glossary", "glossary")]
)
def test_an_example_is_demonstrated_trained_and_evaluated(
    name: str, taskset: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    if name == "Reverse":  # its texts are on the Hub; a folder of that name is read in their place
        pytest.importorskip("datasets")
        texts = tmp_path / "PrimeIntellect" / "Reverse-Text-RL"
        texts.mkdir(parents=True)
        rng = random.Random(0)
        rows = [{"prompt": "".join(rng.choice("abcdef") for _ in range(6))} for _ in range(40)]
        (texts / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    written(name, taskset, tmp_path, tasks=16 if name == "Reverse" else 4)
    run("train", "recipe.toml", "--out", "run")
    shown = json.loads(run("eval", "recipe.toml", "--model", "run/policy", "--out", "results", "--json"))
    (row,) = shown["rows"]
    assert row["tasks"] >= 1 and 0 <= row["score"] <= 1 and row["endings"]["tool_failed"] == 0
    assert row["endings"]["answered"] >= 1  # the environment ended an attempt
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in metrics if "reward" in line]
    assert len(trained) == 2 and not any("tool_failed" in line["endings"] for line in trained)
    assert any("answered" in line["endings"] for line in trained) and any(line["grad_norm"] > 0 for line in trained)


@pytest.mark.timeout(900)
def test_tools_are_called_in_the_model_s_own_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("glossary")
    check_episodes(tmp_path, {"kind": "verifiers", "taskset": "glossary", "turn_limit": 3, "list_tools": False})
