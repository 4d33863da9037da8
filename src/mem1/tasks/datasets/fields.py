"""What every translation of a record is made of: fields read with errors that name them, and the sample it gives.

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
    """What one record of a file holds."""

    questions: tuple[Question, ...]
    """One; the hops of one, where a question was taken apart; several, where they were composed into a task; none,
    where the record is not to be asked."""
    passages: tuple[Passage, ...] = ()
    """The paragraphs that come with it, gold ones and distractors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How records are to be translated."""

    aliases: Aliases
    decompose: bool = False
    """Give the single hops of a question in place of the question."""


def identifier(value: Any) -> str:
    """An id, a string or a whole number, as a string. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        raise ValueError("a question needs an id, a string or a whole number")
    return str(value)


def text(record: Record, field: str) -> str:
    """A field that is a string. Raises ValueError where it is missing or something else."""
    value = record.get(field)
    if not isinstance(value, str):
        raise ValueError(f"{field!r} must be a string, not {shown(value)}")
    return value


def items(record: Record, field: str) -> list[Any]:
    """A field that is a list. Raises ValueError where it is missing or something else."""
    value = record.get(field)
    if not isinstance(value, list):
        raise ValueError(f"{field!r} must be a list, not {shown(value)}")
    return value


def mapping(value: Any, what: str) -> Record:
    """An object of JSON. Raises ValueError for anything else."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be an object, not {shown(value)}")
    return value


def strings(values: Any, what: str) -> tuple[str, ...]:
    """A list of strings, blank ones left out; none for None. Raises ValueError for anything else."""
    if values is None:
        return ()
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{what} must be a list of strings, not {shown(values)}")
    return tuple(value for value in values if value.strip())


def distinct(values: Iterable[str]) -> tuple[str, ...]:
    """Each value once, in the order in which it comes first; blank ones left out."""
    return tuple(dict.fromkeys(value for value in values if value.strip()))


def first(record: Record, names: Iterable[str]) -> Any:
    """The value under the first of `names` that the record has; None where it has none of them."""
    return next((record[name] for name in names if name in record), None)


def hashed(source: str, *parts: str) -> str:
    """An id for what has none: the same for the same content, whatever file it came in."""
    return f"{source}:{hashlib.sha256(chr(0).join(parts).encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def passage(source: str, title: str, content: str) -> Passage:
    """A passage whose id is its content's. Raises ValueError where the text is empty."""
    return Passage(hashed(source, title, content), title, content)


def shown(value: Any) -> str:
    """A value as an error quotes it: short."""
    quoted = repr(value)
    return quoted if len(quoted) <= 80 else f"{quoted[:80]} ..."
