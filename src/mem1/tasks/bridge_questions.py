"""Real questions linked through bridge entities: the answer to one is the subject of another.

    Q1 Who founded Alvex?       Mira Toll        Q1 Who founded Alvex?
    Q2 Where was Mira Toll born?          ->     Q2 Where was the answer to Q1 born?

Question j can follow question i where a gold title of j (the entity that a supporting passage is about) is a gold
answer of i, occurs exactly once in the text of j, as whole words, and is not the answer to j itself. A title such as
"Green (album)" links nothing, because "Green" may be something else. HotpotQA, 2WikiMultihopQA, MuSiQue and PopQA have
gold titles; the single hops of the middle two (`decompose`) are linked by construction.

Comparisons use alphabetical order, which needs no further knowledge: "Which comes first in alphabetical order, the
answer to Q1 or the answer to Q2?"
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mem1.records import Question
from mem1.scoring import normalize
from mem1.tasks.compose import Draft, Group, Material

_NOT_NAMES = frozenset({"yes", "no"})


@dataclass(frozen=True, slots=True)
class Link:
    """A question that can follow another."""

    follower: int
    """Index of the question."""
    parts: tuple[str, str]
    """The text before and after the name of the bridge entity."""


@dataclass(frozen=True)
class LinkedQuestions(Material):
    """Questions, and which of them can follow which."""

    questions: Sequence[Question]

    @cached_property
    def links(self) -> Mapping[int, list[Link]]:
        """Index of a question -> its possible followers, if there are any."""
        answered: defaultdict[str, list[int]] = defaultdict(list)
        for index, question in enumerate(self.questions):
            for answer in sorted({normalize(answer) or answer for answer in question.answers}):
                answered[answer].append(index)
        links: defaultdict[int, list[Link]] = defaultdict(list)
        for index, question in enumerate(self.questions):
            for title in question.titles:
                parts = _around(question, title)
                if parts is None or title in question.answers:
                    continue
                for earlier in answered.get(normalize(title) or title, ()):
                    if earlier != index:
                        links[earlier].append(Link(index, parts))
        return dict(links)

    def shortage(self, size: int) -> str:
        linked = sum(map(len, self.links.values()))
        return (
            f"these {len(self.questions)} questions, with {linked} links through bridge entities, contain no {size} "
            "questions that depend on one another in this way; lower the depth or the number of objectives, or add "
            "questions with gold titles (for 2WikiMultihopQA and MuSiQue, single hops)"
        )

    def text(self, parts: Sequence[str], numbers: Sequence[int]) -> str:
        """As in `Material`, with a capital letter at the start."""
        text = super().text(parts, numbers)
        return text if parts[0].strip() else text[:1].upper() + text[1:]

    def _starts(self, group: Group) -> dict[int, list[int]]:
        """Position of a question without references -> the questions possible there."""
        return {
            position: found
            for position, references in enumerate(group)
            if not references and (found := self._begins(self._height(group, position)))
        }

    def _height(self, group: Group, position: int) -> int:
        """Length of the longest chain of questions that follows this position."""
        followers = [i for i, references in enumerate(group) if references == (position,)]
        return max((1 + self._height(group, i) for i in followers), default=0)

    @cached_property
    def _reaches(self) -> list[list[int]]:
        """Entry h: the questions that a chain of h others can follow."""
        return [list(range(len(self.questions)))]

    def _begins(self, height: int) -> list[int]:
        while len(self._reaches) <= height:
            below = set(self._reaches[-1])
            self._reaches.append([i for i in self.links if any(link.follower in below for link in self.links[i])])
        return self._reaches[height]

    def attempt(self, group: Group, taken: frozenset[str], rng: random.Random) -> list[Draft]:
        starts = self._starts(group)
        drafts: list[Draft] = []
        chosen: list[int | None] = []
        for position, references in enumerate(group):
            if len(references) == 2:
                made, index = compared(*(drafts[i].question for i in references)), None
            elif references:
                made, index = self._follower(chosen[references[0]], self._height(group, position), chosen, rng)
            else:
                index = rng.choice(starts[position]) if position in starts else None
                made = None if index is None else Draft(self.questions[index], (self.questions[index].text,))
            if made is None:
                return drafts
            drafts.append(made)
            chosen.append(index)
        return drafts

    def _follower(
        self, before: int | None, height: int, chosen: Sequence[int | None], rng: random.Random
    ) -> tuple[Draft | None, int | None]:
        able = set(self._begins(height))
        links = [] if before is None else self.links.get(before, [])
        links = [link for link in links if link.follower in able and link.follower not in chosen]
        if not links:
            return None, None
        link = rng.choice(links)
        return Draft(self.questions[link.follower], link.parts), link.follower


def _around(question: Question, title: str) -> tuple[str, str] | None:
    found = list(re.finditer(rf"(?<!\w){re.escape(title)}(?!\w)", question.text))
    if len(found) != 1:
        return None
    start, stop = found[0].span()
    before, after = question.text[:start], question.text[stop:]
    longer = any(title in other and other != title and other in question.text for other in question.titles)
    return None if longer or re.match(r" [A-Z]", after) else (before, after)


def compared(one: Question, other: Question) -> Draft | None:
    """A question which of two answers comes first; None unless all their aliases agree."""
    if not all(_ordered(name) for question in (one, other) for name in question.answers):
        return None
    keys = [[_keys(name) for name in question.answers] for question in (one, other)]
    for first, (lower, upper) in ((one, keys), (other, keys[::-1])):
        if all(a < b for k in lower for m in upper for a, b in zip(k, m, strict=True)):
            parts = ("Which comes first in alphabetical order, ", " or ", "?")
            names = " or ".join(question.answers[0] for question in (one, other))
            question = Question(
                id=f"{one.id}|{other.id}",
                text=f"{parts[0]}{names}?",
                answers=first.answers,
                source=one.source,
                hops=0,
            )
            return Draft(question, parts)
    return None


def _ordered(name: str) -> bool:
    """Whether the name has a clear place in the alphabet: it begins with A to Z, has no letters but these, accents
    apart, and is not yes or no."""
    key = normalize(name)
    latin = all(c.isascii() for c in _without_accents(name) if c.isalpha())
    return key not in _NOT_NAMES and key[:1].isascii() and key[:1].isalpha() and latin


def _keys(name: str) -> tuple[str, ...]:
    """Sort keys with and without the article, and with and without accents, as either may be compared."""
    plain = _without_accents(name)
    return name.casefold(), normalize(name), plain.casefold(), normalize(plain)


def _without_accents(name: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c))
