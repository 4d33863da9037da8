"""What a text keeps of facts, and what it says that nobody said.

    verdict(fact, Text("The limits are in /srv/eu/limits.toml"))    ->   Verdict.RETAINED
    invented(Text("ticket OPS-17, OPS-18"), Text("... OPS-17 ..."))   ->   ("ops-18",)

A fact is retained where one of its forms stands as whole words, and its subject near it; it is stale where only a value
stands that it has overtaken. Texts are compared in the form of `mem1.messages.exact.normal`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import cached_property

from mem1.extras.probe.transcripts import Fact
from mem1.messages.exact import dates, is_exact, normal, words

NEAR = 300
"""Characters between a form and its subject, at most."""


class Verdict(str, Enum):
    """What became of a fact, best first."""

    RETAINED = "retained"
    RECOVERABLE = "recoverable"
    """It stands behind a handle that the text names."""
    STALE = "stale"
    LOST = "lost"

    def __str__(self) -> str:
        return self.value


class Text:
    """A text to be looked through, with what it can open by handles."""

    def __init__(self, text: str, behind: str = "") -> None:
        self.normal = normal(text)
        self.behind = normal(behind)

    @cached_property
    def anchors(self) -> frozenset[str]:
        """Words with digits, paths and other exact names in it."""
        return frozenset(word for word in words(self.normal) if is_exact(word))

    @cached_property
    def dates(self) -> frozenset[str]:
        """Days that stand in it, in any form, as "2027-05-03"."""
        return frozenset(day for day, _ in dates(list(words(self.normal))))


def verdict(fact: Fact, text: Text) -> Verdict:
    """What the text keeps of a fact that holds."""
    if _stands(fact.forms, fact.subject, text.normal):
        return Verdict.RETAINED
    if _stands(fact.stale, fact.subject, text.normal):
        return Verdict.STALE
    return Verdict.RECOVERABLE if _stands(fact.forms, fact.subject, text.behind) else Verdict.LOST


def invented(text: Text, source: Text) -> tuple[str, ...]:
    """Exact words of the text that stand nowhere in its source, in order."""
    new = (word for word in text.anchors - source.anchors if word not in source.normal)
    return tuple(sorted(word for word in new if word not in source.dates))


def _stands(forms: tuple[str, ...], subject: str, text: str) -> bool:
    about = normal(subject)
    for form in map(normal, forms):
        for start in _places(form, text):
            around = text[max(0, start - NEAR - len(about)) : start + len(form) + NEAR + len(about)]
            if not about or next(_places(about, around), None) is not None:
                return True
    return False


def _places(wanted: str, text: str) -> Iterator[int]:
    """Where it stands as whole words."""
    start = text.find(wanted)
    while start >= 0:
        before, after = text[start - 1 : start], text[start + len(wanted) : start + len(wanted) + 1]
        if not (_goes_on(before, wanted[0]) or _goes_on(after, wanted[-1])):
            yield start
        start = text.find(wanted, start + 1)


def _goes_on(neighbour: str, edge: str) -> bool:
    return neighbour.isalnum() and edge.isalnum()
