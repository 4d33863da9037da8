"""Every command of the command line with its options, as the tests walk them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args, get_origin

import typer

from mem1.cli.main import app
from mem1.cli.options import Command, Fills, Group


@dataclass(frozen=True)
class Option:
    """One parameter of a command."""

    command: tuple[str, ...]
    name: str
    """On the command line, such as --top-k; of an argument, that of the parameter."""
    kind: type
    """int, float, str, bool or Path."""
    several: bool
    required: bool
    default: Any
    argument: bool
    low: float | None
    high: float | None
    fills: str | None
    """The setting that it fills; None: none."""

    def __str__(self) -> str:
        return f"mem1 {' '.join(self.command)} {self.name}"


def walk() -> dict[tuple[str, ...], list[Option]]:
    """("webshop", "load") -> its options; every command that there is."""
    return {path: list(_options(path, command)) for path, command in _commands(typer.main.get_command(app), ())}


def _commands(group: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        if not hasattr(command, "commands") or command.invoke_without_command:
            kinds = (Command, Group)
            assert isinstance(command, kinds), f"mem1 {name}: register it with cls=Command, which checks its numbers"
            yield (*path, name), command


def _options(path: tuple[str, ...], command: Any) -> Iterator[Option]:
    signature = inspect.signature(inspect.unwrap(command.callback), eval_str=True)
    for parameter in command.params:
        if parameter.name == "help":
            continue
        declared = signature.parameters[parameter.name]
        kind, *notes = get_args(declared.annotation)
        (info,) = (note for note in notes if hasattr(note, "param_decls"))
        members = [member for member in get_args(kind) or (kind,) if member is not type(None)]
        single = members[0]
        several = get_origin(kind) is list or get_origin(single) is list
        if get_origin(single) is list:
            (single,) = get_args(single)
        yield Option(
            command=path,
            name=parameter.name if isinstance(info, typer.models.ArgumentInfo) else parameter.opts[0],
            kind=single,
            several=several,
            required=declared.default is inspect.Parameter.empty,
            default=declared.default,
            argument=isinstance(info, typer.models.ArgumentInfo),
            low=info.min,
            high=info.max,
            fills=next((note.setting for note in notes if isinstance(note, Fills)), None),
        )
