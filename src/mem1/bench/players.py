"""Who can take the benchmark: a port with one method, and what every kind of player makes attempts of.

    player.attempts(drawn, tasks, "full", stopped)    ->    an Attempt per task; none of those cut off by `stopped`

`mem1.bench.chat` has models that speak in chat messages, `mem1.bench.policies` those that speak in tags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from mem1.bench.results import Attempt
from mem1.bench.suites import Cell, Drawn
from mem1.records import Task


class Player(Protocol):
    """A model, or a script, with everything that is needed to let it work under any memory."""

    @property
    def name(self) -> str:
        """For tables."""
        ...

    @property
    def about(self) -> Mapping[str, Any]:
        """What tells it from others, as JSON: what is recorded of one player is never continued by another."""
        ...

    @property
    def native(self) -> bool:
        """Whether it calls tools in its own protocol, rather than in tags."""
        ...

    @property
    def together(self) -> int:
        """Tasks that are attempted in one call."""
        ...

    @property
    def at_a_time(self) -> int:
        """Calls at the same time, each in its own thread."""
        ...

    def check(self, memory: str) -> None:
        """Raises UserError for a memory that it cannot have. Quick."""
        ...

    def attempts(self, drawn: Drawn, tasks: Sequence[Task], memory: str, stopped: Callable[[], bool]) -> list[Attempt]:
        """Attempts at these tasks of a cell, without those that were cut off because a stop was requested.

        Raises LimitReached where the next request could exceed a limit.
        """
        ...


def outline(cell: Cell, task: Task, memory: str) -> dict[str, Any]:
    """The fields of an attempt that say what was attempted."""
    return {
        "task": task.id,
        "family": cell.family,
        "level": cell.level,
        "objectives": task.objectives,
        "memory": memory,
    }
