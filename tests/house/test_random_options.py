"""Whatever is typed: a result, or one message that begins with "error: " and exit code 2; never a stack trace.

`make test ARGS="tests/house/test_random_options.py -m slow"` draws 10,000 command lines for each command.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from commands import walk
from random_values import RECIPES, Drawn, keys_of

from mem1.cli.main import main
from mem1.cli.options import only_checked
from mem1.recipe.recipe import Recipe
from mem1.registry import register

COMMANDS = walk()
OPEN_LISTS = (("tasks.", register.tasks), ("rl.algorithm.", register.algorithm))
KEYS = sorted(
    {
        *keys_of(Recipe),
        *(key for prefix, known in OPEN_LISTS for name in known.names() for key in keys_of(known.get(name), prefix)),
    }
)
FEW, MANY = 80, 10_000
FEWER = {"plan": 16}
"""Of a command that takes half a second."""
WITH_KEYS = ("train", "plan", "eval", "run", "verify", "data")
"""Commands that take keys of a recipe."""


def ending(arguments: list[str]) -> tuple[int, str]:
    """Exit code, and what was said on stderr; an error that is not met rises with the command line."""
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said), only_checked():
        try:
            main(arguments)
        except SystemExit as ended:
            assert isinstance(ended.code, int)
            return ended.code, said.getvalue()
        except BaseException as error:
            raise AssertionError(f"mem1 {str(arguments)[:500]}: {type(error).__name__}") from error
    return 0, said.getvalue()


def check(draw: Callable[[], list[str]], times: int) -> int:
    """Runs so many command lines; how many of them were wrong."""
    wrong = 0
    for _ in range(times):
        arguments = draw()
        code, said = ending(arguments)
        assert code in (0, 2), f"mem1 {arguments}: exit code {code}: {said}"
        assert code == 0 or (said.startswith("error: ") and len(said) > 10), f"mem1 {arguments}: {said}"
        assert "Traceback" not in said
        wrong += code == 2
    return wrong


def options_of(name: str, folder: Path, times: int) -> int:
    options = COMMANDS[tuple(name.split())]
    drawn = Drawn(name, folder)
    return check(lambda: drawn.command(options), times)


def keys_of_command(name: str, folder: Path, times: int) -> int:
    drawn = Drawn(f"keys of {name}", folder)

    def draw() -> list[str]:
        recipe = drawn.random.choice(RECIPES)
        settings = drawn.settings(KEYS)
        needed = ("--out=new.parquet",) if name == "data" else ()
        return [*name.split(), *needed, recipe, "--", *settings]

    return check(draw, times)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def telling(names: Iterable[str]) -> list[Any]:
    """The commands; the plan, whose every step is computed on fake tensors, takes a quarter of the time of all."""
    return [pytest.param(name, marks=pytest.mark.slow if name == "plan" else ()) for name in names]


@pytest.mark.parametrize("name", telling(sorted(map(" ".join, COMMANDS))))
def test_options_of_any_value_end_with_a_result_or_a_message(name: str, folder: Path):
    wrong = options_of(name, folder, FEWER.get(name, FEW))
    assert wrong, "no command line was wrong, so nothing was tried"


@pytest.mark.parametrize("name", telling(WITH_KEYS))
def test_keys_of_any_value_end_with_a_result_or_a_message(name: str, folder: Path):
    times = FEWER.get(name, FEW)
    wrong = keys_of_command(name, folder, times)
    assert 0 < wrong < times, "some must be wrong and some right, else nothing was tried"


def test_every_key_of_a_recipe_is_among_those_that_are_drawn():
    assert {"rl.curriculum", "rl.curriculum.0.steps", "tasks.pages.seconds", "tasks.budget.dollars",
            "rl.algorithm.clip_low", "rollout.timeout_s", "model.new.heads",
            "evaluation.objectives.0", "rl.kl.target"} <= set(KEYS)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", telling(sorted(map(" ".join, COMMANDS))))
def test_ten_thousand_options_of_any_value_end_with_a_result_or_a_message(name: str, folder: Path):
    options_of(name, folder, MANY)


@pytest.mark.slow
@pytest.mark.parametrize("name", telling(WITH_KEYS))
def test_ten_thousand_keys_of_any_value_end_with_a_result_or_a_message(name: str, folder: Path):
    keys_of_command(name, folder, MANY)
