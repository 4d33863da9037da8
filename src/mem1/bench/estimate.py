"""What a run will cost, before anything is asked: the scripted solver plays tasks of every cell as a chat agent.

    estimates(suite, ["keep", "fold(8)"], seed=0, prices=price_class("hosted-90"))
    ->  [Estimated(memory="keep", tasks=240, fresh=410_000, cached=1_400_000, output=60_000, cost=2.6), ...]

It goes through the real agent and memory, at four characters a token. Of large cells it plays a few tasks, and counts
them as often as there are tasks. A model that thinks writes more than the script, and one that searches more reads
more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mem1.bench.results import Attempt
from mem1.bench.scripted import scripted_player
from mem1.bench.suites import Cell, Drawing, Suite
from mem1.prices import PriceClass

_PLAYED_OBJECTIVES = 8
"""Objectives of the tasks that are played of a cell, about, but one task at least."""


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

    def played(cell: Cell, memory: str) -> list[Attempt]:
        drawn = drawing.of(cell)
        most = max(1, _PLAYED_OBJECTIVES // cell.objectives)
        return player.attempts(drawn, drawn.tasks[:most], memory, lambda: False)

    found = []
    for memory in memories:
        weighed = [
            (attempt, cell.tasks / len(attempts))
            for cell in suite.cells
            for attempts in (played(cell, memory),)
            for attempt in attempts
        ]
        found.append(
            Estimated(
                memory=memory,
                tasks=sum(cell.tasks for cell in suite.cells),
                calls=sum(attempt.turns * weight for attempt, weight in weighed),
                fresh=sum(attempt.tokens.fresh * weight for attempt, weight in weighed),
                cached=sum(attempt.tokens.cached * weight for attempt, weight in weighed),
                output=sum(attempt.tokens.output * weight for attempt, weight in weighed),
                cost=None if prices is None else sum((attempt.cost or 0.0) * weight for attempt, weight in weighed),
            )
        )
    return found
