"""The calls of an attempt under `full` and under `fold(k)`, with what they cost under a prefix cache.

    prompt 100; every turn writes a state of 20 (when it has to) and an action of 10, and gets a result of 50
    full        contexts 100, 160, 220     outputs 10, 10, 10
    fold(1)     contexts 100, 160, 180     outputs 10, 30, 10      turn 2 writes a state, because turn 3 drops turn 1

The context tokens of a call are priced in three parts: `cached` tokens, the prefix that the previous call wrote to the
cache; `written` ones, which the next call will read; and `fresh` ones. Generated tokens are `output`. A state is
written in exactly those turns after which something is dropped, so that fold(k) with k >= T is `full`. docs/cost.md
has the derivation, the assumptions and a table worked out by hand.

The sizes come from four numbers (`even_sizes`) or from a recorded attempt:

    context P P, completion S S A, result R R R; context P P S S A R R R, completion A A
    recorded_sizes(...)  ->  prompt 2; state 2, action 1, result 3; state 0, action 2, result 0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from mem1.contexts import Fold, Full, Window, context_policy
from mem1.errors import UserError
from mem1.evaluation.tokens import Sizes, TurnSizes
from mem1.extras.cost.prices import PrefixCache, Prices
from mem1.records import Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Tokens of one call by price."""

    fresh: int
    cached: int
    written: int
    output: int
    output_if_last: int
    """Output if this is the last call, which writes no state because nobody would read it."""

    @property
    def context(self) -> int:
        return self.fresh + self.cached + self.written


def calls(sizes: Sizes, k: int | None, cache: PrefixCache, *, thoughts: float = 0.0) -> list[Call]:
    """The calls of an attempt under fold(k), or under `full` if `k` is None; one per turn.

    In a turn without a state the agent writes `thoughts` times as much as a state (0: only its action; 1: it thinks as
    long in every turn, as the agents of MEM1 do), which stays in the context like its action.
    """
    made: list[Call] = []
    kept, kept_tokens, readable = 0, 0, 0
    for turn in sizes.turns:
        context = sizes.prompt + kept_tokens
        drops = kept == k
        idle = round(thoughts * turn.state)
        memory = turn.state if drops else idle
        next_readable = cache.kept(sizes.prompt if drops else context)
        written = max(0, next_readable - readable)
        made.append(
            Call(
                fresh=context - readable - written,
                cached=readable,
                written=written,
                output=turn.thought + memory + turn.action,
                output_if_last=turn.thought + idle + turn.action,
            )
        )
        carried = memory + turn.action + turn.result
        kept, kept_tokens = (1, carried) if drops else (kept + 1, kept_tokens + carried)
        readable = next_readable
    return made


def costs(made: Sequence[Call], prices: Prices) -> list[float]:
    """Entry t - 1: cost of the attempt if it ends with turn t, in the unit of the prices."""
    given = [c.fresh * prices.fresh + c.cached * prices.cached + c.written * prices.write for c in made]
    before = accumulate((g + c.output * prices.output for g, c in zip(given, made, strict=True)), initial=0.0)
    # zip stops at the last call; the final partial sum has no call after it
    return [(b + g + c.output_if_last * prices.output) / 1e6 for b, g, c in zip(before, given, made, strict=False)]


def recorded_sizes(trajectory: Trajectory) -> Sizes:
    """The sizes of an attempt recorded under `constant`, `fold(k)`, `full` or `window(k)`.

    Raises UserError for other context policies, which do not make one call per turn, and for an attempt without calls.
    """
    name = trajectory.task.id if trajectory.task is not None else "?"
    if not isinstance(context_policy(trajectory.context), Fold | Full | Window):
        raise UserError(
            f"task {name!r} was recorded under {trajectory.context}, which does not make one call per turn; give a run "
            "under constant, fold(k), full or window(k)"
        )
    if not trajectory.turns:
        raise UserError(f"task {name!r} made no call ({trajectory.ended}); leave it out")
    first, last = trajectory.turns[0], trajectory.turns[-1]
    prefilled = len(last.prefill_ids)
    turns = [_turn_sizes(turn, 0) for turn in trajectory.turns]
    if len(turns) > 1:  # the answer tag opened in the last context follows the last result
        turns[-2] = _turn_sizes(trajectory.turns[-2], prefilled)
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
