"""Finds a recipe: a file, or the name of one that comes with mem1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mem1.api import find_recipe
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
