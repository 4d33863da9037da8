"""Small suites of Atlas tasks, for tests of the benchmark's harness."""

from __future__ import annotations

from mem1.bench.suites import Cell, Suite
from mem1.envs.atlas import AtlasTasks
from mem1.envs.tasks import TasksConfig


def atlas(cell: Cell, seed: int, native: bool) -> TasksConfig:
    """Tasks of one small world; the family is their composition."""
    return AtlasTasks(
        worlds=1,
        entities=40,
        questions_per_world=40,
        first_world=seed,
        composition=cell.family,  # type: ignore[arg-type]
        prompt="bench-tools" if native else "plain",
    )


def suite(tasks: dict[int, int], families: tuple[str, ...] = ("independent", "chain")) -> Suite:
    """Number of objectives -> tasks of each family; a chain has at least two."""
    cells = (
        Cell(family=family, objectives=objectives, tasks=count)
        for family in families
        for objectives, count in tasks.items()
        if objectives > 1 or family == "independent"
    )
    return Suite(name="small", cells=tuple(cells), config=atlas)


SMALL = suite({1: 2, 2: 3})
KILLED = suite({1: 4, 2: 4})
LARGE = suite({1: 200, 2: 200, 3: 200})
"""1,000 tasks."""
