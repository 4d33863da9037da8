"""What became of a fact in the messages that a model would see.

fact: path /srv/eu/limits-7.toml                         verdict
"... /srv/eu/limits-7.toml ..."                          retained
"[result of run, 300 tokens, was dropped; recall(...)]"  recoverable, if recall returns a text with it
"... /srv/eu/limits-1.toml ..."                          mutated: a word that differs in one or two characters
the value before the change, or a deleted file as if it existed   stale
none of these                                            lost
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from rapidfuzz.distance import Levenshtein

from mem1.errors import UserError
from mem1.extras.probe.transcripts import Fact
from mem1.messages import recall

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
    facts: Sequence[Fact], shown: Sequence[Mapping[str, Any]], messages: Sequence[Mapping[str, Any]]
) -> list[Verdict]:
    """One for each fact; `shown` is what the model sees of the whole conversation `messages`."""
    lines = [line for message in shown for text in _texts(message) for line in text.splitlines()]
    words = {word.strip(".,;:") for line in lines for word in _WORD.findall(line)}
    behind = _recalled({handle for line in lines for handle in _HANDLE.findall(line)}, messages)
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
