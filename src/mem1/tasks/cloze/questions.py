"""How questions are made from a corpus."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import Field, model_validator

from mem1.configuration import Config
from mem1.configuration.numbers import Seed
from mem1.errors import UserError
from mem1.jsonl import read_objects, write_objects
from mem1.records import Question
from mem1.scoring import normalize
from mem1.tasks.datasets.own import question_from, question_record
from mem1.tasks.splits import Part


class ClozeOptions(Config):
    """The same options and the same corpus give the same questions."""

    left: int = Field(default=6, ge=3)
    """Words shown before the blank."""
    right: int = Field(default=4, ge=0)
    """Words shown after it; where one side has too few, the other gives more."""
    per_passage: int = Field(default=6, ge=1)
    """Questions of one passage at most, drawn among all that it has."""
    within: int = Field(default=2, ge=1)
    """Results of a search with the window among which its passage has to be."""
    development: float = Field(default=0.05, ge=0, lt=1)
    """Share of the passages whose questions are for choosing between policies."""
    test: float = Field(default=0.05, ge=0, lt=1)
    """Share of the passages whose questions are for the final number."""
    seed: Seed = 0
    """Of the draw of `per_passage`."""

    @model_validator(mode="after")
    def _something_is_left_to_train(self) -> ClozeOptions:
        if self.development + self.test >= 1:
            raise ValueError("development and test are shares of the passages; together they must be below 1")
        return self


BLANK = "____"
"""Stands where the answer stood."""
SOURCE = "cloze"


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


_HYPHENS = dict.fromkeys(map(ord, "-\u2010\u2011\u2013"), " ")


def aliases(answer: str) -> tuple[str, ...]:
    """The answer first, then its other spellings, none twice after normalisation."""
    spellings = [answer, answer.translate(_HYPHENS)]
    spellings += [_without_accents(spelling) for spelling in spellings]
    kept: dict[str, str] = {}
    for spelling in spellings:
        kept.setdefault(normalize(spelling), spelling)
    return tuple(kept.values())


def _without_accents(text: str) -> str:
    letters = unicodedata.normalize("NFKD", text)
    return unicodedata.normalize("NFC", "".join(c for c in letters if not unicodedata.combining(c)))
