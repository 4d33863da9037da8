"""Transcripts of agents with facts planted in them, and what becomes of the facts in what a model would see.

    make_transcript(seed=0, exchanges=60, facts=48)    one user's task, sixty calls of tools, six facts of each kind

A file has one transcript per line, of your own agent if you like; messages are OpenAI chat messages:

    {"messages": [...], "facts": [{"kind": "path", "value": "/srv/eu/limits.toml", "message": 7, "old": null}, ...]}

`message` is the index of the message that states the fact (for a changed one, the new value); `old` is a value that
holds no more. Values should be words that occur nowhere else. The kinds are those that users of agents miss most.

fact: path /srv/eu/limits-7.toml                         verdict
"... /srv/eu/limits-7.toml ..."                          retained
"[result of run, 300 tokens, was dropped; recall(...)]"  recoverable, if recall returns a text with it
"... /srv/eu/limits-1.toml ..."                          mutated: a word that differs in one or two characters
the value before the change, or a deleted file as if it existed   stale
none of these                                            lost
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any

from rapidfuzz.distance import Levenshtein

from mem1.errors import UserError
from mem1.jsonl import read_objects
from mem1.messages import check, recall

KINDS = ("identifier", "path", "number", "constraint", "rejected", "deleted", "changed", "unfinished")
_STATED: Mapping[str, str] = {
    "identifier": "The ticket for this is {value}.",
    "path": "The setting that matters lives in {value}.",
    "number": "Requests must stay below {value} per minute.",
    "constraint": "From now on, never touch {value}.",
    "rejected": "Tried {value}; it failed and must not be tried again.",
    "deleted": "Deleted {value}; it no longer exists.",
    "changed": "The staging host is now {value}.",
    "unfinished": "Still to do: {value}.",
}
_BEFORE: Mapping[str, str] = {"deleted": "Created {value} for the trial run.", "changed": "The staging host is {old}."}
"""Sentences of an earlier exchange that the fact overtakes."""
_SYLLABLES = ("ka", "ro", "mi", "ten", "sul", "ve", "dor", "pla", "qui", "ban", "ster", "lo", "ghe", "zan", "fir", "mu")
_TASK = (
    "Find out why orders are lost at night, and repair it. At the end write a report with every ticket, path, limit, "
    "host, failed attempt, deleted file and open step that you came across."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something that a later turn may need."""

    kind: str
    value: str
    """Word that stands for the fact wherever it is stated."""
    message: int
    """Index of the message that states it."""
    old: str | None = None
    """Value that holds no more; None: there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """A conversation, and the facts in it."""

    messages: tuple[Mapping[str, Any], ...]
    facts: tuple[Fact, ...]


def make_transcript(seed: int, exchanges: int = 60, facts: int = 48, result_words: int = 250) -> Transcript:
    """An invented transcript; the same for the same arguments.

    Each exchange is one call whose result is a log of about `result_words` words. Constraints come from the user,
    between exchanges; all other facts stand in results. Raises UserError for fewer exchanges than 8.
    """
    if exchanges < 8:
        raise UserError(f"a transcript needs at least 8 exchanges, not {exchanges}")
    random = Random(f"probe-{seed}")
    planted = [_Planted.draw(random, KINDS[number % len(KINDS)], exchanges) for number in range(facts)]
    messages: list[Mapping[str, Any]] = [
        {"role": "system", "content": "You are an operator with a shell and a search tool."},
        {"role": "user", "content": _TASK},
    ]
    found: list[Fact] = []
    for at in range(exchanges):
        name = random.choice(("run", "read_file", "search"))
        function = {"name": name, "arguments": f'{{"what": "{_word(random)} {_word(random)}"}}'}
        calls = [{"id": f"call_{at}", "type": "function", "function": function}]
        sentences = [p.sentence for p in planted if p.at == at and p.kind != "constraint"]
        sentences += [p.before for p in planted if p.before_at == at]
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        messages.append(
            {"role": "tool", "tool_call_id": f"call_{at}", "content": _log(random, result_words, sentences)}
        )
        here = [p for p in planted if p.at == at]
        found += [p.fact(len(messages) - 1) for p in here if p.kind != "constraint"]
        for p in here:
            if p.kind == "constraint":
                messages.append({"role": "user", "content": p.sentence})
                found.append(p.fact(len(messages) - 1))
    return Transcript(messages=tuple(messages), facts=tuple(found))


def read_transcripts(path: str | os.PathLike[str]) -> Iterator[Transcript]:
    """The transcripts of a file. Raises UserError, with file and line, for one that is not as the module says."""
    for number, record in read_objects(path):
        where = f"{path}:{number}"
        try:
            messages = tuple(record["messages"])
            check(messages)
            facts = tuple(Fact(**fact) for fact in record["facts"])
            for fact in facts:
                if fact.kind not in KINDS:
                    raise ValueError(f"unknown kind {fact.kind!r}; known: {', '.join(KINDS)}")
                if fact.value not in str(messages[fact.message]):
                    raise ValueError(f"message {fact.message} does not contain {fact.value!r}")
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise UserError(f"{where}: not a transcript with facts ({error}); see docs/memory/probe.md") from error
        yield Transcript(messages=messages, facts=facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planted:
    """A fact before it has a place."""

    kind: str
    value: str
    old: str | None
    at: int
    """Exchange that states it."""
    before_at: int | None
    """Earlier exchange, of what it overtakes."""

    @classmethod
    def draw(cls, random: Random, kind: str, exchanges: int) -> _Planted:
        value = _value(random, kind)
        overtakes = kind in _BEFORE
        at = random.randrange(exchanges // 4 if overtakes else 0, exchanges - 3)
        before_at = random.randrange(0, at) if overtakes else None
        return cls(
            kind=kind, value=value, old=_value(random, kind) if kind == "changed" else None, at=at, before_at=before_at
        )

    @property
    def sentence(self) -> str:
        return _STATED[self.kind].format(value=self.value)

    @property
    def before(self) -> str:
        return _BEFORE[self.kind].format(value=self.value, old=self.old)

    def fact(self, message: int) -> Fact:
        return Fact(kind=self.kind, value=self.value, old=self.old, message=message)


def _word(random: Random) -> str:
    return "".join(random.choices(_SYLLABLES, k=random.choice((2, 3))))


def _value(random: Random, kind: str) -> str:
    if kind == "identifier":
        return f"OPS-{random.randrange(10**5, 10**6)}"
    if kind in ("path", "deleted"):
        return f"/srv/{_word(random)}/{_word(random)}-{random.randrange(100)}.toml"
    if kind == "number":
        return str(random.randrange(10**4, 10**6))
    if kind == "changed":
        return f"{_word(random)}-{random.randrange(1000)}.internal"
    return f"{_word(random)}_{_word(random)}_{random.randrange(1000)}"


def _log(random: Random, words: int, sentences: list[str]) -> str:
    """Lines of a log with the sentences among them."""
    lines = [
        f"{random.randrange(24):02}:{random.randrange(60):02} {_word(random)} {random.choice(('ok', 'retry', 'slow'))} "
        f"batch {random.randrange(999)} {_word(random)} {_word(random)} {random.randrange(999)} ms"
        for _ in range(words // 9)
    ]
    for sentence in sentences:
        lines.insert(random.randrange(len(lines) + 1), sentence)
    return "\n".join(lines)


_WORD = re.compile(r"[\w/.-]+")
_HANDLE = re.compile(r"\br[0-9a-f]{8}\b")
_GONE = re.compile(r"delet|no longer|remov|gone", re.IGNORECASE)


class Verdict(str, Enum):
    """What became of a fact, best first."""

    RETAINED = "retained"
    RECOVERABLE = "recoverable"
    MUTATED = "mutated"
    STALE = "stale"
    LOST = "lost"

    def __str__(self) -> str:
        return self.value


def verdicts(
    facts: Sequence[Fact],
    shown: Sequence[Mapping[str, Any]],
    messages: Sequence[Mapping[str, Any]],
    behind: str = "",
) -> list[Verdict]:
    """One for each fact; `shown` is what the model sees of the whole conversation `messages`.

    `behind`: what it can open by what it sees, besides results behind mem1's handles.
    """
    lines = [line for message in shown for text in _texts(message) for line in text.splitlines()]
    words = {word.strip(".,;:") for line in lines for word in _WORD.findall(line)}
    behind += _recalled({handle for line in lines for handle in _HANDLE.findall(line)}, messages)
    known = {value for fact in facts for value in (fact.value, fact.old) if value is not None}
    return [_verdict(fact, lines, words, known, behind) for fact in facts]


def _verdict(fact: Fact, lines: Sequence[str], words: set[str], known: set[str], behind: str) -> Verdict:
    stating = [line for line in lines if fact.value in line]
    if fact.kind == "deleted" and stating and not any(_GONE.search(line) for line in stating):
        return Verdict.STALE
    if stating:
        return Verdict.RETAINED
    if fact.old is not None and any(fact.old in line for line in lines):
        return Verdict.STALE
    if fact.value in behind:
        return Verdict.RECOVERABLE
    near = (word for word in words - known if abs(len(word) - len(fact.value)) <= 2)
    if any(Levenshtein.distance(word, fact.value, score_cutoff=2) <= 2 for word in near):
        return Verdict.MUTATED
    return Verdict.LOST


def _recalled(handles: set[str], messages: Sequence[Mapping[str, Any]]) -> str:
    """All texts that the handles return."""
    found: list[str] = []
    for handle in sorted(handles):
        try:
            found.append(str(recall(messages, handle)))
        except UserError:
            continue  # a word that only looks like a handle
    return "\n".join(found)


def _texts(value: Any) -> list[str]:
    """All texts in a message, arguments of calls included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [
            text
            for key, part in value.items()
            if key not in ("role", "type", "id", "tool_call_id")
            for text in _texts(part)
        ]
    return [text for part in value for text in _texts(part)] if isinstance(value, Sequence) else []
