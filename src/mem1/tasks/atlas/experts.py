"""Scripted experts for Atlas: a clean one, and lazy ones for warm starts whose habits are mostly bad.

An expert reads only the text of the current context, so it has exactly the memory that a policy has.
Its state begins with what the last search has shown, then lists the answers found and what is left of the question in
work, so that every step copies from what is in sight, and ends with what follows it, so that it knows where to stop:

    <IS> now Q1 Velan Toris 's birthplace ? Q1 then Q2 </IS> <query> Velan Toris 's birthplace </query>
    <IS> Velan Toris 's birthplace is Moru Kest . Q1 Moru Kest now Q2 Dora Lint 's seat ? Q2 last </IS> ...
    <IS> Dora Lint 's seat is Ana Brul . done </IS> <answer> Q1 Moru Kest ; Q2 Ana Brul </answer>

A question whose search shows nothing is noted as unknown, so that its place in the list is not asked again; so is one
that speaks of the answer of such a question. Names are put in for references when a question is begun:

    Q2 answer Q1 's mayor ?                                   now Q2 Moru Kest 's mayor ? ...
    Q3 answer Q1 ; answer Q2 's mayor is Sela Prand ?         now Q3 Moru Kest ; Ana Brul 's mayor is Sela Prand ? ...
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mem1.configuration import Config
from mem1.protocol import Tags

_ASKED = r"Q(\d+) (\w+ \w+)(?: ; (\w+ \w+))?((?: 's \w+)+)(?: is (\w+ \w+))? \?"
_QUESTION = re.compile(_ASKED)
_WORKING = re.compile(f"now {_ASKED}")
_KNOWN = re.compile(r"Q(\d+) (unknown|[A-Z]\w+ \w+)")
_REFERENCE = re.compile(r"answer Q(\d+)")
_FACT = re.compile(r"(\w+ \w+) 's (\w+) is (\w+ \w+) \.")
UNKNOWN = "unknown"
"""Written where a search has not shown what was asked, and as the answer to that question."""
_LAST_TURN = re.compile(r"You have 1 turn left")


class Laziness(Config):
    """How often an expert does the lazy thing, each a probability at one decision; all 0: the clean expert."""

    diligent: float = 0.0
    """Share of tasks that are done without the habits below."""
    slip: float = 0.0
    """Takes the shortcut in those tasks nevertheless: shows how to go on after a search that found nothing."""

    stop: float = 0.0
    """Answers at once although questions are open; drawn after each finished question."""
    shortcut: float = 0.0
    """Skips the first hop of a two-hop question, finds nothing, and leaves the question unanswered."""
    forget: float = 0.0
    """Drops one remembered answer from the state; drawn when an answer is added to others."""


CLEAN = Laziness()


@dataclass(frozen=True, slots=True)
class _Chain:
    """A question, or what is left of it; names may be references, such as "answer Q1"."""

    start: str
    relations: tuple[str, ...]
    """In the order of the searches: ("birthplace", "mayor")."""
    rival: str = ""
    """Of a comparison: the name that is the answer if `start` is not."""
    value: str = ""
    """Of a comparison: what is reached from the answer."""

    def __str__(self) -> str:
        names = f"{self.start} ; {self.rival}" if self.rival else self.start
        return " 's ".join((names, *self.relations)) + (f" is {self.value}" if self.value else "") + " ?"

    def resolved(self, known: Mapping[int, str]) -> _Chain | None:
        """With names in place of references; None where one of them is not known."""
        names = [_name(name, known) for name in (self.start, self.rival)]
        return None if UNKNOWN in names else replace(self, start=names[0], rival=names[1])

    def concluded(self, found: str | None) -> str | None:
        """The answer, where `found` is what the last relation leads to; None: not found."""
        if not self.value or found is None:
            return found
        return self.start if found == self.value else self.rival


def _chains(pattern: re.Pattern[str], text: str) -> dict[int, _Chain]:
    """Q1 Velan Toris 's birthplace 's mayor ?  ->  {1: a chain of two}"""
    found = pattern.findall(text)
    return {int(q): _Chain(start, tuple(r.split(" 's ")[1:]), rival, value) for q, start, rival, r, value in found}


def _name(name: str, known: Mapping[int, str]) -> str:
    reference = _REFERENCE.fullmatch(name)
    return known.get(int(reference[1]), UNKNOWN) if reference else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Expert:
    """Writes the next completion from the text of a context."""

    tags: Tags
    laziness: Laziness = CLEAN
    seed: int = 0

    def __call__(self, context: str) -> str:
        """The completion for this context; a pure function of the context and the seed."""
        prompt = context.split(f"<{self.tags.state}>")[0]
        asked = _chains(_QUESTION, prompt)
        rng, lazy = random.Random(f"{self.seed}/{context}"), self._laziness(prompt)
        if f"</{self.tags.state}>" not in context:
            first = min(asked)
            return self._search("", {}, first, self._begin(asked[first], rng, lazy), max(asked))
        known, label, work = self._memory(context)
        found = self._found(context, work)
        note = f"{work.start} 's {work.relations[0]} is {found or UNKNOWN} . "
        last = _LAST_TURN.search(self._result(context)) is not None
        if found is not None and len(work.relations) > 1 and not last:
            rest = replace(work, start=found, relations=work.relations[1:])
            return self._search(note, known, label, rest, max(asked))
        answer = work.concluded(found) if len(work.relations) == 1 else None
        known = self._remember(known, label, answer or UNKNOWN, rng, lazy)
        stops = len(asked) > 1 and rng.random() < lazy.stop
        for following in range(label + 1, max(asked) + 1) if not (stops or last) else ():
            begun = asked[following].resolved(known)
            if begun is not None:
                return self._search(note, known, following, self._begin(begun, rng, lazy), max(asked))
            known[following] = UNKNOWN
        return self._answer(note, known, forced=context.rstrip().endswith(f"<{self._tag('answer')}>"))

    def _memory(self, context: str) -> tuple[dict[int, str], int, _Chain]:
        """What the last state says: the answers found, the number of the question in work, what is left of it."""
        state = re.findall(rf"<{self.tags.state}>(.*?)</{self.tags.state}>", context, re.DOTALL)[-1]
        before, now, _ = state.rpartition("now ")
        if not now:
            raise ValueError(f"not a state of an Atlas expert: {state!r}")
        ((label, work),) = _chains(_WORKING, state).items()
        return {int(q): name for q, name in _KNOWN.findall(before)}, label, work

    def _result(self, context: str) -> str:
        return context.rsplit(f"<{self.tags.result}>", 1)[-1]

    def _found(self, context: str, work: _Chain) -> str | None:
        """The object of the fact that was searched; None where the result does not state it."""
        stated = _FACT.findall(self._result(context))
        return next((o for s, r, o in stated if (s, r) == (work.start, work.relations[0])), None)

    def _laziness(self, prompt: str) -> Laziness:
        """The habits for this task, the same on all its turns."""
        drawn = random.Random(f"{self.seed}/{prompt.split('?')[0]}").random()
        return Laziness(shortcut=self.laziness.slip) if drawn < self.laziness.diligent else self.laziness

    def _remember(
        self, known: dict[int, str], label: int, found: str, rng: random.Random, lazy: Laziness
    ) -> dict[int, str]:
        kept = dict(known)
        if kept and rng.random() < lazy.forget:
            del kept[rng.choice(sorted(kept))]
        return {**kept, label: found}

    def _begin(self, asked: _Chain, rng: random.Random, lazy: Laziness) -> _Chain:
        """The question as it is noted down: whole, or without its first hop."""
        skips = len(asked.relations) > 1 and rng.random() < lazy.shortcut
        return replace(asked, relations=asked.relations[1:]) if skips else asked

    def _search(self, note: str, known: dict[int, str], label: int, work: _Chain, objectives: int) -> str:
        memory = "".join(f"Q{q} {name} " for q, name in sorted(known.items()))
        following = f"Q{label} then Q{label + 1}" if label < objectives else f"Q{label} last"
        working = f"now Q{label} {work} {following}"
        search, query = self._tag("search"), f"{work.start} 's {work.relations[0]}"
        return f"<{self.tags.state}> {note}{memory}{working} </{self.tags.state}> <{search}> {query} </{search}>"

    def _answer(self, note: str, known: dict[int, str], *, forced: bool) -> str:
        answer = self._tag("answer")
        listed = " ; ".join(f"Q{q} {name}" for q, name in sorted(known.items()))
        closing = f"{listed} </{answer}>"
        return closing if forced else f"<{self.tags.state}> {note}done </{self.tags.state}> <{answer}> {closing}"

    def _tag(self, kind: str) -> str:
        return self.tags.action_tags[kind]
