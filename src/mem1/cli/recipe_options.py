"""Recipes on the command line: `mem1 eval [RECIPE] key=value`, with short names for frequent keys.

mem1 eval --corpus notes --limit 20     is     mem1 eval tasks.corpus=notes evaluation.tasks=20
mem1 eval webshop-quick --limit 20      the tasks, tags, memory and budget of a shipped recipe
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mem1.errors import UserError

if TYPE_CHECKING:
    from mem1.recipe.recipe import Recipe


@dataclass(frozen=True)
class ShortName:
    """An option that stands for a key of the recipe."""

    key: str
    kind: Any
    help: str


SHORT_NAMES: Mapping[str, ShortName] = {
    "model": ShortName("model.path", str, "Folder or cached Hugging Face id; 'shipped'; a server's name for it."),
    "base_url": ShortName("engine.urls", list[str], "Server of OpenAI's protocol with --model; repeat for failover."),
    "tokenizer": ShortName("engine.tokenizer", str, "Tokenizer of the served model: folder, id, or 'stand-in'."),
    "questions": ShortName("tasks.questions", str, "File of questions."),
    "corpus": ShortName("tasks.corpus", str, "File of passages, or folder of an index or of documents."),
    "objectives": ShortName("evaluation.objectives", str, "Questions per task, such as 1,2,4."),
    "limit": ShortName("evaluation.tasks", int, "Tasks for each number of objectives."),
    "seed": ShortName("evaluation.seed", int, "Seed of tasks and sampling."),
}
"""Option -> the key that it fills. --out and --json, the other two for newcomers, fill none."""
QUICKSTART = "atlas-notes"
"""The recipe of `mem1 quickstart`."""
OVERRIDES_HELP = "key=value, dotted: rl.learning_rate=1e-4; corpus is tasks.corpus"


@dataclass(frozen=True)
class Chosen:
    """The recipe and the keys that a command line gives."""

    recipe: str | None
    """File or shipped recipe; None: none was named."""
    settings: tuple[str, ...]
    """key=value, short names included."""

    @classmethod
    def of(cls, arguments: Sequence[str], short: Mapping[str, Any]) -> Chosen:
        """From the arguments in order and the short names that were given (None: not given)."""
        first, *rest = arguments or [""]
        named = first if first and "=" not in first else None
        settings = expanded(arguments if named is None else rest)
        for name, value in short.items():
            if value is not None and value != []:
                settings += _settings(name, value)
        chosen = cls(named, tuple(settings))
        if named is None and short.get("tokenizer") is not None and not chosen.sets("engine.kind"):
            raise UserError("--tokenizer is for a served model: give --base-url too (or engine.kind=script)")
        return chosen

    def sets(self, key: str) -> bool:
        """Whether the command line gives this key or one in its section."""
        given = (setting.partition("=")[0].strip() for setting in self.settings)
        return any(name == key or name.startswith(f"{key}.") for name in given)

    def load(self, defaults: Mapping[str, str] | None = None) -> Recipe:
        """The recipe with these keys. Without a recipe the tasks are Atlas's, or with --questions those of its file.

        `defaults` holds the command's own values where neither a recipe nor a key gives them; those of [tasks] are for
        Atlas.
        """
        from mem1.api import load_recipe
        from mem1.configuration import load_toml
        from mem1.recipe.recipe import Recipe

        if self.recipe is not None:
            return load_recipe(self.recipe, *self.settings)
        kind = "multihop" if self.sets("tasks.questions") else "atlas"
        standing = {"tasks.kind": kind, **(defaults or {})}
        if kind != "atlas" or self.sets("tasks.kind"):
            standing = {key: value for key, value in standing.items() if key == "tasks.kind" or key[:6] != "tasks."}
        before = [f"{key}={value}" for key, value in standing.items() if not self.sets(key)]
        return load_toml(None, Recipe, [*before, *self.settings])


def with_recipe(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command `[RECIPE] key=value` and these short names (none: all); it gets them as one `chosen: Chosen`."""
    return functools.partial(_with_recipe, short_names={name: SHORT_NAMES[name] for name in names or SHORT_NAMES})


def _with_recipe(command: Callable[..., None], short_names: Mapping[str, ShortName]) -> Callable[..., None]:
    @functools.wraps(command)
    def called(arguments: list[str] | None = None, **given: Any) -> None:
        short = {name: given.pop(name) for name in short_names}
        command(chosen=Chosen.of(arguments or [], short), **given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [p.replace(kind=keyword) for p in inspect.signature(command, eval_str=True).parameters.values()]
    argument = Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [KEY=VALUE]...", help="A TOML file or shipped recipe; keys to change.", show_default=False
        ),
    ]
    parameters = [inspect.Parameter("arguments", keyword, default=None, annotation=argument)]
    for name, short in short_names.items():
        option = typer.Option(f"--{name.replace('_', '-')}", help=f"{short.help} \\[{short.key}]", show_default=False)
        parameters.append(
            inspect.Parameter(name, keyword, default=None, annotation=Annotated[short.kind | None, option])
        )
    parameters += [parameter for parameter in own if parameter.name != "chosen"]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {}
    del called.__wrapped__  # its signature is this one
    return called


def expanded(settings: Sequence[str]) -> list[str]:
    """`corpus=notes` in full, `tasks.corpus=notes`: the one key that everybody with documents gives."""
    return [f"tasks.{setting}" if setting.partition("=")[0].strip() == "corpus" else setting for setting in settings]


def _settings(name: str, value: Any) -> list[str]:
    """What a short name stands for.   ("limit", 20) -> ["evaluation.tasks=20"]"""
    key = SHORT_NAMES[name].key
    if name == "objectives":
        return [f"{key}={list(_numbers(value))}"]
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    also = {"model": ["model.new=null"], "base_url": ["engine.kind=server"]}
    return [*also.get(name, ()), f"{key}={text}"]


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UserError(f"--objectives takes whole numbers separated by commas, such as 1,2,4; not {text!r}") from error
