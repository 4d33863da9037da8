"""How many gold facts a memory retains: the share of those shown in earlier results that a turn's output still holds.

    turn 1   state "now Q1"                  result "Alvex was founded by Mira Toll."
    turn 2   state "Q1 Mira Toll now Q2"     result "The mayor of Bergen is Sela Prand."       keeps 1 of 1
    turn 3   state "Q2 Sela Prand"           answer "Q2 Sela Prand"                            keeps 1 of 2, 1 is lost

A fact is the answer to a question, or an entity on the way to it: a title of its supporting passages, until the answer
has been shown. A text holds a name if it contains an alias as whole words, both normalised like answers. Names also
occur by accident, which says nothing about a memory. Therefore a result shows a fact only if it also holds another
title of the same question, where titles are known ("Mira Toll" beside "Alvex"); and names in the prompt (always in
sight), "yes", "no", single letters and digits are not facts. The turns-left hint of a result is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from mem1.memory import notebook
from mem1.protocol import ANSWER, SUMMARY, without_hint
from mem1.records import Question, Task, Trajectory, Turn
from mem1.scoring import normalize, whole_words

_NO_NAMES = frozenset({"yes", "no"})

Aliases = tuple[str, ...]
"""Normalised names of at least two characters, between blanks, so that " ana " is not found in "banana"."""


@dataclass(frozen=True, slots=True, eq=False)
class Fact:
    """Something that must be remembered once it has been shown."""

    aliases: Aliases
    beside: Aliases = ()
    """Names, one of which must occur in the same result; empty: none is known."""
    until: Fact | None = None
    """The answer it leads to, after which it is no longer needed; None: needed to the end."""
    text: str = ""
    """The name as written in the task, an answer with its aliases."""
    question: int = 0
    """Number, from 1, of the first question that it answers or leads to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The facts at one turn."""

    needed: tuple[Fact, ...]
    """Facts shown in earlier results whose answers have not been shown yet."""
    kept: frozenset[Fact] | None
    """Those of `needed` in the turn's output. None: it wrote neither state nor answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """The retention of facts in one attempt."""

    by_turn: tuple[tuple[int, int] | None, ...]
    """Per turn, (facts kept, facts needed). None: the turn wrote neither state nor answer."""
    lost: int
    """Facts needed in the last turn with a state that an earlier state held and this one does not."""

    @property
    def last(self) -> tuple[int, int]:
        """(kept, needed) in the last turn that wrote a state or an answer."""
        return next((counts for counts in reversed(self.by_turn) if counts is not None), (0, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """The retention of facts over many attempts: shares of all their facts, in [0, 1]."""

    last: float | None
    """Share kept in the last state; None: no state was written after a fact had been shown."""
    by_turn: tuple[float | None, ...]
    """Entry t - 1: share kept in the states of turn t; None: no attempt needed a fact there."""
    lost: float
    """Mean over attempts of `AttemptFacts.lost`."""


def fidelity(trajectories: Sequence[Trajectory]) -> Fidelity:
    """Facts kept over facts needed, summed over all attempts. Raises ValueError for one without its task."""
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
    """Turn by turn, the facts that are needed and those that are kept."""
    unseen = _by_alias({*facts, *(fact.until for fact in facts if fact.until is not None)})
    seen: set[Fact | None] = set()
    needed: tuple[Fact, ...] = ()
    names = _by_alias(needed)
    notes: list[Turn] = []
    summary = ""  # the last one, which stays in view until the next
    for turn in turns:
        summary = turn.content if turn.action == SUMMARY else summary
        notes += [turn] if turn.notes or (notes and turn.action == SUMMARY) else []
        words = _written(turn, notes, summary)
        yield Step(needed=needed, kept=None if words is None else frozenset(_named(words, names)))
        if unseen and turn.observation:
            result = whole_words(without_hint(turn.observation))
            shown = {fact for fact in _named(result, unseen) if not fact.beside or _holds(result, fact.beside)}
            if shown:
                seen |= shown
                unseen = [(alias, fact) for alias, fact in unseen if fact not in shown]
                needed = tuple(fact for fact in facts if fact in seen and fact.until not in seen)
                names = _by_alias(needed)


def holds(text: str, aliases: Aliases) -> bool:
    """Whether a text names one of the aliases, as whole words."""
    return _holds(whole_words(text), aliases)


def facts_of(task: Task) -> list[Fact]:
    """Answers first, then what leads to them, without duplicates and names in the prompt."""
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
    prompt = whole_words(task.prompt)
    return [fact for fact in facts.values() if fact.aliases and not _holds(prompt, fact.aliases)]


def _answer(number: int, question: Question, titles: Sequence[Aliases]) -> Fact:
    aliases = _names(question.answers)
    beside = tuple(alias for title in titles if not set(title) & set(aliases) for alias in title)
    return Fact(aliases, beside, text=" / ".join(question.answers), question=number)


def _either(later: Fact, first: Fact) -> Fact:
    """The common answer of two questions; it is shown when it is shown for either."""
    beside = dict.fromkeys(later.beside + first.beside) if later.beside and first.beside else ()
    return replace(first, beside=tuple(beside))


def _title(title: str) -> Aliases:
    """With and without the qualifier: "Green (album)" is written "Green" in a sentence."""
    before, opened, inside = title.removesuffix(")").rpartition("(")
    qualified = title.endswith(")") and opened and ")" not in inside
    return _names((title, before.rstrip()) if qualified else (title,))


def _names(texts: Sequence[str]) -> Aliases:
    """The normalised names that do not occur by accident; none at all if one is a mere yes or no."""
    normalized = {normalize(text): whole_words(text) for text in texts}
    return () if _NO_NAMES & normalized.keys() else tuple(words for name, words in normalized.items() if len(name) > 1)


def _written(turn: Turn, notes: Sequence[Turn], summary: str) -> str | None:
    """State, notes that stand, summary and final answer together: a fact that moved between them is not lost."""
    standing = [note.text for note in notebook(notes)] if notes else [summary]  # a notebook holds its rewrite
    memory = " ; ".join([turn.state, *standing])
    if turn.action in (ANSWER, SUMMARY):
        return whole_words(f"{memory} ; {turn.content}")
    return whole_words(memory) if turn.state or notes or summary else None


def _holds(words: str, aliases: Aliases) -> bool:
    return any(alias in words for alias in aliases)


def _by_alias(facts: Iterable[Fact]) -> list[tuple[str, Fact]]:
    """Pairs of alias and fact, a flat list for the innermost loop of the metrics."""
    return [(alias, fact) for fact in facts for alias in fact.aliases]


def _named(words: str, names: Sequence[tuple[str, Fact]]) -> set[Fact]:
    return {fact for alias, fact in names if alias in words}


def _share(counts: Sequence[tuple[int, int] | None]) -> float | None:
    some = [count for count in counts if count is not None]
    needed = sum(needed for _, needed in some)
    return sum(kept for kept, _ in some) / needed if needed else None
