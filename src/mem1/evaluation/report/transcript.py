"""A trajectory as the page shows it: per turn the exact context and completion, cut at the recorded roles.

    context  p q a b c d i j, spans prompt (0, 2), state (2, 4), query (4, 6), result (6, 8)
    ->       Piece("prompt", "p q", 2), Piece("state", "a b", 2), Piece("query", "c d", 2), Piece("result", "i j", 2)

Every token of a context or completion is in exactly one piece. What has no recorded role is "earlier" where it
follows the prompt (older turns that the context policy kept), "forced" at the end of a forced turn's context, and
"text" elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mem1.evaluation.metrics import appended_tokens
from mem1.records import Span, Trajectory, Turn
from mem1.scoring import split_answers

Decode = Callable[[Sequence[int]], str]
"""Token ids to text, special tokens kept."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring tokens of one role."""

    role: str
    text: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnView:
    """One turn; sizes in tokens."""

    number: int
    context: list[Piece]
    completion: list[Piece]
    context_tokens: int
    completion_tokens: int
    appended: int
    """Context + completion if nothing had been dropped until here."""
    action: str
    forced: bool

    @property
    def tokens(self) -> int:
        return self.context_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One question with what was answered; `em` and `f1` are None where the trajectory was never scored."""

    question: str
    golds: str
    given: str
    em: float | None
    f1: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """A whole trajectory."""

    label: str
    ended: str
    detail: str
    context: str
    reward: float | None
    turns: list[TurnView]
    objectives: list[Objective]
    """Empty where the trajectory has no task."""
    turn_limit: int | None
    largest: int
    """The largest size of any turn, as it was or appended; the scale of the bars."""


def transcript(label: str, trajectory: Trajectory, decode: Decode) -> Transcript:
    """Raises ValueError if a turn did not record which of its context tokens are the prompt."""
    turns = [
        _view(number, turn, appended, trajectory.context, decode)
        for number, (turn, appended) in enumerate(
            zip(trajectory.turns, appended_tokens(trajectory), strict=True), start=1
        )
    ]
    return Transcript(
        label=label,
        ended=trajectory.ended.value.replace("_", " "),
        detail=trajectory.detail,
        context=trajectory.context,
        reward=trajectory.reward,
        turns=turns,
        objectives=_objectives(trajectory),
        turn_limit=trajectory.task.turn_limit if trajectory.task else None,
        largest=max((max(turn.tokens, turn.appended) for turn in turns), default=1),
    )


def pieces(ids: Sequence[int], spans: Mapping[str, Span], decode: Decode, *, older: str, tail: str) -> list[Piece]:
    """Cut `ids` at `spans`, in order; tokens of no role are called `older` after the prompt and `tail` at the end."""
    found: list[Piece] = []
    position = 0
    for role, (start, stop) in sorted(spans.items(), key=lambda item: item[1]):
        start = max(start, position)
        if stop <= start:
            continue
        if start > position:
            name = older if found and found[-1].role == "prompt" else "text"
            found.append(Piece(name, decode(ids[position:start]), start - position))
        found.append(Piece(role, decode(ids[start:stop]), stop - start))
        position = stop
    if position < len(ids):
        found.append(Piece(tail, decode(ids[position:]), len(ids) - position))
    return found


def _view(number: int, turn: Turn, appended: int, policy: str, decode: Decode) -> TurnView:
    older = "text" if policy == "constant" else "earlier"
    tail = "forced" if turn.forced else "text"
    return TurnView(
        number=number,
        context=pieces(turn.context_ids, turn.context_spans, decode, older=older, tail=tail),
        completion=pieces(turn.completion_ids, turn.completion_spans, decode, older="text", tail="text"),
        context_tokens=len(turn.context_ids),
        completion_tokens=len(turn.completion_ids),
        appended=appended,
        action=turn.action,
        forced=turn.forced,
    )


def _objectives(trajectory: Trajectory) -> list[Objective]:
    if trajectory.task is None:
        return []
    questions = trajectory.task.questions
    given = split_answers(trajectory.answer, len(questions))
    em = trajectory.em or (None,) * len(questions)
    f1 = trajectory.f1 or (None,) * len(questions)
    return [
        Objective(question=q.text, golds=" / ".join(q.answers), given=g, em=e, f1=f)
        for q, g, e, f in zip(questions, given, em, f1, strict=True)
    ]
