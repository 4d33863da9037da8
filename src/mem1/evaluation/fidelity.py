"""Which gold facts a memory keeps: of those that a result has once shown, the share still in what the turn wrote.

    turn 1   state "now Q1"                  result "Alvex was founded by Mira Toll."
    turn 2   state "Q1 Mira Toll now Q2"     result "The mayor of Bergen is Sela Prand."       keeps 1 of 1
    turn 3   state "Q2 Sela Prand"           answer "Q2 Sela Prand"                            keeps 1 of 2, 1 is lost

A fact is the answer of a question, or an entity on the way to it: a title of its supporting passages, for as long as
the answer has not been shown. A text holds a fact if an alias stands in it as whole words, both normalised as answers
are. What a text holds by accident says nothing about the memory, so these are no facts: what the prompt names (it is
always in sight), "yes" and "no", and single letters or digits. The turns-left hint of a result is not read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from mem1.protocol import ANSWER
from mem1.records import Task, Trajectory, Turn
from mem1.scoring import normalize

_HINT = re.compile(r"^\[(\w+)\].*?\[/\1\]", re.DOTALL)
_EPITHET = re.compile(r"\s*\([^()]*\)$")
_NO_NAMES = frozenset({"yes", "no"})

Aliases = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that an attempt has to remember once it has been shown."""

    aliases: Aliases
    """Normalised, each at least two characters long."""
    until: Aliases = ()
    """Aliases of the answer that it leads to, after which it is not needed any more; empty: needed to the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What became of the facts in one attempt."""

    by_turn: tuple[tuple[int, int] | None, ...]
    """Per turn, (facts kept, facts needed): needed are those that results of earlier turns have shown. None: the turn
    wrote neither state nor answer."""
    lost: int
    """Facts needed at the last such turn that were kept at an earlier one and are gone."""

    @property
    def last(self) -> tuple[int, int]:
        """(kept, needed) at the last turn that wrote something."""
        return next((counts for counts in reversed(self.by_turn) if counts is not None), (0, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """The same over many attempts; shares are over the facts of all of them, in [0, 1]."""

    last: float | None
    """In the last state; None: no state was written after a fact had been shown."""
    by_turn: tuple[float | None, ...]
    """Entry t - 1: in the states of turn t; None: no attempt needed a fact there."""
    lost: float
    """Mean over attempts of `Memory.lost`."""


def fidelity(trajectories: Sequence[Trajectory]) -> Fidelity:
    """Facts kept over facts needed, added up over all attempts. Raises ValueError for one without its task."""
    memories = [memory(trajectory) for trajectory in trajectories]
    return Fidelity(
        last=_share([m.last for m in memories]),
        by_turn=tuple(_share(counts) for counts in zip_longest(*(m.by_turn for m in memories))),
        lost=sum(m.lost for m in memories) / len(memories),
    )


def memory(trajectory: Trajectory) -> Memory:
    """Follow the facts of one attempt through its turns. Raises ValueError if it has no task."""
    if trajectory.task is None:
        raise ValueError("a trajectory has no task, so its facts are not known; keep the task when rolling out")
    facts = facts_of(trajectory.task)
    named = {aliases for fact in facts for aliases in (fact.aliases, fact.until)}
    shown: set[Aliases] = set()
    by_turn: list[tuple[int, int] | None] = []
    noted: set[Fact] = set()
    lost = 0
    for turn in trajectory.turns:
        written = _written(turn)
        if written is None:
            by_turn.append(None)
        else:
            needed = [f for f in facts if f.aliases in shown and f.until not in shown]
            kept = {f for f in needed if _holds(written, f.aliases)}
            lost = sum(f in noted and f not in kept for f in needed)
            noted |= kept
            by_turn.append((len(kept), len(needed)))
        result = f" {normalize(_HINT.sub('', turn.observation))} "
        shown |= {aliases for aliases in named - shown if _holds(result, aliases)}
    return Memory(by_turn=tuple(by_turn), lost=lost)


def facts_of(task: Task) -> list[Fact]:
    """Answers first, then what leads to them; none twice, none that the prompt names."""
    prompt = f" {normalize(task.prompt)} "
    facts: dict[Aliases, Fact] = {}
    answers = [_aliases(question.answers) for question in task.questions]
    for aliases in answers:
        if aliases and not _holds(prompt, aliases):
            facts.setdefault(aliases, Fact(aliases))
    known = {alias for aliases in answers for alias in aliases}
    for question, answer in zip(task.questions, answers, strict=True):
        for title in question.titles:
            aliases = _aliases((title, _EPITHET.sub("", title)))
            if aliases and not known.intersection(aliases) and not _holds(prompt, aliases):
                facts.setdefault(aliases, Fact(aliases, until=answer))
    return list(facts.values())


def _aliases(names: Sequence[str]) -> Aliases:
    """Those that can be told from an accident, normalised; none at all where one is a mere yes or no."""
    normalized = [normalize(name) for name in names]
    return () if _NO_NAMES.intersection(normalized) else tuple(dict.fromkeys(n for n in normalized if len(n) > 1))


def _written(turn: Turn) -> str | None:
    """State and final answer, normalised between blanks: a fact that moved from the one to the other is not lost."""
    if not turn.state and turn.action != ANSWER:
        return None
    return f" {normalize(turn.state)} {normalize(turn.content) if turn.action == ANSWER else ''} "


def _holds(words: str, aliases: Aliases) -> bool:
    return any(f" {alias} " in words for alias in aliases)


def _share(counts: Sequence[tuple[int, int] | None]) -> float | None:
    kept, needed = (sum(column) for column in zip(*filter(None, counts), strict=True)) if any(counts) else (0, 0)
    return kept / needed if needed else None
