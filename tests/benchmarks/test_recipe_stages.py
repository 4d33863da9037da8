"""`benchmarks/recipe_stages.py`: which commands run, on which recipe, with which changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import recipe_stages


def test_a_training_that_was_stopped_is_resumed_with_the_same_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> None:
        commands.append(command[3:])

    monkeypatch.setattr(recipe_stages.subprocess, "run", run)
    stages = recipe_stages.Stages(tmp_path / "recipes", tmp_path, ("memory=full", "tasks.corpus=/c"))
    begun = ["train", str(tmp_path / "recipes" / "start.toml"), "memory=full", "tasks.corpus=/c", "seed=1"]
    stages.train("start", "seed=1")
    assert commands == [[*begun, "--out", "start"]]
    (tmp_path / "start" / "policy").mkdir(parents=True)
    (tmp_path / "start" / "config.toml").touch()
    stages.train("start", "seed=1")
    assert commands[1:] == [[*begun, "--out", "start", "--resume"]]
    stages.train("start", "seed=1", evaluate=False)
    (tmp_path / "start" / "result.json").touch()
    stages.train("start", "seed=1")
    assert len(commands) == 2, "what is finished is not repeated"
