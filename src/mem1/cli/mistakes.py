"""Errors that end a command, as one message: mistakes of the user, and what the system refuses.

    PermissionError(13, "Permission denied", "runs/a")
    ->  runs/a: Permission denied; check who may read and write it, or give another path

`main` prints these and exits with 2. An error without a message here is a bug of mem1 and keeps its stack trace.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

import pydantic
import typer

from mem1.configuration.mistakes import explain_unknown
from mem1.errors import UserError

EXIT_MISTAKE = 2
EXIT_INTERRUPTED = 130

CommandLineError: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)
"""Typer's error for a command line that it cannot read; Typer has no public name for it."""

_NEXT_STEP = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "free some space, or raise the limit of a file's size",
    errno.EROFS: "nothing can be written there; give another path",
    errno.EACCES: "check who may read and write it, or give another path",
    errno.EPERM: "check who may read and write it, or give another path",
    errno.EISDIR: "give a file",
    errno.ENOTDIR: "a part of the path is a file; give another path",
    errno.EEXIST: "give another path",
    errno.ENAMETOOLONG: "give a shorter path",
    errno.ELOOP: "its links lead in a circle; give another path",
    errno.ENOENT: "check the path",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENOMEM: "close other programs, or ask for less",
    errno.EADDRINUSE: "give another --port",
    errno.EADDRNOTAVAIL: "give another --host",
}


def ended_by(error: Exception) -> str | None:
    """The message for an error that the user can put right, "" if help was printed; None: a bug of mem1."""
    if isinstance(error, CommandLineError):
        return _of_the_command_line(error)
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, pydantic.ValidationError):
        return explain_unknown(error)
    if isinstance(error, OSError):
        return _of_the_system(error)
    if isinstance(error, MemoryError):
        return "the machine's memory is full; ask for less, or close other programs"
    return None


def _of_the_command_line(error: Any) -> str:
    """Typer's message on a command line that it cannot read, with the command for help; "": help was printed."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return ""
    message = error.format_message().rstrip(".")
    where = getattr(error, "ctx", None)
    joint = " See" if message.endswith("?") else "; see"
    return f"{message}{joint} {where.command_path} --help" if where is not None else message


def _of_the_system(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    places = [os.fsdecode(place) for place in (error.filename, error.filename2) if isinstance(place, (str, bytes))]
    where = f"{' and '.join(places)}: " if places else ""
    step = _NEXT_STEP.get(error.errno or 0)
    return f"{where}{reason}" + ("" if step is None else f"; {step}")


def check_text(arguments: Sequence[str]) -> list[str]:
    """The arguments unchanged. Raises UserError for one that is not text, which no file could hold."""
    for number, argument in enumerate(arguments, start=1):
        if "\0" in argument or any("\ud800" <= character <= "\udfff" for character in argument):
            raise UserError(f"argument {number}, {argument!r}, is not UTF-8 text; write it in UTF-8")
    return list(arguments)
