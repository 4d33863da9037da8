"""Where answers are lost: EM as found x captured x retained x read.

    found      a result showed the answer
    captured   and once the next result had come, it was still in view
    retained   and it was in view in the last turn
    read       and the answer gives it

In view is what a turn has been given, without the newest result, and what it writes; and all its notes, also those
that `notebook(k)` does not show, as its answer has them. An answer that a result shows in the last turn but one is in
view by itself: it counts as captured and retained, and may still be read wrongly. What a result shows, and which names
say nothing, is as in `mem1.evaluation.fact_retention`; questions whose answers are such
names (yes, a name of the prompt) are left out, and questions with one answer count once.

    stages = answer_stages(attempts, codec.decode)
    stages.shares    {"found": 0.95, "captured": 0.9, "retained": 0.8, "read": 1.0, "em": 0.69}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from mem1.evaluation.fact_retention import Fact, facts_of, follow, holds
from mem1.memory import notebook
from mem1.records import Trajectory, Turn

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerStages:
    """Numbers of questions of any number of attempts; each stage is part of the one before it."""

    asked: int
    found: int
    captured: int
    retained: int
    read: int
    right: int
    """Right answers, also those that no result showed."""

    @property
    def shares(self) -> dict[str, float | None]:
        """Of each stage in the one before it, "found" of all questions; None: there were none. "em": right of all."""
        counts = (self.asked, self.found, self.captured, self.retained, self.read)
        names = ("found", "captured", "retained", "read")
        shares = {n: part / of if of else None for n, of, part in zip(names, counts, counts[1:], strict=False)}
        return {**shares, "em": self.right / self.asked if self.asked else None}


def answer_stages(trajectories: Sequence[Trajectory], decode: Decode) -> AnswerStages:
    """The stages of all questions. Raises ValueError for an attempt without its task."""
    counts = [0] * 6
    for trajectory in trajectories:
        for stages in _stages(trajectory, decode):
            counts = [count + reached for count, reached in zip(counts, stages, strict=True)]
    asked, found, captured, retained, read, correct = counts
    return AnswerStages(asked=asked, found=found, captured=captured, retained=retained, read=read, right=correct)


def _stages(trajectory: Trajectory, decode: Decode) -> Iterator[tuple[bool, ...]]:
    """Of each question with an answer of its own."""
    if trajectory.task is None:
        raise ValueError("a trajectory has no task, so its answers are not known; keep the task when rolling out")
    facts = facts_of(trajectory.task)
    shown = _shown(facts, trajectory.turns)
    right = trajectory.per_objective("em") or (0.0,) * trajectory.task.objectives
    turns = trajectory.turns

    @cache
    def view(position: int) -> str:
        return _view(turns[: position + 1], decode)

    for fact in facts:
        if fact.until is None:
            yield _reached(fact, shown.get(fact), len(turns) - 1, view, right[fact.question - 1] == 1)


def _shown(facts: Sequence[Fact], turns: Sequence[Turn]) -> dict[Fact, int]:
    """Position of the turn whose result first showed a fact; the last turn's is not read."""
    shown: dict[Fact, int] = {}
    for position, step in enumerate(follow(facts, turns)):
        for fact in step.needed:
            shown.setdefault(fact, position - 1)
    return shown


def _reached(fact: Fact, shown: int | None, last: int, view: Callable[[int], str], correct: bool) -> tuple[bool, ...]:
    """`last` is the position of the last turn."""
    if shown is None:
        return True, False, False, False, False, correct
    captured = shown + 1 == last or holds(view(min(shown + 2, last)), fact.aliases)
    retained = captured and (shown + 1 == last or holds(view(last), fact.aliases))
    return True, True, captured, retained, retained and correct, correct


def _view(turns: Sequence[Turn], decode: Decode) -> str:
    """What is in view in the last of these turns."""
    turn = turns[-1]
    start, stop = turn.context_spans.get("result", (len(turn.context_ids), len(turn.context_ids)))
    given = decode((*turn.context_ids[turn.prompt_tokens : start], *turn.context_ids[stop:]))
    noted = " ; ".join(note.text for note in notebook(turns)) if any(t.notes for t in turns) else ""
    return f"{given} ; {turn.text} ; {noted}"
