"""`mem1 real`: its stages, what it examines, what it resumes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cloze_documents import corpus
from language_models import language_model
from terminals import Terminal
from terminals import terminal as terminal

from mem1.cli.real import START, TRAIN, Plan
from mem1.configuration import read_toml

SHORT = (
    "workers=1",
    "tasks.worlds=4",
    "tasks.entities=80",
    "budget.completion_extra=120",
    "evaluation.objectives=[1,2]",
    "evaluation.tasks=2",
    "sft.tasks=4",
    "sft.steps=2",
    "sft.tokens=1500",
    "rl.curriculum=[{steps=2, objectives=[2]}]",
    "rl.tasks_per_step=1",
    "rl.group_size=2",
    "evaluation.every=1",
    "evaluation.validation_objectives=[2]",
    "evaluation.validation_tasks=2",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return language_model(tmp_path_factory.mktemp("real") / "model")


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "result.json").read_text())["rows"]


def test_a_model_is_examined_shown_how_examined_trained_and_examined(terminal: Terminal, model: Path, tmp_path: Path):
    out = tmp_path / "run"
    code, printed, said = terminal("real", *SHORT, "--model", model, "--out", out, "--seed", "3", "--device", "cpu")
    assert code == 0, said
    rows = rows_of(out)
    assert [(row["policy"], row["objectives"]) for row in rows] == [
        (name, n) for name in ("untouched", "start", "trained") for n in (1, 2)
    ]
    assert all(name in printed for name in ("untouched", "start", "trained"))
    assert "untouched" in (out / "report.html").read_text()
    start, train = (read_toml(out / stage / "config.toml") for stage in ("start", "train"))
    assert start["seed"] == train["seed"] == 3
    assert start["tasks"]["laziness"]["stop"] > 0 and train.get("sft") is None and start.get("rl") is None
    assert train["model"]["path"] == str(out / "start" / "policy")
    assert train["tasks"]["first_world"] >= start["tasks"]["worlds"], "its worlds are others"
    assert f"mem1 run smollm2/eval --model {out / 'train' / 'best'}" in " ".join(said.split())
    # what is finished is not repeated, and the result is the same
    (out / "result.json").unlink()
    assert "--resume" in terminal.error("real", *SHORT, "--model", model, "--out", out)
    code, _, said = terminal(
        "real", *SHORT, "--model", model, "--out", out, "--seed", "3", "--device", "cpu", "--resume"
    )
    assert code == 0, said
    assert [row["em"] for row in rows_of(out)] == [row["em"] for row in rows]
    # nor where the folder was moved meanwhile
    moved = out.rename(tmp_path / "moved")
    code, _, said = terminal(
        "real", *SHORT, "--model", model, "--out", moved, "--seed", "3", "--device", "cpu", "--resume"
    )
    assert code == 0, said
    assert [row["em"] for row in rows_of(moved)] == [row["em"] for row in rows]
    assert terminal("export", moved, tmp_path / "exported")[0] == 0
    best, given = (folder / "model.safetensors" for folder in (moved / "train" / "best", tmp_path / "exported"))
    assert best.read_bytes() == given.read_bytes()


def test_with_documents_it_learns_clozes_of_them(terminal: Terminal, model: Path, tmp_path: Path):
    (tmp_path / "notes").mkdir()
    for passage in corpus(60):
        (tmp_path / "notes" / f"{passage.id}.txt").write_text(f"{passage.title}\n\n{passage.text}\n")
    changes = [
        *(change for change in SHORT if not change.startswith(("tasks.entities", "tasks.worlds"))),
        "budget.completion_extra=400",
    ]
    few = [change for change in changes if "validation_objectives" not in change]
    refused = terminal.error("real", *few, "--model", model, "--out", tmp_path / "few", "--corpus", tmp_path / "notes")
    assert "8 objectives need 8 passages" in refused and not (tmp_path / "few" / "evaluation").exists()
    code, _, said = terminal(
        *("real", *changes, "--model", model, "--out", tmp_path / "run", "--corpus", tmp_path / "notes"),
        *("--quick", "--device", "cpu"),
    )
    assert code == 0, said
    tasks = read_toml(tmp_path / "run" / "train" / "config.toml")["tasks"]
    assert (tasks["kind"], tasks["prompt"], tasks["corpus"]) == ("cloze", "cloze", str(tmp_path / "notes"))
    assert {row["policy"] for row in rows_of(tmp_path / "run")} == {"untouched", "start", "trained"}


def test_a_turn_about_a_document_may_be_longer(tmp_path: Path):
    plain = Plan(folder=tmp_path).recipe(START, "shipped").budget.completion_extra
    longer = Plan(folder=tmp_path, corpus=tmp_path).recipe(START, "shipped").budget.completion_extra
    own = Plan(folder=tmp_path, corpus=tmp_path, changes=("budget.completion_extra=90",)).recipe(START, "shipped")
    assert own.budget.completion_extra == 90 and plain < longer


def test_with_documents_a_change_is_one_of_clozes(terminal: Terminal, tmp_path: Path):
    own = Plan(folder=tmp_path, corpus=tmp_path, changes=("tasks.snippet_words=30", "tasks.top_k=2"))
    kinds = [own.recipe(name, "shipped").tasks for name in (START, TRAIN)]
    assert [(one.kind, one.snippet_words, one.top_k) for one in kinds] == [("cloze", 30, 2)] * 2
    said = terminal.error("real", "tasks.worlds=3", "--corpus", tmp_path, "--out", tmp_path / "run")
    assert "unknown key" in said and "worlds" in said


def test_what_it_cannot_do_is_said_before_anything_is_written(terminal: Terminal, tmp_path: Path):
    assert "is no model folder" in terminal.error("real", "--model", "no/such/folder", "--out", tmp_path / "a")
    assert "--resume" in terminal.error("real", "--resume", "--out", tmp_path / "b")
    assert "unknown key" in terminal.error("real", "rl.grup=3", "--out", tmp_path / "c")
    assert "an option of its own: --seed 5" in terminal.error("real", "seed=5", "--out", tmp_path / "d")
    plan = Plan(folder=tmp_path / "\U0001f680")
    assert plan.recipe(TRAIN, str(plan.start)).model.path == str(plan.start)
    for change in ("model.path=other", 'model={path="other"}'):
        assert "an option of its own: --model other" in terminal.error("real", change, "--out", tmp_path / "d")
    assert not list(tmp_path.iterdir())
