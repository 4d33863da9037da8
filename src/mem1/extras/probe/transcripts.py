"""Transcripts of agents, and the facts in them that a later turn may need.

    {"kind": "office", "messages": [...], "facts": [
        {"kind": "path", "cloze": "The limits are set in ____.", "forms": ["/srv/eu/limits.toml"], "message": 7},
        {"kind": "date", "cloze": "The audit is on ____.", "forms": ["3 May 2027", "May 3, 2027"], "message": 9,
         "stale": ["1 May 2027"], "subject": "audit"}]}

A file has one transcript per line, of your own agent if you like; messages are OpenAI chat messages. `message` is the
index of the message that states the fact, `forms` are what may fill the blank of the cloze, the first as it is stated.
A fact that is overtaken later names that message in `until`; the fact that overtakes it lists the values before in
`stale`. A form is taken for the fact if the `subject` stands near it; without a subject the form alone is, and should
occur for nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from mem1.errors import UserError
from mem1.extras.probe.pieces import Piece, exchanges, pieces_of, start_of
from mem1.jsonl import read_objects
from mem1.messages import check
from mem1.messages.exact import Source
from mem1.messages.transcript import texts
from mem1.messages.written import about
from mem1.tasks.cloze.questions import BLANK

FACTS = ("identifier", "path", "number", "date", "name", "decision", "rule", "correction", "negative")
"""Kinds of facts. decision, rule: of the user; correction: of an earlier fact; negative: what failed, is gone, or does
not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something that a later turn may need."""

    kind: str
    cloze: str
    """A sentence with one `BLANK`, which makes sense without the transcript around it."""
    forms: tuple[str, ...]
    """Right ways to fill the blank; the first as it is stated."""
    message: int
    """Index of the message that states it."""
    until: int | None = None
    """Index of the message that overtakes it; None: it holds to the end."""
    stale: tuple[str, ...] = ()
    """Values that it overtakes."""
    subject: str = ""
    """Words that stand near a form where it is this fact; empty: the form alone tells."""

    def holds(self, end: int) -> bool:
        """Whether it holds, and was stated, once the first `end` messages are there."""
        return self.message < end and (self.until is None or self.until >= end)


@dataclass(frozen=True, slots=True)
class Noted:
    """What a careful reader would note of a message."""

    message: int
    form: str
    """The exact words that the note is about, as the message has them."""
    note: str


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """A conversation, and the facts in it."""

    kind: str
    """search, atlas, software, office, or any name of one's own."""
    messages: tuple[Mapping[str, Any], ...]
    facts: tuple[Fact, ...]
    noted: tuple[Noted, ...] = ()
    """Of a transcript that was made here, notes on what is planted, and on some of what results tell, asked or not."""

    @property
    def head(self) -> tuple[Mapping[str, Any], ...]:
        """Its messages up to the task."""
        return self.messages[: start_of(self.messages)]

    @property
    def task(self) -> str:
        """What the user asked first."""
        return texts(self.head[-1].get("content"))

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Its messages behind the task, as text."""
        return pieces_of(self.messages, start_of(self.messages))

    @cached_property
    def exchanges(self) -> list[list[Piece]]:
        """Its pieces by exchange."""
        return list(exchanges(self.pieces))

    @cached_property
    def source(self) -> Source:
        """All that its messages say, the task too, as notes on it are checked."""
        return about("\n".join(piece.text for piece in pieces_of(self.messages, 0)))

    def holding(self, end: int) -> list[Fact]:
        """The facts that hold once the first `end` messages are there."""
        return [fact for fact in self.facts if fact.holds(end)]

    def as_dict(self) -> dict[str, Any]:
        """As a line of a file has it."""
        return {"kind": self.kind, "messages": self.messages, "facts": [asdict(fact) for fact in self.facts]}


def read_transcripts(path: str | os.PathLike[str]) -> Iterator[Transcript]:
    """The transcripts of a file. Raises UserError, with file and line, for one that is not as the module says."""
    for number, record in read_objects(path):
        try:
            messages = tuple(record["messages"])
            check(messages)
            facts = tuple(_fact(fact) for fact in record["facts"])
            for fact in facts:
                check_fact(fact, messages)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise UserError(
                f"{path}:{number}: not a transcript with facts ({error}); see docs/memory/probe.md"
            ) from error
        yield Transcript(kind=str(record.get("kind", "own")), messages=messages, facts=facts)


def _fact(given: Mapping[str, Any]) -> Fact:
    lists = {key: tuple(given[key]) for key in ("forms", "stale") if key in given}
    if any(isinstance(given[key], str) or not all(isinstance(x, str) for x in lists[key]) for key in lists):
        raise ValueError("forms and stale are lists of texts")
    if any(not isinstance(given[key], str) for key in ("kind", "cloze", "subject") if key in given):
        raise ValueError("kind, cloze and subject are texts")
    return Fact(**{**given, **lists})


def check_fact(fact: Fact, messages: tuple[Mapping[str, Any], ...]) -> None:
    """Raises ValueError or IndexError for a fact that is not in these messages as it says."""
    if fact.kind not in FACTS:
        raise ValueError(f"unknown kind {fact.kind!r}; known: {', '.join(FACTS)}")
    if fact.cloze.count(BLANK) != 1:
        raise ValueError(f"the cloze {fact.cloze!r} needs one {BLANK}")
    if not fact.forms or not all(any(map(str.isalnum, form)) for form in fact.forms):
        raise ValueError(f"no form fills {fact.cloze!r}")
    if not start_of(messages) <= fact.message < len(messages):
        raise ValueError(f"message {fact.message} is none behind the task, the first message of the user")
    if fact.forms[0] not in texts(messages[fact.message].get("content")):
        raise ValueError(f"message {fact.message} does not contain {fact.forms[0]!r}")
    if fact.until is not None and not fact.message < fact.until < len(messages):
        raise ValueError(f"until = {fact.until} is no message after {fact.message}")
