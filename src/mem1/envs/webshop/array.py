"""A JSON array of objects, read one by one: WebShop's 1.18 million products are one of 5.5 gigabytes.

read_array("items_shuffle.json")  ->  (1, {"asin": "B0...", ...}), (2, {...}), ...
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any, TextIO

from mem1.errors import UserError

_CHUNK = 1 << 20
_LARGEST = 1 << 26
"""Characters of one object; where so many make none, the file is broken, and is not read to its end."""
_BETWEEN = re.compile(r"[\s,]*")


def read_array(path: str | os.PathLike[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number, from 1, and object. Raises UserError where the file is missing, cut short, or something else."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            yield from _objects(file, path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error.reason})") from error


def _objects(file: TextIO, path: str | os.PathLike[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    decode = json.JSONDecoder().raw_decode
    text = file.read(_CHUNK).lstrip()
    if not text.startswith("["):
        raise UserError(f"{path}: a JSON array of products must stand there; it begins with {text[:20]!r}")
    number, at = 1, 1
    while True:
        at = _after(text, at)
        if text.startswith("]", at):
            return
        try:
            value, at = decode(text, at)
        except (json.JSONDecodeError, RecursionError) as error:
            # perhaps the rest of the object has not been read; as much again, so that long ones cost no more
            more = file.read(max(_CHUNK, len(text) - at)) if len(text) - at < _LARGEST else ""
            if not more:
                raise UserError(f"{path}: product {number} is not whole JSON; is the file cut short?") from error
            text, at = text[at:] + more, 0
            continue
        if not isinstance(value, dict):
            raise UserError(f"{path}: product {number} must be a JSON object, not {type(value).__name__}")
        yield number, value
        number += 1


def _after(text: str, at: int) -> int:
    match = _BETWEEN.match(text, at)
    return match.end() if match else at
