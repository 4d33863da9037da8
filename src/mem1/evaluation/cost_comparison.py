"""`full` and every `fold(k)` side by side, and from which turn on rewriting is cheaper.

cost if the attempt ends with turn   1    2    3    4    5
full                                10   22   36   52   70
fold(1)                             10   24   39   51   63      break-even turn 4: cheaper there and ever after
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from mem1.contexts import Fold, Full
from mem1.evaluation.cost import PrefixCache, Prices, Sizes, calls, costs

_ROUNDING = 1e-12
"""Relative difference below which two costs are the same: sums in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One policy's cost. Means are over attempts."""

    context: str
    """Name of the context policy."""
    k: int | None
    """None: `full`."""
    cost: float
    """Mean of an attempt, in the unit of the prices."""
    by_turn: tuple[float, ...]
    """Entry t - 1: the same if every attempt had ended with turn t at the latest."""
    fresh: float
    """Mean context tokens of an attempt that are neither read from the cache nor written to it."""
    cached: float
    written: float
    output: float
    """Mean generated tokens of an attempt."""
    peak_tokens: float
    """Mean of the largest context + output of an attempt."""
    break_even: int | None
    """The turn from which on it is cheaper than `full`; None: never in the turns looked at, or it is `full`."""


def compare(
    attempts: Sequence[Sizes],
    prices: Prices,
    cache: PrefixCache,
    *,
    thoughts: float = 0.0,
    turns: int | None = None,
) -> list[Line]:
    """`full`, then fold(1), fold(2), … up to fold(T) for attempts of at most T turns.

    With `turns` the attempts are priced as if they ended there, and what they do afterwards serves `by_turn` and the
    break-even turn alone. Raises ValueError without attempts.
    """
    if not attempts:
        raise ValueError("there is no attempt to price")
    longest = turns or max(len(sizes.turns) for sizes in attempts)
    full = _line(attempts, None, prices, cache, thoughts, turns, ())
    folds = [_line(attempts, k, prices, cache, thoughts, turns, full.by_turn) for k in range(1, longest + 1)]
    return [full, *folds]


def best(lines: Sequence[Line]) -> Line:
    """The cheapest; of equal ones `full`, then the one that rewrites least."""
    cheapest = min(line.cost for line in lines)
    equal = [line for line in lines if line.cost <= cheapest * (1 + _ROUNDING)]
    return max(equal, key=lambda line: math.inf if line.k is None else line.k)


def break_even(by_turn: Sequence[float], full_by_turn: Sequence[float]) -> int | None:
    """The turn from which on the first costs less than the second, up to the last turn there is; None: never."""
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
) -> Line:
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
    return Line(
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
