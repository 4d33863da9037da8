"""A question with a blank, where it comes from, and which part of the corpus its passage belongs to.

    Cloze(passage_id="p3", title="Alvex", start=5, text="Alvex was founded by ____ in the year 1901 and", ...)
    one line of a file: {"id": "p3:5", "text": ..., "answers": ["Mira Toll"], "passage_ids": ["p3"], "rank": 1}

The line is our own form of a question with the rank beside it, so every reader of questions reads it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mem1.errors import UserError
from mem1.jsonl import read_objects, write_objects
from mem1.records import Passage, Question
from mem1.scoring import normalize
from mem1.tasks.cloze.aliases import aliases
from mem1.tasks.datasets.own import question_from, question_record

BLANK = "____"
"""Stands where the answer stood."""
SOURCE = "cloze"
Part = Literal["train", "development", "test"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloze:
    """One blanked fact."""

    passage_id: str
    title: str
    """Of the passage; not shown in the question."""
    start: int
    """Which word of the passage the answer begins with, from 0; with the passage it names the question."""
    text: str
    """The words around the answer, `BLANK` in its place."""
    answer: str
    """As it stands in the passage."""
    part: Part
    rank: int | None = None
    """Place of the passage in a search with `text`, from 1; None: not searched."""

    def question(self) -> Question:
        """As it is asked: one search finds the passage."""
        return Question(
            id=f"{self.passage_id}:{self.start}",
            text=self.text,
            answers=aliases(self.answer),
            source=SOURCE,
            hops=1,
            passage_ids=(self.passage_id,),
            titles=(self.title,) if self.title.strip() else (),
        )


@dataclass(frozen=True, slots=True)
class Ranked:
    """A question of a file, with what makes it easy or hard."""

    question: Question
    rank: int

    @property
    def words(self) -> int:
        """Words of the window, the blank not counted."""
        return len(self.question.text.split()) - 1

    @property
    def passage(self) -> str:
        return self.question.passage_ids[0]


def part_of(passage: Passage, *, development: float, test: float) -> Part:
    """By a hash of the passage's text, so it is the same in every file and every order, and for every copy.

    Larger shares only move passages out of training.
    """
    key = (normalize(passage.text) or passage.text).encode("utf-8", "surrogatepass")
    drawn = int.from_bytes(hashlib.sha256(key).digest()[:8], "big") / 2**64
    if drawn < test:
        return "test"
    return "development" if drawn >= 1 - development else "train"


def write_clozes(path: str | os.PathLike[str], clozes: Iterable[Cloze]) -> None:
    """One line a question; `read_ranked` reads it. Raises UserError where the file cannot be written."""
    write_objects(path, map(_line, clozes))


def _line(cloze: Cloze) -> dict[str, Any]:
    return {**question_record(cloze.question()), "rank": cloze.rank}


def read_ranked(path: str | os.PathLike[str]) -> list[Ranked]:
    """Every question of a file. Raises UserError, with file and line, for what `write_clozes` does not write."""
    return list(_read(path))


def _read(path: str | os.PathLike[str]) -> Iterator[Ranked]:
    for number, record in read_objects(path):
        try:
            question, rank = question_from(record), record.get("rank")
            if not isinstance(rank, int) or rank < 1 or len(question.passage_ids) != 1:
                raise ValueError(f"question {question.id!r} has no rank, or not one passage")
        except ValueError as error:
            raise UserError(f"{path}:{number}: {error}; make the questions again with mem1 data cloze") from error
        yield Ranked(question, rank)
