"""Keys of servers, each in the one environment variable that is named for it, and never shown.

BRAVE_API_KEY=" abc123\n"    read_key("BRAVE_API_KEY")  ->  "abc123"      as `export KEY="$(cat file)"` may leave it
"""

from __future__ import annotations

import os

from mem1.errors import UserError


def read_key(variable: str) -> str:
    """The key in an environment variable; empty where it is not set.

    Raises UserError, without showing what is there, where that cannot be sent as a key.
    """
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise UserError(
            f"the environment variable {variable} holds no API key: it holds blanks or characters that no key has; "
            "set it again"
        )
    return key
