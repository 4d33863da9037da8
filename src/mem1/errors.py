"""One exception for everything that a user can put right; the command line prints it without a stack trace.

printable("a\\x1b[2J.txt")            ->  "a\\\\x1b[2J.txt"     a terminal obeys no name of a file, and no server
suggestion("flod(8)", POLICIES)    ->  " (did you mean fold(8)?)"
"""

from __future__ import annotations

import difflib
import errno
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_BREAKS = (ArithmeticError, AttributeError, EOFError, LookupError, OSError, RecursionError, TypeError, ValueError)
"""Errors of a loader that is given other types, shapes or numbers than those that were written."""
_ABSENT = (None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL)
"""Errors of the system that say something of a file, not of the system; None: of a loader."""
_UNPRINTED = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


class UserError(ValueError):
    """Bad configuration, data or model: the message says what is wrong, where, and the next step."""


class Damaged(UserError):
    """A folder that mem1 can make again: it is missing, of another version, or not as it was written."""

    def __init__(self, why: str, then: str = "make it again") -> None:
        super().__init__(why, then)
        self.why = why
        """What is wrong, without the next step."""

    def __str__(self) -> str:
        return "; ".join(self.args)


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one, with the same brackets; None if none is like it, or it is that."""
    head, bracket, arguments = name.partition("(")
    found = difflib.get_close_matches(head, [*known], n=1)
    return f"{found[0]}{bracket}{arguments}" if found and found[0] != head else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """The closest known name as a question, to follow an unknown one; "" if none is like it."""
    found = closest(name, known)
    return "" if found is None else f" (did you mean {found}?)"


@contextmanager
def read_as_written(what: str, next_step: str, *, besides: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raises Damaged in place of whatever files that are whole, but hand-made, make a loader raise, and UserError where
    the system cannot read them.

    `what` names the files and what they should be; `besides` are errors of the loader's own.
    """
    try:
        yield
    except UserError:
        raise
    except (*_BREAKS, *besides) as error:
        if isinstance(error, OSError) and error.errno not in _ABSENT:
            raise UserError(f"{what}, or it cannot be read now ({error})") from error
        raise Damaged(f"{what} as mem1 writes them ({type(error).__name__}: {error})", next_step) from error


def printable(text: str) -> str:
    """The text with control characters, and invisible ones that turn its direction, written as escapes.

    Line ends and tabs stay. Half a surrogate pair, which names of files may hold, is escaped too.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in _UNPRINTED else _escaped(c) for c in text)


def _escaped(c: str) -> str:
    number = ord(c)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
