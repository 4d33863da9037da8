"""What texts about an MCP server do not show: user, password and query of its address, and values that may be keys.

shown_address("https://joe:1234@host/mcp?key=5678")                       "https://host/mcp"
found = hidden("https://joe:1234@host/mcp?key=5678", ["s3cret"])
without(found, "401 for https://joe:1234@host/mcp?key=5678: s3cret")      "401 for https://host/mcp: ***"
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import parse_qsl, unquote, urlsplit

from mem1.engines.servers import may_be_secret

_SHORTEST = 6
"""Characters from which a value is looked for in texts, to be hidden."""
_USER = re.compile(r"(?<=//)[^/?#]*@")


def shown_address(address: str) -> str:
    """The address without its user and query, sound or not."""
    return _USER.sub("", re.split(r"[?#]", address, maxsplit=1)[0])


def hidden(address: str, keys: Iterable[str]) -> list[tuple[str, str]]:
    """(what is not shown, what stands in its place), of an address or a command, and of values that may be keys."""
    parts = urlsplit(address)
    user, at, _ = parts.netloc.rpartition("@")
    path = parts.path or "/"
    found = [(address, shown_address(address))]
    # libraries write the address in their own way, and other addresses of the server have the same user
    found += [(f"{user}@", "")] if at else []
    found += [(f"{path}?{parts.query}", path)] if parts.query else []
    queried = [value for name, value in parse_qsl(parts.query) if may_be_secret(name)]
    secret = {*keys, *queried, *user.split(":", 1), *map(unquote, user.split(":", 1))}
    return found + [(key, "***") for key in sorted(secret, key=len, reverse=True) if len(key) >= _SHORTEST]


def without(hidden: Iterable[tuple[str, str]], text: str) -> str:
    """The text without what is not shown."""
    for what, instead in hidden:
        text = text.replace(what, instead)
    return text
