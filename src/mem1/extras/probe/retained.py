"""What a text keeps of facts, and what it says that nobody said.

    verdict(fact, Text("The limits are in /srv/eu/limits.toml"))    ->   Verdict.RETAINED
    invented(Text("ticket OPS-17, OPS-18"), Text("... OPS-17 ..."))   ->   ("ops-18",)

A fact is retained where one of its forms stands whole (`mem1.messages.wholes`), and its subject near it; it is stale
where only a value stands that it has overtaken.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from mem1.extras.probe.transcripts import Fact
from mem1.messages.exact import Source, calendar
from mem1.messages.wholes import Wholes, is_exact, normal, words

NEAR = 300
"""Characters between a form and its subject, at most; of a form of few letters or a date, both stand in one line."""
_FEW = 4


class Verdict(str, Enum):
    """What became of a fact, best first."""

    RETAINED = "retained"
    RECOVERABLE = "recoverable"
    """It stands behind a handle that the text names."""
    STALE = "stale"
    LOST = "lost"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Text(Source):
    """A text to be looked through, with what it can open by handles."""

    behind: str = ""

    @cached_property
    def opened(self) -> Text | None:
        """What stands behind handles; None: there are none."""
        return Text(self.behind) if self.behind else None

    @cached_property
    def lines(self) -> list[Wholes]:
        return [Wholes(normal(line)) for line in self.text.splitlines()]

    @cached_property
    def anchors(self) -> frozenset[str]:
        """Words with digits, paths and other exact names in it."""
        return frozenset(word for word in words(self.normal) if is_exact(word))


def verdict(fact: Fact, text: Text) -> Verdict:
    """What the text keeps of a fact that holds."""
    if retains(fact.forms, fact.subject, text):
        return Verdict.RETAINED
    if retains(fact.stale, fact.subject, text):
        return Verdict.STALE
    behind = text.opened is not None and retains(fact.forms, fact.subject, text.opened)
    return Verdict.RECOVERABLE if behind else Verdict.LOST


def invented(text: Text, source: Source) -> tuple[str, ...]:
    """Exact words of the text that its source does not say, as notes are checked (`mem1.messages.exact`), in order."""
    return tuple(sorted(text.beyond(source)))


def retains(forms: tuple[str, ...], subject: str, text: Text) -> bool:
    """Whether one of the forms stands in the text, near the subject."""
    about = normal(subject)
    for form in map(normal, forms):
        if not about:
            found = form in text.wholes
        elif len(form) <= _FEW or calendar(form):
            found = any(form in line and about in line for line in text.lines)
        else:
            reach = NEAR + len(about)
            found = any(
                about in Wholes(text.normal[max(0, start - reach) : start + len(form) + reach])
                for start in text.wholes.places(form)
            )
        if found:
            return True
    return False
