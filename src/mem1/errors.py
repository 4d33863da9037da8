"""One exception for everything that a user can put right; the command line prints it without a stack trace.

printable("a\\x1b[2J.txt")  ->  "a\\\\x1b[2J.txt"     a terminal obeys no name of a file, and no server
"""

from __future__ import annotations

import unicodedata

_UNPRINTED = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


class UserError(ValueError):
    """Bad configuration, data or model: the message says what is wrong, where, and the next step."""


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
