"""A question with a blank, its options and its file.

    Cloze(passage_id="p3", title="Alvex", start=5, text="Alvex was founded by ____ in the year 1901 and", ...)
    one line of a file: {"id": "p3:5", "text": ..., "answers": ["Mira Toll"], "passage_ids": ["p3"], "rank": 1}

A line is a question in our own format, plus the rank, so every reader of questions reads it.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import Field, model_validator

from mem1.configuration import Config
from mem1.configuration.model import Seed
from mem1.errors import UserError
from mem1.jsonl import read_objects, write_objects
from mem1.records import Question
from mem1.scoring import normalize
from mem1.tasks.compose import Part
from mem1.tasks.datasets.own import question_from, question_record


class ClozeOptions(Config):
    """How questions are made; the same options and corpus give the same questions."""

    left: int = Field(default=6, ge=3)
    """Words before the blank."""
    right: int = Field(default=4, ge=0)
    """Words after the blank; if one side has too few, the other provides more."""
    per_passage: int = Field(default=6, ge=1)
    """Maximum number of questions per passage, drawn from all candidates."""
    within: int = Field(default=2, ge=1)
    """Number of results of a search with the window that must include its passage."""
    development: float = Field(default=0.05, ge=0, lt=1)
    """Share of passages whose questions are for choosing between policies."""
    test: float = Field(default=0.05, ge=0, lt=1)
    """Share of passages whose questions are for the final number."""
    seed: Seed = 0
    """Seed of the draw of `per_passage`."""

    @model_validator(mode="after")
    def _something_is_left_to_train(self) -> ClozeOptions:
        if self.development + self.test >= 1:
            raise ValueError("development and test are shares of the passages; their sum must be below 1")
        return self


BLANK = "____"
"""Replaces the answer."""
SOURCE = "cloze"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloze:
    """One blanked fact."""

    passage_id: str
    title: str
    """Title of the passage, not shown in the question."""
    start: int
    """Index, from 0, of the answer's first word in the passage; with the passage it identifies the question."""
    text: str
    """The window: the words around the answer, with `BLANK` in its place."""
    answer: str
    """The answer as written in the passage."""
    part: Part
    rank: int | None = None
    """Rank of the passage in a search with `text`, from 1; None: not searched, or not found."""

    def question(self) -> Question:
        """The cloze as a question that one search answers."""
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
    """A question from a file, with its difficulty."""

    question: Question
    rank: int

    @property
    def words(self) -> int:
        """Words of the window, without the blank."""
        return len(self.question.text.split()) - 1

    @property
    def passage(self) -> str:
        return self.question.passage_ids[0]


def write_clozes(path: str | os.PathLike[str], clozes: Iterable[Cloze]) -> None:
    """Write one line per question, for `read_ranked`. Raises UserError if the file cannot be written."""
    write_objects(path, ({**question_record(cloze.question()), "rank": cloze.rank} for cloze in clozes))


def read_ranked(path: str | os.PathLike[str]) -> list[Ranked]:
    """Every question of a file. Raises UserError, with file and line, for a line that `write_clozes` did not write."""
    found = []
    for number, record in read_objects(path):
        try:
            question, rank = question_from(record), record.get("rank")
            if not isinstance(rank, int) or rank < 1 or len(question.passage_ids) != 1:
                raise ValueError(f"question {question.id!r} has no rank, or not one passage")
        except ValueError as error:
            raise UserError(f"{path}:{number}: {error}; make the questions again with mem1 data") from error
        found.append(Ranked(question, rank))
    return found


_HYPHENS = dict.fromkeys(map(ord, "-\u2010\u2011\u2013"), " ")


def aliases(answer: str) -> tuple[str, ...]:
    """The answer and its other spellings, distinct after the scorer's normalisation (case, punctuation, articles).

    aliases("Jean-Luc Müller")  ->  ("Jean-Luc Müller", "Jean Luc Müller", "Jean-Luc Muller", "Jean Luc Muller")
    aliases("1,200")            ->  ("1,200",)      the scorer drops the comma
    """
    spellings = [answer, answer.translate(_HYPHENS)]
    spellings += [_without_accents(spelling) for spelling in spellings]
    kept: dict[str, str] = {}
    for spelling in spellings:
        kept.setdefault(normalize(spelling), spelling)
    return tuple(kept.values())


def _without_accents(text: str) -> str:
    letters = unicodedata.normalize("NFKD", text)
    return unicodedata.normalize("NFC", "".join(c for c in letters if not unicodedata.combining(c)))
