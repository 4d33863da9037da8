"""One exception for everything that a user can put right; the command line prints it without a stack trace.

printable("a\\x1b[2J.txt")  ->  "a\\\\x1b[2J.txt"     a terminal obeys no name of a file, and no server
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager

_BREAKS = (ArithmeticError, AttributeError, EOFError, LookupError, OSError, RecursionError, TypeError, ValueError)
"""What a loader may raise that is given other types, shapes or numbers than those that were written."""
_UNPRINTED = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


class UserError(ValueError):
    """Bad configuration, data or model: the message says what is wrong, where, and the next step."""


@contextmanager
def read_as_written(what: str, next_step: str, *, besides: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raises UserError in place of whatever files that are whole, but hand-made, make a loader raise.

    `what` names the files and what they should be; `besides` are errors of the loader's own.
    """
    try:
        yield
    except UserError:
        raise
    except (*_BREAKS, *besides) as error:
        raise UserError(f"{what} as mem1 writes them ({type(error).__name__}: {error}); {next_step}") from error


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
