"""Clozes that hang together: the answer of one is a name in the window of the next.

    Q1 Alvex was founded by ____ in the year       Mira Toll
    Q2 In ____ Mira Toll was born as the           Bergen       ->  Q2 In ____ the answer to Q1 was born as the

Linked clozes are of different passages, and only names link them: a year that stands in two texts says nothing. A
comparison is by the alphabet, as with real questions (`mem1.tasks.linking`).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mem1.errors import UserError
from mem1.records import Question
from mem1.scoring import normalize
from mem1.tasks.cloze.record import Ranked
from mem1.tasks.cloze.spans import spans, words_apart
from mem1.tasks.dependencies import Draft, Group
from mem1.tasks.linking import compared

_TRIES = 200
"""A draw that fails (an answer that stands in no other window) is begun again so many times."""


@dataclass(frozen=True)
class ClozeMaterial:
    """Questions of one part of a corpus."""

    clozes: Sequence[Ranked]

    @cached_property
    def windows(self) -> Mapping[str, list[int]]:
        """Name, normalised -> the clozes whose windows have it once."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for index, cloze in enumerate(self.clozes):
            for name in names_around(cloze.question.text):
                found[normalize(name)].append(index)
        return dict(found)

    @cached_property
    def _starts(self) -> list[int]:
        return [i for i, cloze in enumerate(self.clozes) if normalize(cloze.question.answers[0]) in self.windows]

    def draw(self, group: Group, taken: frozenset[str], rng: random.Random) -> list[Draft]:
        """Raises UserError where no clozes hang together in this way."""
        followed = {position for references in group for position in references if len(references) == 1}
        used = {name.rpartition(":")[0] for name in taken}
        for _ in range(_TRIES if self._starts or not followed else 0):
            drafts = self._attempt(group, followed, set(used), rng)
            if len(drafts) == len(group) and not {draft.question.id for draft in drafts} & taken:
                return drafts
        raise UserError(
            f"among these {len(self.clozes)} clozes, {len(self._starts)} of whose answers stand in other windows, no "
            f"{len(group)} were found that hang together as asked; lower the depth, or make more clozes"
        )

    def text(self, parts: Sequence[str], numbers: Sequence[int]) -> str:
        """("In ____ ", " was born") and (1,) -> "In ____ the answer to Q1 was born" """
        return parts[0] + "".join(f"the answer to Q{n}{part}" for n, part in zip(numbers, parts[1:], strict=True))

    def _attempt(self, group: Group, followed: set[int], used: set[str], rng: random.Random) -> list[Draft]:
        """The drafts of the group, or fewer where chance led nowhere; adds their passages to `used`."""
        drafts: list[Draft] = []
        for position, references in enumerate(group):
            if len(references) == 2:
                made = compared(*(drafts[i].question for i in references))
            elif references:
                made = self._follower(drafts[references[0]].question, used, rng)
            else:
                made = self._first(position in followed, used, rng)
            if made is None:
                return drafts
            drafts.append(made)
        return drafts

    def _first(self, followed: bool, used: set[str], rng: random.Random) -> Draft | None:
        cloze = self.clozes[rng.choice(self._starts) if followed else rng.randrange(len(self.clozes))]
        return self._drafted(cloze, (cloze.question.text,), used)

    def _follower(self, before: Question, used: set[str], rng: random.Random) -> Draft | None:
        named = self.windows.get(normalize(before.answers[0]), ())
        cloze = self.clozes[rng.choice(named)] if named else None
        if cloze is None or normalize(cloze.question.answers[0]) == normalize(before.answers[0]):
            return None
        parts = next(
            parts
            for name, parts in names_around(cloze.question.text).items()
            if normalize(name) == normalize(before.answers[0])
        )
        return self._drafted(cloze, parts, used)

    def _drafted(self, cloze: Ranked, parts: tuple[str, ...], used: set[str]) -> Draft | None:
        if cloze.passage in used:
            return None
        used.add(cloze.passage)
        return Draft(cloze.question, parts)


def names_around(text: str) -> dict[str, tuple[str, str]]:
    """The names that stand in a window once -> the text before and after each."""
    words = words_apart(text)
    written = text.split()
    found: dict[str, tuple[str, str]] = {}
    again: set[str] = set()
    for span in spans(words):
        if span.answer[0].isdigit():
            continue
        if span.answer in found:
            again.add(span.answer)
        first, last = words[span.start], words[span.stop - 1]
        before = " ".join((*written[: span.start], first.before))
        after = " ".join((last.after, *written[span.stop :]))
        found[span.answer] = (before, after)
    return {name: parts for name, parts in found.items() if name not in again}
