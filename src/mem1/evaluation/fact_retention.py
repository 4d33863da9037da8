"""Which gold facts a memory keeps: of those that a result has once shown, the share still in what the turn wrote.

    turn 1   state "now Q1"                  result "Alvex was founded by Mira Toll."
    turn 2   state "Q1 Mira Toll now Q2"     result "The mayor of Bergen is Sela Prand."       keeps 1 of 1
    turn 3   state "Q2 Sela Prand"           answer "Q2 Sela Prand"                            keeps 1 of 2, 1 is lost

A fact is the answer of a question, or an entity on the way to it: a title of its supporting passages, for as long as
the answer has not been shown. A text holds a name if an alias stands in it as whole words, both normalised as answers
are. Names stand in texts by accident too, which says nothing about a memory. So a result shows a fact only if it also
holds another title of the same question, where titles are known ("Mira Toll" beside "Alvex"); and these are no facts:
what the prompt names (it is always in sight), "yes" and "no", single letters and digits. The hint of a result is not
read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from mem1.protocol import ANSWER, SUMMARY
from mem1.records import Question, Task, Trajectory, Turn
from mem1.scoring import normalize

_HINT = re.compile(r"\[(\w+)\].*?\[/\1\]", re.DOTALL)
_EPITHET = re.compile(r"\s*\([^()]*\)$")
_NO_NAMES = frozenset({"yes", "no"})

Aliases = tuple[str, ...]
"""Normalised, at least two characters each, with a blank before and after: a text holds " ana ", not "banana"."""


@dataclass(frozen=True, slots=True, eq=False)
class Fact:
    """Something that an attempt has to remember once it has been shown."""

    aliases: Aliases
    beside: Aliases = ()
    """Names of which one must stand in the same result; empty: none is known."""
    until: Fact | None = None
    """The answer that it leads to, after which it is not needed any more; None: needed to the end."""
    text: str = ""
    """As the task writes it; an answer with its aliases."""
    question: int = 0
    """Number of the first question, from 1, that it is the answer of or leads to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The facts at one turn."""

    needed: tuple[Fact, ...]
    """Those that results of earlier turns have shown, and not the answers that they lead to."""
    kept: frozenset[Fact] | None
    """Of these, the ones in what the turn wrote. None: it wrote neither state nor answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
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


def memory(trajectory: Trajectory) -> AttemptFacts:
    """Follow the facts of one attempt through its turns. Raises ValueError if it has no task."""
    if trajectory.task is None:
        raise ValueError("a trajectory has no task, so its facts are not known; keep the task when rolling out")
    noted: set[Fact] = set()
    by_turn: list[tuple[int, int] | None] = []
    lost = 0
    for step in follow(facts_of(trajectory.task), trajectory.turns):
        if step.kept is None:
            by_turn.append(None)
        else:
            lost = sum(fact in noted and fact not in step.kept for fact in step.needed)
            noted |= step.kept
            by_turn.append((len(step.kept), len(step.needed)))
    return AttemptFacts(by_turn=tuple(by_turn), lost=lost)


def follow(facts: Sequence[Fact], turns: Sequence[Turn]) -> Iterator[Step]:
    """What is needed and kept of the facts, turn by turn."""
    unseen = _by_alias({*facts, *(fact.until for fact in facts if fact.until is not None)})
    seen: set[Fact | None] = set()
    needed: tuple[Fact, ...] = ()
    names = _by_alias(needed)
    for turn in turns:
        words = _written(turn)
        yield Step(needed=needed, kept=None if words is None else frozenset(_named(words, names)))
        if unseen and turn.observation:
            result = _words(_without_hint(turn.observation))
            shown = {fact for fact in _named(result, unseen) if not fact.beside or _holds(result, fact.beside)}
            if shown:
                seen |= shown
                unseen = [(alias, fact) for alias, fact in unseen if fact not in shown]
                needed = tuple(fact for fact in facts if fact in seen and fact.until not in seen)
                names = _by_alias(needed)


def facts_of(task: Task) -> list[Fact]:
    """Answers first, then what leads to them; none twice, none that the prompt names."""
    titles = [[_title(title) for title in question.titles] for question in task.questions]
    answers = [_answer(*of_one) for of_one in zip(range(1, 1 + len(titles)), task.questions, titles, strict=True)]
    facts: dict[tuple[Aliases, Aliases], Fact] = {}
    for answer in answers:
        facts[answer.aliases, ()] = _either(answer, facts.get((answer.aliases, ()), answer))
    known = {alias for answer in answers for alias in answer.aliases}
    for answer, of_it, question in zip(answers, titles, task.questions, strict=True):
        for title, text in zip(of_it, question.titles, strict=True):
            if known.isdisjoint(title):
                others = tuple(alias for other in of_it if other != title for alias in other)
                facts.setdefault((title, answer.aliases), Fact(title, others, answer, text, answer.question))
    prompt = _words(task.prompt)
    return [fact for fact in facts.values() if fact.aliases and not _holds(prompt, fact.aliases)]


def _answer(number: int, question: Question, titles: Sequence[Aliases]) -> Fact:
    aliases = _names(question.answers)
    beside = tuple(alias for title in titles if not set(title) & set(aliases) for alias in title)
    return Fact(aliases, beside, text=" / ".join(question.answers), question=number)


def _either(later: Fact, first: Fact) -> Fact:
    """One answer to two questions is shown where it is shown for either."""
    beside = dict.fromkeys(later.beside + first.beside) if later.beside and first.beside else ()
    return replace(first, beside=tuple(beside))


def _title(title: str) -> Aliases:
    """With and without what tells it from others: "Green (album)" is written "Green" in a sentence."""
    return _names((title, _EPITHET.sub("", title)) if title.endswith(")") else (title,))


def _names(texts: Sequence[str]) -> Aliases:
    """Those that can be told from an accident, normalised; none at all where one is a mere yes or no."""
    normalized = dict.fromkeys(map(normalize, texts))
    return () if _NO_NAMES & normalized.keys() else tuple(f" {name} " for name in normalized if len(name) > 1)


def _written(turn: Turn) -> str | None:
    """State, summary and final answer: a fact that moved from one to the other is not lost."""
    if turn.action in (ANSWER, SUMMARY):
        return _words(f"{turn.state} ; {turn.content}")
    return _words(turn.state) if turn.state else None


def _without_hint(observation: str) -> str:
    hint = _HINT.match(observation)
    return observation[hint.end() :] if hint else observation


def _words(text: str) -> str:
    """Normalised, between blanks, so that a name can be looked up with its word borders."""
    return f" {normalize(text)} "


def _holds(words: str, aliases: Aliases) -> bool:
    return any(alias in words for alias in aliases)


def _by_alias(facts: Iterable[Fact]) -> list[tuple[str, Fact]]:
    """Flat, for the innermost loop of the metrics."""
    return [(alias, fact) for fact in facts for alias in fact.aliases]


def _named(words: str, names: Sequence[tuple[str, Fact]]) -> set[Fact]:
    return {fact for alias, fact in names if alias in words}


def _share(counts: Sequence[tuple[int, int] | None]) -> float | None:
    some = [count for count in counts if count is not None]
    needed = sum(needed for _, needed in some)
    return sum(kept for kept, _ in some) / needed if needed else None
