"""TOML files read and written, and `key=value` overrides, as plain tables.

    read_toml("quick.toml")                                 ->  {"steps": 40}
    apply_override(table, "sampler.temperature=0.7")        ->  ("sampler", "temperature"), and the table has it
    dumps({"steps": 40, "sampler": {"sizes": [1, 2]}})      ->  'steps = 40\\n\\n[sampler]\\nsizes = [1, 2]\\n'

Which keys are right is checked elsewhere (`model.py`).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from mem1.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]  # Python 3.10 only


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SHORT_ARRAY = re.compile(r"\[\n((?: +[^\n\[\]]+,\n)+) *\]")
"""An array of plain values, one per line."""


def read_toml(path: str | Path) -> dict[str, Any]:
    """The file's tables as dicts. Raises UserError where it is missing, not text, or not TOML (line and column)."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file; give the path of a TOML file, such as recipes/atlas-quick.toml"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give the path of a TOML file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not valid TOML: {error}; correct that line") from error
    except (ValueError, RecursionError) as error:  # a path with NUL, a number of 5,000 digits, endless nesting
        raise UserError(f"{path}: cannot be read as TOML ({error}); correct it") from error


def apply_override(data: dict[str, Any], override: str) -> tuple[str, ...]:
    """Put one override into `data`; returns its key's parts.

        {"a": {"b": 1}}, "a.c=[2]"  ->  {"a": {"b": 1, "c": [2]}}, returns ("a", "c")

    Raises UserError where it has no "=", no valid key, or goes through a value or past the end of a list.
    """
    name, equals, text = override.partition("=")
    if not equals:
        raise UserError(
            f"command line: {override!r} is not an override; write key=value, such as rl.learning_rate=1e-4"
        )
    keys = _key_parts(name.strip(), override)
    section: Any = data
    for depth, key in enumerate(keys):
        spot = _spot(section, key, override, above=key_text(*keys[:depth]))
        if depth + 1 == len(keys):
            section[spot] = _value(text)
        else:
            section = section.setdefault(spot, {}) if isinstance(section, dict) else section[spot]
    return keys


def _spot(section: Any, key: str, override: str, *, above: str) -> str | int:
    """`key` as an index of `section`, the value of the key `above`."""
    if isinstance(section, dict):
        return key
    if not isinstance(section, list):
        raise UserError(f"command line: {override!r}: {above} is a value, not a section; set {above} itself")
    if not (key.isdecimal() and int(key) < len(section)):
        raise UserError(
            f"command line: {override!r}: {above} is a list of {len(section)}, counted from 0, without entry {key!r}"
        )
    return int(key)


def _key_parts(name: str, override: str) -> tuple[str, ...]:
    """TOML's own rules:   corpora."my.set".path  ->  ("corpora", "my.set", "path")"""
    try:
        table: Any = tomllib.loads(f"{name} = 0")
    except (ValueError, RecursionError):
        raise UserError(f"command line: {override!r} has no valid key before the '='; write key=value") from None
    parts: list[str] = []
    while isinstance(table, dict):
        ((key, table),) = table.items()
        parts.append(key)
    return tuple(parts)


def _value(text: str) -> Any:
    """A TOML value, None for null, else the text itself."""
    if text.strip() == "null":
        return None
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    except (ValueError, RecursionError) as error:  # 5,000 digits, or endless nesting
        shown = repr(text) if len(text) <= 40 else f"{text[:40]!r}..."
        raise UserError(f"command line: {shown} is no value of a recipe ({error})") from error
    return parsed["value"] if len(parsed) == 1 else text


def dumps(table: Mapping[str, Any]) -> str:
    """The table as a TOML document, arrays of plain values on one line; a reader gives back an equal table.

    Raises TypeError where a value is not a string, boolean, number, list or mapping of them: TOML has no null.
    """

    def on_one_line(array: re.Match[str]) -> str:
        return "[" + ", ".join(line.strip().removesuffix(",") for line in array[1].split("\n")[:-1]) + "]"

    return _SHORT_ARRAY.sub(on_one_line, tomli_w.dumps(table))


def key_text(*keys: str | int) -> str:
    """A dotted key, quoted where TOML requires it.   key_text("corpora", "my.set")  ->  corpora."my.set" """
    return ".".join(k if _BARE_KEY.fullmatch(k) else value_text(k) for k in map(str, keys))


def value_text(value: Any) -> str:
    """One value on one line, for messages.   value_text({"k": [1, 2.5]})  ->  {k = [1, 2.5]}"""
    if isinstance(value, list):
        return "[" + ", ".join(map(value_text, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key_text(k)} = {value_text(v)}" for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)
