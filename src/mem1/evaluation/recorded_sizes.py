"""The sizes of recorded attempts, to be priced under other context policies than the one that they ran under.

context P P, completion S S A, result R R R; context P P S S A R R R, completion A A
recorded_sizes(...)  ->  prompt 2; state 2, action 1, result 3; state 0, action 2, result 0
"""

from __future__ import annotations

from mem1.contexts import Fold, Full, Window, context_policy
from mem1.errors import UserError
from mem1.evaluation.cost import Sizes, TurnSizes
from mem1.records import Trajectory, Turn


def recorded_sizes(trajectory: Trajectory) -> Sizes:
    """The sizes of an attempt that was rolled out under `constant`, `fold(k)`, `full` or `window(k)`.

    Raises UserError for one under another policy, whose calls are not one a turn, and for one that made no call.
    """
    name = trajectory.task.id if trajectory.task is not None else "?"
    if not isinstance(context_policy(trajectory.context), Fold | Full | Window):
        raise UserError(
            f"task {name!r} was rolled out under {trajectory.context}, whose calls are not one a turn; give a run "
            "under constant, fold(k), full or window(k)"
        )
    if not trajectory.turns:
        raise UserError(f"task {name!r} made no call ({trajectory.ended}); leave it out")
    first, last = trajectory.turns[0], trajectory.turns[-1]
    forced = _forced_tokens(last)
    turns = [_turn_sizes(turn, 0) for turn in trajectory.turns]
    if len(turns) > 1:  # the answer tag opened in the last context stands where the last result ends
        turns[-2] = _turn_sizes(trajectory.turns[-2], forced)
    return Sizes(prompt=len(first.context_ids), turns=tuple(turns))


def _turn_sizes(turn: Turn, following: int) -> TurnSizes:
    state, thought = (stop - start for start, stop in (turn.completion_spans.get(r, (0, 0)) for r in _WRITTEN))
    return TurnSizes(
        state=state,
        thought=thought,
        action=len(turn.completion_ids) - state - thought,
        result=len(turn.observation_ids) + following,
    )


_WRITTEN = ("state", "thought")


def _forced_tokens(turn: Turn) -> int:
    if not turn.forced:
        return 0
    return len(turn.context_ids) - max(stop for _, stop in turn.context_spans.values())
