"""A terminal in which commands are typed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mem1.cli.main import main
from mem1.configuration import to_toml
from mem1.envs.atlas import AtlasTasks
from mem1.recipe.evaluation import Evaluation
from mem1.recipe.model import ModelConfig, TinyModel
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Phase, Rl
from mem1.recipe.supervised import Sft


class Terminal:
    """Types a command and reads what it prints."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments: str | Path) -> tuple[int, str, str]:
        """Exit code, standard output, standard error with its line ends folded."""
        self._monkeypatch.setattr(sys, "argv", ["mem1", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
            sys.exit(0)
        out, err = self._capsys.readouterr()
        assert "Traceback" not in out + err
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    def error(self, *arguments: str | Path) -> str:
        """The message of a command that must fail with exit code 2 and print no result."""
        code, out, err = self(*arguments)
        assert (code, out) == (2, "")
        return err.replace("\n", " ")


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "300")
    return Terminal(capsys, monkeypatch)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A new tiny model, a few demonstrations, one step of reinforcement learning, a small evaluation."""
    config = Recipe(
        model=ModelConfig(new=TinyModel(hidden_size=32, layers=2, feed_forward=64)),
        tasks=AtlasTasks(entities=40, worlds=1, questions_per_world=50),
        sft=Sft(steps=2, objectives=(1,), tasks=4, tokens=512),
        rl=Rl(curriculum=(Phase(steps=1, objectives=(1,)),), tasks_per_step=2, group_size=2),
        evaluation=Evaluation(objectives=(1, 2), tasks=3),
        writers=(),
    )
    path = tmp_path / "tiny.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    return path
