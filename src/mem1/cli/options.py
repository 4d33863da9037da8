"""What all commands have in common: how an option is tied to the setting it fills, and how numbers are read.

left: Annotated[int, typer.Option(min=3, help="Words shown before the blank."),
                Fills("mem1.tasks.cloze.questions:ClozeOptions.left")] = 6

The default and the range of such an option are those of the setting. They are written down here as well, so that
`--help` need not load torch; a test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from mem1.configuration.numbers import LARGEST
from mem1.errors import UserError


@dataclass(frozen=True, slots=True)
class Fills:
    """The setting that an option fills: "module:Class.field", or "module:function.parameter"."""

    setting: str


class Command(TyperCommand):
    """A command whose numbers are finite, and whole numbers no larger than any setting takes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        for parameter in self.params:
            value = ctx.params.get(parameter.name)
            for number in value if isinstance(value, (list, tuple)) else (value,):
                check_number(number, parameter.opts[0])
        return rest


def make_folder_of(file: Path) -> None:
    """Make the folder that a file is to be written to; before the work, so that a wrong path costs nothing."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{file}: its folder cannot be made ({error.strerror}); give another path") from error
    if file.is_dir():
        raise UserError(f"{file} is a folder; give the name of a file in it")


def is_given(invocation: typer.Context, option: str) -> bool:
    """Whether the option of this name (of the parameter) stands on the command line."""
    source = invocation.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def refuse(invocation: typer.Context, *options: str, because: str) -> None:
    """Raises UserError where one of these options is given, which would be of no effect."""
    names = {option.name: option.opts[0] for option in invocation.command.params}
    if found := [names[option] for option in options if is_given(invocation, option)]:
        raise UserError(f"{', '.join(found)}: {because}")


_ONLY_CHECKED: ContextVar[bool] = ContextVar("only_checked", default=False)


@contextmanager
def only_checked() -> Iterator[None]:
    """Inside, commands check their options and end where their work would begin."""
    token = _ONLY_CHECKED.set(True)
    try:
        yield
    finally:
        _ONLY_CHECKED.reset(token)


def work_begins() -> None:
    """Marks where a command has checked what it was given, before it loads models, opens ports or writes."""
    if _ONLY_CHECKED.get():
        raise typer.Exit


def check_number(value: object, name: str) -> None:
    """Raises UserError where `value` is a number that is not finite or too large; `name` is the option's."""
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{name} takes a finite number, not {value}")
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) > LARGEST:
        raise UserError(f"{name} takes numbers up to {LARGEST:,}, not {value}")
