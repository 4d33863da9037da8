"""Scripted experts for Atlas: a clean one, and lazy ones for warm starts whose habits are mostly bad.

An expert reads only the text of the current context, so it has exactly the memory that a policy has.
Its state lists the answers found and the question in work, with the bridge of a two-hop question:

    <IS> Q1 Moru Kest now Q2 Dora Lint </IS> <query> Dora Lint 's mayor </query>
    <IS> done </IS> <answer> Q1 Moru Kest ; Q2 Velan Toris </answer>
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from mem1.configuration import Config
from mem1.protocol import Tags

_QUESTION = re.compile(r"Q(\d+) (\w+ \w+)((?: 's \w+)+) \?")
_KNOWN = re.compile(r"Q(\d+) ((?!now\b)[A-Z]\w+ \w+)")
_WORKING = re.compile(r"now Q(\d+)")
_FACT = re.compile(r"(\w+ \w+) 's (\w+) is (\w+ \w+) \.")
_LAST_TURN = re.compile(r"You have 1 turn left")


class Laziness(Config):
    """How often an expert does the lazy thing, each a probability at one decision; all 0: the clean expert."""

    diligent: float = 0.0
    """Share of tasks that are done cleanly from beginning to end."""

    stop: float = 0.0
    """Answers at once although questions are open; drawn after each finished question."""
    shortcut: float = 0.0
    """Skips the first hop of a two-hop question, finds nothing, and leaves the question unanswered."""
    forget: float = 0.0
    """Drops one remembered answer from the state; drawn when an answer is added to others."""


CLEAN = Laziness()


@dataclass(frozen=True, slots=True)
class _Asked:
    start: str
    relations: tuple[str, ...]
    """In the order of the searches: ("birthplace", "mayor")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expert:
    """Writes the next completion from the text of a context."""

    tags: Tags
    laziness: Laziness = CLEAN
    seed: int = 0

    def __call__(self, context: str) -> str:
        """The completion for this context; a pure function of the context and the seed."""
        rng = random.Random(f"{self.seed}/{context}")
        prompt = context.split(f"<{self.tags.state}>")[0]
        lazy = self._laziness(prompt)
        asked = {int(q): _Asked(start, tuple(chain.split(" 's ")[1:])) for q, start, chain in _QUESTION.findall(prompt)}
        known, label = self._memory(context, first=min(asked))
        if f"</{self.tags.state}>" in context:
            subject, _, relation = self._query(context).partition(" 's ")
            found = self._found(context, relation, subject)
            if relation != asked[label].relations[-1]:  # a first hop: what was found is the bridge
                return self._search(known, label, found, asked[label], rng, lazy)
            if found is not None:
                known = self._remember(known, label, found, rng, lazy)
            following = label + 1
            stops = len(asked) > 1 and rng.random() < lazy.stop
            if following not in asked or stops or _LAST_TURN.search(self._result(context)):
                return self._answer(known, forced=context.rstrip().endswith(f"<{self._tag('answer')}>"))
            label = following
        return self._search(known, label, None, asked[label], rng, lazy)

    def _memory(self, context: str, *, first: int) -> tuple[dict[int, str], int]:
        """What the last state says: the answers found, and the question in work."""
        states = re.findall(rf"<{self.tags.state}>(.*?)</{self.tags.state}>", context, re.DOTALL)
        if not states:
            return {}, first
        working = _WORKING.search(states[-1])
        if working is None:
            raise ValueError(f"not a state of an Atlas expert: {states[-1]!r}")
        known = {int(q): name for q, name in _KNOWN.findall(states[-1][: working.start()])}
        return known, int(working[1])

    def _result(self, context: str) -> str:
        return context.rsplit(f"<{self.tags.result}>", 1)[-1]

    def _query(self, context: str) -> str:
        tag = self._tag("search")
        return re.findall(rf"<{tag}>(.*?)</{tag}>", context, re.DOTALL)[-1].strip()

    def _found(self, context: str, relation: str, subject: str) -> str | None:
        """The object of the fact that was searched; None where the result does not state it."""
        stated = _FACT.findall(self._result(context))
        return next((o for s, r, o in stated if (r, s) == (relation, subject)), None)

    def _laziness(self, prompt: str) -> Laziness:
        """The habits for this task, the same on all its turns."""
        drawn = random.Random(f"{self.seed}/{prompt.split('?')[0]}").random()
        return CLEAN if drawn < self.laziness.diligent else self.laziness

    def _remember(
        self, known: dict[int, str], label: int, found: str, rng: random.Random, lazy: Laziness
    ) -> dict[int, str]:
        kept = dict(known)
        if kept and rng.random() < lazy.forget:
            del kept[rng.choice(sorted(kept))]
        return {**kept, label: found}

    def _search(
        self,
        known: dict[int, str],
        label: int,
        bridge: str | None,
        asked: _Asked,
        rng: random.Random,
        lazy: Laziness,
    ) -> str:
        if bridge is not None:
            query = f"{bridge} 's {asked.relations[-1]}"
        elif len(asked.relations) > 1 and rng.random() < lazy.shortcut:
            query = f"{asked.start} 's {asked.relations[-1]}"
        else:
            query = f"{asked.start} 's {asked.relations[0]}"
        memory = "".join(f"Q{q} {name} " for q, name in sorted(known.items()))
        working = f"now Q{label}" + (f" {bridge}" if bridge is not None else "")
        search = self._tag("search")
        return f"<{self.tags.state}> {memory}{working} </{self.tags.state}> <{search}> {query} </{search}>"

    def _answer(self, known: dict[int, str], *, forced: bool) -> str:
        answer = self._tag("answer")
        listed = " ; ".join(f"Q{q} {name}" for q, name in sorted(known.items())) or "unknown"
        closing = f"{listed} </{answer}>"
        return closing if forced else f"<{self.tags.state}> done </{self.tags.state}> <{answer}> {closing}"

    def _tag(self, kind: str) -> str:
        return self.tags.action_tags[kind]
