"""What several commands share: options tied to settings, the device, files to write, checks of numbers, recipes.

    state: Annotated[int, typer.Option(min=50, help="Longest state."), Fills("mem1.messages.bounds:Bounds.state")] = 500

The default and the range of such an option are those of the setting. They are repeated here so that `--help` need not
load torch; a test compares the two.

A recipe is given as `mem1 eval [RECIPE] key=value`, with short names for frequent keys:

mem1 eval --corpus a.index --limit 20     is     mem1 eval tasks.corpus=a.index evaluation.tasks=20
mem1 eval webshop-quick --limit 20      the tasks, tags, memory and budget of a shipped recipe
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from mem1.configuration.model import LARGEST
from mem1.errors import UserError
from mem1.interrupts import Interrupted

if TYPE_CHECKING:
    from mem1.engines.device import Device, Machine
    from mem1.recipe.recipe import Recipe

DeviceOption = Annotated[
    str | None,
    typer.Option("--device", help="auto (CUDA if available), cpu, cuda, cuda:N or mps.", show_default="auto"),
]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        "--dtype", help="float32, bfloat16, or auto: bfloat16 on CUDA if the weights are.", show_default="auto"
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
HostOption = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: every address of this machine.")]
PortOption = Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")]
AllowHostOption = Annotated[
    list[str] | None,
    typer.Option(help="Name that requests may use for the server besides its address; repeatable.", show_default=False),
]
_CHOICES = {"device": "auto, cpu, cuda, cuda:N or mps", "dtype": "auto, float32 or bfloat16"}


@dataclass(frozen=True, slots=True)
class Fills:
    """The setting that an option fills: "module:Class.field", or "module:function.parameter"."""

    setting: str


class Command(TyperCommand):
    """A command whose numbers are finite, and no larger than any setting takes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        _check_numbers(self, ctx)
        return rest


class Group(TyperGroup):
    """A command that has others below it, with the same care for its own numbers."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        _check_numbers(self, ctx)
        return rest


def _check_numbers(command: Any, context: Any) -> None:
    for parameter in command.params:
        value = context.params.get(parameter.name)
        for number in value if isinstance(value, (list, tuple)) else (value,):
            check_number(number, parameter.opts[0])


def check_number(value: object, name: str) -> None:
    """Raises UserError if `value` is a number that is not finite or too large; `name` is the option's."""
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{name} takes a finite number, not {value}")
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) > LARGEST:
        raise UserError(f"{name} takes numbers up to {LARGEST:,}, not {value}")


def is_given(invocation: typer.Context, option: str) -> bool:
    """Whether the command line holds this option (named by its parameter)."""
    source = invocation.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def refuse(invocation: typer.Context, *options: str, because: str) -> None:
    """Raises UserError if one of these options is given, because it would have no effect."""
    names = {option.name: option.opts[0] for option in invocation.command.params}
    if found := [names[option] for option in options if is_given(invocation, option)]:
        raise UserError(f"{', '.join(found)}: {because}")


def check_folder(folder: Path, *, resume: bool) -> None:
    """Raises UserError for a folder that a run must not begin in, or that has nothing to resume."""
    if folder.exists() and any(folder.iterdir()) and not resume:
        raise UserError(f"{folder} exists and is not empty; resume its run with --resume, or give another --out")
    if resume and not folder.exists():
        raise UserError(f"--resume: {folder} does not exist; start a run without --resume, or give its folder by --out")


_ONLY_CHECKED: ContextVar[bool] = ContextVar("only_checked", default=False)


@contextmanager
def only_checked() -> Iterator[None]:
    """Inside, commands check their options and end where their work would begin."""
    token = _ONLY_CHECKED.set(True)
    try:
        yield
    finally:
        _ONLY_CHECKED.reset(token)


_GO_ON: ContextVar[Callable[[], str] | None] = ContextVar("go_on", default=None)


def work_begins(go_on: Callable[[], str] | None = None) -> None:
    """Marks where a command has checked its options and is about to load models, open ports or write files.

    go_on   what to do once it is stopped; None: what the work says, else the same command again
    """
    if _ONLY_CHECKED.get():
        raise typer.Exit
    _GO_ON.set(go_on)


def after_stop(interrupt: BaseException) -> str:
    """One line: where the command was stopped, what is saved, and how to go on."""
    where, then = (interrupt.where, interrupt.then) if isinstance(interrupt, Interrupted) else ("", "")
    go_on = _GO_ON.get()
    then = go_on() if go_on is not None else then or "begin again with the same command"
    return f"Stopped {where or 'while loading or saving'}; {then}"


def new_file(path: Path) -> Path:
    """The path, if nothing is there. Raises UserError otherwise: no file is ever replaced."""
    if os.path.lexists(path):
        raise UserError(f"{path} exists and is not replaced; delete it or choose another name")
    return path


def folder_name(name: str) -> str:
    """quickstart-fold(3)  ->  quickstart-fold-3, which a shell and every file system take as it is."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:100] or "run"


def make_folder_of(file: Path) -> None:
    """Make the folder that a file will be written to; before the work, so that a wrong path costs nothing."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{file}: its folder cannot be made ({error.strerror}); give another path") from error
    if file.is_dir():
        raise UserError(f"{file} is a folder; give the name of a file in it")


def machine(invocation: typer.Context) -> Machine | None:
    """The machine that the command line was called with, `app(args, obj=Machine(...))`; None: this one."""
    return invocation.find_root().obj


def chosen_device(invocation: typer.Context, device: str | None, *, training: bool = False) -> Device:
    """The device that an option or a recipe's key names. Raises UserError if the machine has none such."""
    from mem1.engines.device import Machine, choose

    return choose(known("device", device), machine(invocation) or Machine.here(), training=training)


def with_device(config: Recipe, device: str | None) -> Recipe:
    """The recipe with the device of the option, if one is given."""
    if device is None:
        return config
    changed = {"device": known("device", device)}
    return config.model_copy(update={"model": config.model.model_copy(update=changed)})


def known(key: str, value: str | None) -> str:
    """The value of an option that fills a key of [model]. Raises UserError for one that no machine has."""
    import pydantic

    from mem1.recipe.model import ModelConfig

    try:
        return getattr(ModelConfig.model_validate({} if value is None else {key: value}), key)
    except pydantic.ValidationError as error:
        raise UserError(f"--{key} is {_CHOICES[key]}, not {value!r}") from error


@dataclass(frozen=True)
class ShortName:
    """An option that stands for a key of the recipe."""

    key: str
    kind: Any
    help: str


SHORT_NAMES: Mapping[str, ShortName] = {
    "model": ShortName("model.path", str, "Folder, Hugging Face id or GGUF file; 'shipped'; a server's name for it."),
    "base_url": ShortName("engine.urls", list[str], "Server of OpenAI's protocol with --model; repeat for failover."),
    "tokenizer": ShortName("engine.tokenizer", str, "Tokenizer of the served model: folder, id, or 'stand-in'."),
    "questions": ShortName("tasks.questions", str, "File of questions."),
    "corpus": ShortName("tasks.corpus", str, "File of passages, or folder of an index (mem1 index)."),
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
        named = first if first and ("=" not in first or os.path.isfile(first)) else None
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
        if kind == "atlas" and self.sets("tasks.corpus") and not self.sets("tasks.kind"):
            raise UserError(
                "--corpus needs questions about it (--questions FILE; in mem1 run, --question), or tasks.kind=cloze"
            )
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
