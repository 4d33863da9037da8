"""Finds a recipe: a file, or the name of one that comes with mem1."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mem1.cli.options import is_given
from mem1.errors import UserError

if TYPE_CHECKING:
    from mem1.training.loop.recipe import TrainConfig

Recipe = Annotated[
    str | None,
    typer.Option("--recipe", help="A recipe (file or name) that says what is evaluated: tasks, tags, context, budget."),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="key=value, dotted: a key of the recipe to change; repeatable.")
]
_RECIPES_OWN = {
    *("task", "questions", "corpus", "retriever", "prompt", "top_k", "api", "api_url", "mode", "cache", "max_searches"),
    *("catalogue", "goals", "pages", "objectives", "composition", "depth", "decompose", "tasks", "context"),
    *("vocabulary", "temperature", "seed", "max_context", "max_completion"),
}
"""Options of `mem1 eval` for which a recipe has keys."""


def recipe_folder() -> Path:
    """The shipped recipes: inside the installed package, or at the root of the repository."""
    installed = Path(str(resources.files("mem1"))) / "assets" / "recipes"
    return installed if installed.is_dir() else Path(str(resources.files("mem1"))).parents[1] / "recipes"


def find_recipe(name: str) -> Path:
    """The TOML file called `name`: as a path, else as a shipped recipe. Raises UserError listing the shipped ones."""
    folder = recipe_folder()
    for candidate in (Path(name), folder / name, folder / f"{name}.toml"):
        if candidate.is_file():
            return candidate
    known = ", ".join(sorted(p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.toml")))
    raise UserError(f"no recipe {name!r}: neither a file nor one of the shipped recipes ({known})")


def evaluation_recipe(
    command: typer.Context, name: str, settings: Sequence[str], *, besides: Sequence[str] = ()
) -> TrainConfig:
    """What a recipe says. Raises UserError where the command was given options that the recipe has keys for.

    `besides` names options that the command has in its own right, whatever the recipe says.
    """
    from mem1.configuration import load_toml
    from mem1.training.loop.recipe import TrainConfig

    options = {option.name: option.opts[0] for option in command.command.params}
    given = sorted(
        options[option] for option in (_RECIPES_OWN - set(besides)) & options.keys() if is_given(command, option)
    )
    if given:
        listed = ", ".join(given)
        raise UserError(f"with --recipe, {listed} goes into --set key=value, such as --set evaluation.tasks=100")
    return load_toml(find_recipe(name), TrainConfig, expanded(settings))


def expanded(settings: Sequence[str]) -> list[str]:
    """`corpus=notes` in full, `tasks.corpus=notes`: the one key that everybody with documents has to give."""
    return [f"tasks.{setting}" if setting.partition("=")[0].strip() == "corpus" else setting for setting in settings]
