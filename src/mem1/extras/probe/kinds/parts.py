"""What a kind of transcript is made of: exchanges, and what each of them tells.

    Told(kind="date", cloze="The audit is on ____.", forms=("3 May 2027", "May 3, 2027", "2027-05-03"), subject="audit")
    Exchange("read_mail", {"id": 7}, "From: ...", told=(...))        a call, its result, and facts in the result

A kind makes exchanges for ever; `Draft` takes as many as there shall be, and picks facts from what they tell. What may
be overtaken has a `key`; `Wanted.taken` has the keys of facts that were picked, so that a kind can overtake them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

from mem1.tasks import compose
from mem1.tasks.atlas.world import split_of_name
from mem1.tasks.english.world import MONTHS

Split = Literal["development", "test"]
Wordings = Literal["usual", "other"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How large transcripts are, and what they are made from."""

    exchanges: int = 200
    """Calls with their results."""
    corpus: Path | None = None
    """Passages for `search`: lines of JSON with id, title and text, gzipped or not; None: there are none."""
    repository: Path = Path(".")
    """Git checkout for `software`. It is only read."""
    result_words: int = 120
    """About the most words of a result, without what is planted in it."""
    wordings: Wordings = "usual"
    """How planted facts are said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A fact before it has a message; fields as in `Fact`."""

    kind: str
    cloze: str
    forms: tuple[str, ...]
    subject: str = ""
    key: str = ""
    """What it is about, if it may be overtaken; of a correction, what it overtakes. Empty: neither."""
    label: str = ""
    """What a note calls it, such as "Elmwick inhabitants"; a correction, as what it overtakes. Empty: its subject."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A call, its result, and the facts that the result states."""

    tool: str
    arguments: Mapping[str, Any]
    result: str
    told: tuple[Told, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a kind has to know to make a transcript."""

    random: Random
    split: Split
    settings: Settings
    taken: Mapping[str, Told]
    """Key -> the fact that was picked and is not overtaken yet; grows while exchanges are drawn."""

    @property
    def half(self) -> compose.Split:
        """The half of all invented names that this split uses."""
        return "train" if self.split == "development" else "evaluation"

    def corrects(self, due: int) -> bool:
        """Whether the next exchange corrects one of `due` facts: each waits for a quarter of the transcript."""
        return self.random.random() < 4 * due / self.settings.exchanges


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """An agent at work."""

    system: str
    task: str
    note: str
    """How a planted sentence stands among the lines of a result: "[note] {}"."""
    exchanges: Iterator[Exchange]
    """Endless."""


Maker = Callable[[Wanted], Scene]


def split_of(text: str) -> Split:
    """The split to which something real belongs: a title, a path, a commit."""
    return "test" if zlib.crc32(text.encode()) % 2 else "development"


def in_half(text: str, half: compose.Split) -> bool:
    """Whether an invented value is of this half."""
    return split_of_name("probe", text) == half


def dated(day: int, month: str, year: int) -> tuple[str, ...]:
    """dated(3, "May", 1961)  ->  ("3 May 1961", "May 3, 1961", "1961-05-03")"""
    return f"{day} {month} {year}", f"{month} {day}, {year}", f"{year}-{MONTHS.index(month) + 1:02d}-{day:02d}"


def plain(number: str) -> tuple[str, ...]:
    """A number with and without its commas: plain("48,213")  ->  ("48,213", "48213")"""
    return tuple(dict.fromkeys((number, number.replace(",", ""))))


def cut(text: str, words: int) -> str:
    """The first `words` words of a text in one line."""
    return " ".join(text.split()[:words])


def cut_lines(lines: Sequence[str], words: int) -> list[str]:
    """The first lines with no more than `words` words together; at least one."""
    kept: list[str] = []
    for line in lines:
        words -= len(line.split())
        if words < 0 and kept:
            break
        kept.append(line)
    return kept
