"""What a run will cost, before anything is asked: the scripted solver plays tasks of the cells as a chat agent.

    estimates(suite, ["full", "fold(8)"], seed=0, prices=price_class("hosted-90"))
    ->  [Estimated(memory="full", tasks=240, fresh=410_000, cached=1_400_000, output=60_000, cost=2.6), ...]

It goes through the real agent and memory, at four characters a token. Of each cell it plays a few tasks and counts them
as often as there are tasks. Of cells whose tasks are long it plays none: what grows with every turn grows with the
square of N, so they are extrapolated from the two largest of their family that are played.

    N = 8: 20,000 = 8 a + 64 b, N = 16: 72,000 = 16 a + 256 b       N = 32: 32 a + 1024 b = 272,000

A model that thinks writes more than the script, and one that searches more reads more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mem1.bench.results import Attempt
from mem1.bench.scripted import scripted_player
from mem1.bench.suites import Cell, Drawing, Suite
from mem1.prices import PriceClass

_PLAYED = 8
"""Objectives that are played of a cell, about; two tasks at least."""
_LONGEST = 60
"""Turns of a task from which on cells are extrapolated, where two smaller ones are there."""
_MEASURED = ("calls", "fresh", "cached", "output", "cost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """All tasks of a suite under one memory."""

    memory: str
    tasks: int
    calls: float
    """Replies to turns; states come on top."""
    fresh: float
    """Prompt tokens that no cache serves."""
    cached: float
    output: float
    cost: float | None
    """In the unit of the prices; None: there are none."""

    @property
    def input(self) -> float:
        """All prompt tokens."""
        return self.fresh + self.cached


def estimates(suite: Suite, memories: Sequence[str], *, seed: int, prices: PriceClass | None = None) -> list[Estimated]:
    """One for each memory."""
    drawing = Drawing(suite, seed=seed, native=True)
    player = scripted_player("script", state=None, prices=prices)

    def played(cell: Cell, memory: str) -> dict[str, float]:
        drawn = drawing.of(cell)
        most = max(2, _PLAYED // cell.objectives)
        tasks = drawn.tasks[: min(most, suite.asked(cell))]
        return _mean([played.attempt for played in player.attempts(drawn, tasks, memory, lambda: False)])

    found = []
    for memory in memories:
        sizes: dict[tuple[str, int], dict[int, dict[str, float]]] = {}
        total = dict.fromkeys(_MEASURED, 0.0)
        for cell in sorted(suite.cells, key=lambda cell: cell.objectives):
            smaller = sizes.setdefault((cell.family, cell.level), {})
            turns = _at(cell.objectives, {n: means["calls"] for n, means in smaller.items()}) if smaller else 0
            if cell.objectives not in smaller and (turns <= _LONGEST or len(smaller) < 2):
                smaller[cell.objectives] = played(cell, memory)
            for name in _MEASURED:
                total[name] += suite.asked(cell) * _at(
                    cell.objectives, {n: means[name] for n, means in smaller.items()}
                )
        cost = None if prices is None else total.pop("cost")
        tasks = sum(map(suite.asked, suite.cells))
        found.append(Estimated(memory=memory, tasks=tasks, **{**total, "cost": cost}))
    return found


def _mean(attempts: Sequence[Attempt]) -> dict[str, float]:
    """Of one attempt."""
    number = len(attempts)
    return {
        "calls": sum(attempt.turns for attempt in attempts) / number,
        "fresh": sum(attempt.tokens.fresh for attempt in attempts) / number,
        "cached": sum(attempt.tokens.cached for attempt in attempts) / number,
        "output": sum(attempt.tokens.output for attempt in attempts) / number,
        "cost": sum(attempt.cost or 0.0 for attempt in attempts) / number,
    }


def _at(objectives: int, known: Mapping[int, float]) -> float:
    """The measure for so many objectives: as measured, or a N + b N^2 through its two largest sizes."""
    if objectives in known:
        return known[objectives]
    last = max(known)
    before = max((n for n in known if n != last), default=last)
    # as a line: the measure divided by N is a + b N; neither is below 0
    per, per_before = known[last] / last, known[before] / before
    slope = min(max(0.0, (per - per_before) / max(1, last - before)), per / last)
    return objectives * (per + slope * (objectives - last))
