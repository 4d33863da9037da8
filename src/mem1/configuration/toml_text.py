"""Plain values written as TOML, which Python's standard library only reads.

    dumps({"steps": 40, "sampler": {"temperature": 0.7}})  ->  'steps = 40\\n\\n[sampler]\\ntemperature = 0.7\\n'

Source of the syntax: TOML 1.0.0, https://toml.io/en/v1.0.0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def dumps(table: Mapping[str, Any]) -> str:
    """The table as a TOML document; a reader gives back an equal one.

    Values are strings, booleans, integers, floats (inf and nan too), lists and mappings of them.
    Raises TypeError on anything else, None included: TOML has no null.
    """
    return "\n".join(_lines(table, ())).strip("\n") + "\n"


def key_text(*keys: str | int) -> str:
    """A dotted key, quoted where TOML asks for it.   key_text("corpora", "my.set")  ->  corpora."my.set" """
    return ".".join(k if _BARE_KEY.fullmatch(k) else _string(k) for k in map(str, keys))


def value_text(value: Any) -> str:
    """One value on one line.   value_text({"k": [1, 2.5]})  ->  {k = [1, 2.5]}"""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(value_text, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key_text(k)} = {value_text(v)}" for k, v in value.items()) + "}"
    raise TypeError(f"TOML has no value for {value!r} ({type(value).__name__})")


def _string(text: str) -> str:
    # JSON's escapes are TOML's, except that TOML wants DEL escaped as well.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Plain values first: after a sub-table's header they would belong to it."""
    sections = {k: v for k, v in table.items() if isinstance(v, Mapping) or _is_table_array(v)}
    for key, value in table.items():
        if key not in sections:
            yield f"{key_text(key)} = {value_text(value)}"
    for key, value in sections.items():
        name = key_text(*path, key)
        entries = [("[" + name + "]", value)] if isinstance(value, Mapping) else [(f"[[{name}]]", v) for v in value]
        for header, entry in entries:
            yield ""
            yield header
            yield from _lines(entry, (*path, key))


def _is_table_array(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) for v in value)
