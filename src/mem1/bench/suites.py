"""What the benchmark asks: a suite is a list of cells, and a cell's tasks follow from the suite and the seed alone.

    suite = suite_of("quick")
    cell = suite.cells[0]                       Cell(family="independent", level=1, objectives=1, tasks=10)
    drawn = Drawing(suite, seed=0).of(cell)     drawn.tasks[3] has the id "independent-1-n1-seed0-3"

Seed 0 is the public one, on which models are compared. Every other seed has worlds of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from mem1.configuration.model import LARGEST_SEED
from mem1.envs.base import Environment, TaskSource
from mem1.envs.tasks import TasksConfig
from mem1.errors import UserError, suggestion
from mem1.protocol import ACT, PAPER, Tags, extended
from mem1.records import Task
from mem1.registry import load, register

WORLDS = 1_000
"""Seeds of worlds from one seed of a suite to the next."""
MOST_SEED = LARGEST_SEED // WORLDS - 1
"""Largest seed of a suite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Tasks of one family, level and size."""

    family: str
    level: int = 1
    objectives: int
    tasks: int
    """Number of tasks."""

    def ids(self, seed: int) -> tuple[str, ...]:
        """Of its tasks, in order."""
        head = f"{self.family}-{self.level}-n{self.objectives}-seed{seed}"
        return tuple(f"{head}-{number}" for number in range(self.tasks))


Config = Callable[[Cell, int, bool], TasksConfig]
"""(cell, seed, whether the model calls tools in its own protocol rather than in tags) -> the tasks' configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Cells, and where their tasks come from."""

    name: str
    cells: tuple[Cell, ...]
    config: Config
    limit: int | None = None
    """Most tasks of a cell that are attempted, its first ones; None: all."""

    def asked(self, cell: Cell) -> int:
        """How many tasks of a cell are attempted."""
        return cell.tasks if self.limit is None else min(self.limit, cell.tasks)

    @property
    def families(self) -> tuple[str, ...]:
        """In order."""
        return tuple(dict.fromkeys(cell.family for cell in self.cells))

    def only(self, families: Sequence[str]) -> Suite:
        """The cells of these families; empty: all. Raises UserError for a family that it lacks."""
        for family in families:
            if family not in self.families:
                raise UserError(f"the suite {self.name} has no family {family!r}; it has: {', '.join(self.families)}")
        return replace(self, cells=tuple(c for c in self.cells if not families or c.family in families))


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The tasks of a cell, ready to be attempted."""

    cell: Cell
    config: TasksConfig
    tags: Tags
    source: TaskSource
    seed: int

    @property
    def environment(self) -> Environment:
        """Thread-safe."""
        return self.source.environment

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """With the ids of the cell."""
        cell = self.cell
        found = self.source.tasks(objectives=cell.objectives, count=cell.tasks, seed=self.seed)
        return tuple(replace(task, id=id) for task, id in zip(found, cell.ids(self.seed), strict=True))

    @property
    def action(self) -> str:
        """The action with which these tasks are worked on: "search", or "act" in a shop."""
        return next(kind for kind, _ in self.tags.actions if kind != "answer")


class Drawing:
    """Draws cells when they are needed; cells of one family and level share their worlds. Thread-safe."""

    def __init__(self, suite: Suite, *, seed: int, native: bool = False) -> None:
        """`native`: the model calls tools in its own protocol, rather than in tags."""
        self._suite, self._seed, self._native = suite, seed, native
        self._sources: dict[str, tuple[TasksConfig, TaskSource]] = {}
        self._drawn: dict[Cell, Drawn] = {}
        self._lock = threading.Lock()

    def of(self, cell: Cell) -> Drawn:
        """The tasks of a cell. Raises UserError as its configuration does."""
        with self._lock:
            if cell not in self._drawn:
                tags = extended(PAPER, ACT) if cell.family == "errand" else PAPER
                config = self._suite.config(cell, self._seed, self._native)
                key = config.model_dump_json()
                config, source = self._sources.setdefault(key, (config, config.source("evaluation", tags)))
                drawn = Drawn(cell=cell, config=config, tags=tags, source=source, seed=self._seed)
                _ = drawn.tasks, drawn.environment  # here, where no other thread makes them too
                self._drawn[cell] = drawn
            return self._drawn[cell]


def _shipped(cell: Cell, seed: int, native: bool) -> TasksConfig:
    kind, prompt = ("errand", "bench-errand") if cell.family == "errand" else ("english", "bench")
    given: dict[str, Any] = {"level": cell.level, "prompt": f"{prompt}-tools" if native else prompt}
    own = {"seed": seed} if kind == "errand" else {"family": cell.family, "first_world": seed * WORLDS}
    return register.tasks.get(kind).model_validate({**given, **own})


_LEVELS = {"independent": 1, "chain": 3, "shared": 3, "constraint": 3, "update": 1, "budget": 3, "errand": 1}
"""Family -> its level in the suites that ship."""


def _suite(name: str, tasks: Mapping[int, int], errands: Mapping[int, int]) -> Suite:
    """Number of objectives -> tasks of each family, and of errands, which take many more turns."""
    cells = (
        Cell(family=family, level=level, objectives=objectives, tasks=count)
        for family, level in _LEVELS.items()
        for objectives, count in (errands if family == "errand" else tasks).items()
    )
    return Suite(name=name, cells=tuple(cells), config=_shipped)


SUITES: Mapping[str, Suite] = {
    suite.name: suite
    for suite in (
        _suite("quick", {1: 8, 2: 8, 4: 8, 8: 4, 16: 3}, {1: 6, 2: 3}),
        _suite("standard", {1: 24, 2: 24, 4: 24, 8: 20, 16: 12, 32: 6, 64: 3}, {1: 12, 2: 8, 4: 4}),
        _suite("full", {1: 48, 2: 48, 4: 48, 8: 40, 16: 32, 32: 16, 64: 8, 128: 4, 256: 2}, {1: 24, 2: 16, 4: 8, 8: 4}),
    )
}


def suite_of(name: str) -> Suite:
    """The suite of this name, or your own as package.module:NAME. Raises UserError where there is none."""
    if ":" in name:
        found = load(name)
        if not isinstance(found, Suite):
            raise UserError(f"{name} is a {type(found).__name__}, not a mem1.bench.suites.Suite")
        return found
    if name not in SUITES:
        raise UserError(
            f"unknown suite {name!r}{suggestion(name, SUITES)}; known: {', '.join(SUITES)}, or package.module:NAME"
        )
    return SUITES[name]


@lru_cache(maxsize=2)
def native_tasks(suite: str, seed: int, families: str) -> dict[str, tuple[Drawn, Task]]:
    """Id of a task -> its cell and itself, for harnesses whose models call tools in their own protocol.

    `families`: separated by commas; empty: all. Raises UserError for what the suite does not have.
    """
    chosen = suite_of(suite).only([family.strip() for family in families.split(",") if family.strip()])
    drawing = Drawing(chosen, seed=seed, native=True)
    return {task.id: (drawn, task) for drawn in map(drawing.of, chosen.cells) for task in drawn.tasks}
