"""The calls of an attempt under `full` and `fold(k)`, their cost under a prefix cache, and where rewriting is cheaper.

    prompt 100; every turn writes a state of 20 (when it has to) and an action of 10, and gets a result of 50
    full        contexts 100, 160, 220     outputs 10, 10, 10
    fold(1)     contexts 100, 160, 180     outputs 10, 30, 10      turn 2 writes a state, because turn 3 drops turn 1

The context tokens of a call are priced in three parts: `cached` tokens, the prefix that the previous call wrote to the
cache; `written` ones, which the next call will read; and `fresh` ones. Generated tokens are `output`. A state is
written in exactly those turns after which something is dropped, so that fold(k) with k >= T is `full`. docs/cost.md
has the derivation, the assumptions and a table worked out by hand.

    cost if the attempt ends with turn   1    2    3    4    5
    full                                10   22   36   52   70
    fold(1)                             10   24   39   51   63      break-even turn 4: cheaper from there on

The sizes come from four numbers (`even_sizes`) or from a recorded attempt:

    context P P, completion S S A, result R R R; context P P S S A R R R, completion A A
    recorded_sizes(...)  ->  prompt 2; state 2, action 1, result 3; state 0, action 2, result 0
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile

from mem1.contexts import Fold, Full, Window, context_policy
from mem1.errors import UserError
from mem1.evaluation.tokens import Sizes, TurnSizes
from mem1.prices import PrefixCache, Prices
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


_ROUNDING = 1e-12
"""Relative difference up to which two costs count as equal, because of the order of summation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCost:
    """The cost of one context policy. Means are over attempts."""

    context: str
    """Name of the context policy."""
    k: int | None
    """None: `full`."""
    cost: float
    """Mean cost of an attempt, in the unit of the prices."""
    by_turn: tuple[float, ...]
    """Entry t - 1: mean cost if every attempt had ended with turn t at the latest."""
    fresh: float
    """Mean context tokens per attempt neither read from the cache nor written to it."""
    cached: float
    written: float
    output: float
    """Mean generated tokens per attempt."""
    peak_tokens: float
    """Mean over attempts of the largest context + output."""
    break_even: int | None
    """First turn from which it stays cheaper than `full`; None: none of the turns considered, or it is `full`."""


def compare(
    attempts: Sequence[Sizes],
    prices: Prices,
    cache: PrefixCache,
    *,
    thoughts: float = 0.0,
    turns: int | None = None,
) -> list[PolicyCost]:
    """`full`, then fold(1), fold(2), … up to fold(T) for attempts of at most T turns.

    With `turns` the attempts are priced as if they ended there; later turns are used only for `by_turn` and the
    break-even turn. Raises ValueError without attempts.
    """
    if not attempts:
        raise ValueError("there is no attempt to price")
    longest = turns or max(len(sizes.turns) for sizes in attempts)
    full = _line(attempts, None, prices, cache, thoughts, turns, ())
    folds = [_line(attempts, k, prices, cache, thoughts, turns, full.by_turn) for k in range(1, longest + 1)]
    return [full, *folds]


def best(lines: Sequence[PolicyCost]) -> PolicyCost:
    """The cheapest policy; among equals `full`, then the one that rewrites least."""
    cheapest = min(line.cost for line in lines)
    equal = [line for line in lines if line.cost <= cheapest * (1 + _ROUNDING)]
    return max(equal, key=lambda line: math.inf if line.k is None else line.k)


def break_even(by_turn: Sequence[float], full_by_turn: Sequence[float]) -> int | None:
    """First turn from which the first curve stays below the second up to the last turn; None: none."""
    cheaper = [a < b * (1 - _ROUNDING) for a, b in zip(by_turn, full_by_turn, strict=True)]
    lasting = len(list(takewhile(bool, reversed(cheaper))))
    return len(cheaper) - lasting + 1 if lasting else None


def _line(
    attempts: Sequence[Sizes],
    k: int | None,
    prices: Prices,
    cache: PrefixCache,
    thoughts: float,
    turns: int | None,
    full_by_turn: Sequence[float],
) -> PolicyCost:
    every = [calls(sizes, k, cache, thoughts=thoughts) for sizes in attempts]
    ended = [made[:turns] for made in every]
    curves = [costs(made, prices) for made in every]
    longest = max(map(len, curves))
    by_turn = tuple(_mean([curve[min(t, len(curve)) - 1] for curve in curves]) for t in range(1, longest + 1))
    outputs = [[*(c.output for c in made[:-1]), made[-1].output_if_last] for made in ended]
    peaks = [
        max(c.context + o for c, o in zip(made, written, strict=True))
        for made, written in zip(ended, outputs, strict=True)
    ]
    return PolicyCost(
        context=(Full() if k is None else Fold(k)).name,
        k=k,
        cost=_mean([curve[len(made) - 1] for curve, made in zip(curves, ended, strict=True)]),
        by_turn=by_turn,
        fresh=_mean([sum(c.fresh for c in made) for made in ended]),
        cached=_mean([sum(c.cached for c in made) for made in ended]),
        written=_mean([sum(c.written for c in made) for made in ended]),
        output=_mean([sum(written) for written in outputs]),
        peak_tokens=_mean(peaks),
        break_even=break_even(by_turn, full_by_turn) if full_by_turn else None,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
