"""Building blocks for translating records: readers of fields whose errors name the field, and the resulting sample.

text({"question": "Who?"}, "question")          ->  "Who?"
strings(["A", " "], "the answers")              ->  ("A",)      a blank gold alias would match an empty answer
passage("hotpotqa", "Oslo", "Oslo is a city.")  ->  Passage("hotpotqa:2f0c…", "Oslo", "Oslo is a city.")
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mem1.records import Passage, Question

Record = Mapping[str, Any]
Aliases = Mapping[str, tuple[str, ...]]
"""Wikidata id of an answer -> its other names."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The content of one record of a file."""

    questions: tuple[Question, ...]
    """One question, the hops of a decomposed one, the questions of a composed task, or none if the record is to be
    skipped."""
    passages: tuple[Passage, ...] = ()
    """The paragraphs of the record, gold ones and distractors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How to translate records."""

    aliases: Aliases
    decompose: bool = False
    """Replace a question by its single hops."""


def identifier(value: Any) -> str:
    """An id, a string or an integer, as a string. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        raise ValueError("a question needs an id, a string or an integer")
    return str(value)


def text(record: Record, field: str) -> str:
    """A field that must be a string. Raises ValueError if it is not."""
    value = record.get(field)
    if not isinstance(value, str):
        raise ValueError(f"{field!r} must be a string, not {shown(value)}")
    return value


def items(record: Record, field: str) -> list[Any]:
    """A field that must be a list. Raises ValueError if it is not."""
    value = record.get(field)
    if not isinstance(value, list):
        raise ValueError(f"{field!r} must be a list, not {shown(value)}")
    return value


def mapping(value: Any, what: str) -> Record:
    """A value that must be a JSON object. Raises ValueError if it is not."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be an object, not {shown(value)}")
    return value


def strings(values: Any, what: str) -> tuple[str, ...]:
    """A list of strings without blank ones; empty for None. Raises ValueError for anything else."""
    if values is None:
        return ()
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{what} must be a list of strings, not {shown(values)}")
    return tuple(value for value in values if value.strip())


def distinct(values: Iterable[str]) -> tuple[str, ...]:
    """The distinct values in their original order, without blank ones."""
    return tuple(dict.fromkeys(value for value in values if value.strip()))


def first(record: Record, names: Iterable[str]) -> Any:
    """The value of the first of `names` that the record has; None without any."""
    return next((record[name] for name in names if name in record), None)


def hashed(source: str, *parts: str) -> str:
    """An id made from content, the same in every file."""
    return f"{source}:{hashlib.sha256(chr(0).join(parts).encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def passage(source: str, title: str, content: str) -> Passage:
    """A passage with an id made from its content. Raises ValueError for an empty text."""
    return Passage(hashed(source, title, content), title, content)


def shown(value: Any) -> str:
    """A value, shortened for an error message."""
    quoted = repr(value)
    return quoted if len(quoted) <= 80 else f"{quoted[:80]} ..."
