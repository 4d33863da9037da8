"""What a result of the benchmark says: per memory and family a score, and what it cost; and which of two is better.

    score_of(result.of("full"))
    ->  Score(area=Estimate(0.71, 0.64, 0.78), points=(Point(level=1, objectives=1, accuracy=...), ...), spent=...)
    compare(Side(a, "full"), Side(b, "notes"))
    ->  Compared(tasks=240, families=(ComparedFamily("chain", difference=Difference(0.12, 0.05, 0.19), ...), ...))

A family's score is the area under accuracy over log2 N, by trapezoids, divided by the range of log2 N; with a single N
it is the accuracy. Levels of a family weigh the same, and so do families in the score of all. So a score is a sum of
weights times the accuracies of cells (family, level, N), for which `mem1.evaluation.intervals` has an interval.

    N = 1, 2, 8   ->  weights 1/6, 3/6, 2/6: half of each step goes to either end, divided by log2 8
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mem1.bench.results import Attempt, Result
from mem1.errors import UserError
from mem1.evaluation.compare import Difference, Estimate
from mem1.evaluation.intervals import mean_interval, weighted_difference_interval, weighted_interval

Cell = tuple[str, int, int]
"""(family, level, N)."""
Interval = Callable[[Sequence[Sequence[float]], Sequence[float]], tuple[float, float]]
"""Values of each cell and their weights -> the interval of their weighted sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The tasks of one cell."""

    family: str
    level: int
    objectives: int
    tasks: int
    accuracy: Estimate
    """Mean over tasks of the share of objectives that are right."""
    tokens: float
    """Mean of all tokens of an attempt."""
    peak: float
    """Mean peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerRight:
    """What was spent on all attempts, failed ones too, divided by the number of right answers."""

    fresh: float
    cached: float
    output: float
    cost: float | None
    """In the unit of the result's prices; None: an attempt has no cost."""

    @property
    def tokens(self) -> float:
        """Of prompts and replies."""
        return self.fresh + self.cached + self.output


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Attempts of one memory: at one family, or at all."""

    area: Estimate
    """Area under accuracy over log2 N."""
    points: tuple[Point, ...]
    """By family, level and N."""
    tasks: int
    objectives: int
    right: float
    """Number of right answers."""
    per_right: PerRight | None
    """None: no answer was right."""
    mean_peak: float
    largest_peak: int
    endings: Mapping[str, int]
    """Number of attempts by `Attempt.ended`, the most frequent first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A result under one of its memories: a row of a table, and one of two that are compared."""

    result: Result
    memory: str
    told: Mapping[str, str] = field(default_factory=dict)
    """Task -> its attempt turn by turn (`mem1.evaluation.report.viewer_data.Told`, compressed), where it was kept."""

    @property
    def name(self) -> str:
        """The model and the memory."""
        return f"{self.result.model}, {self.memory}"

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Those under this memory."""
        return self.result.of(self.memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFamily:
    """Two sides on the tasks of a family that both attempted."""

    family: str | None
    """None: all families."""
    first: Estimate
    """Score of the first on these tasks."""
    second: Estimate
    difference: Difference
    """The second minus the first; its interval is paired: over tasks, of the differences."""
    tokens: tuple[float, float]
    """Mean tokens of an attempt of the first and of the second."""
    peak: tuple[float, float]
    """Mean peaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Two sides on the same tasks."""

    tasks: int
    """That both attempted."""
    left_out: tuple[int, int]
    """Tasks that only the first, or only the second, attempted."""
    families: tuple[ComparedFamily, ...]
    """In the order of the suite; where there are several, all of them together at the end."""


def sides_of(result: Result, told: Mapping[str, Mapping[str, str]] | None = None) -> list[Side]:
    """One side per memory, in the order of the result; `told`: memory -> as of `Side.told`."""
    return [Side(result=result, memory=memory, told=(told or {}).get(memory, {})) for memory in result.memories]


def names_of(sides: Sequence[Side]) -> list[str]:
    """What tells each from the others: its memory, its model or both, with a number where that is not enough."""
    models, memories = {side.result.model for side in sides}, {side.memory for side in sides}
    if len(models) == 1:
        names = [side.memory for side in sides]
    elif len(memories) == 1:
        names = [side.result.model for side in sides]
    else:
        names = [side.name for side in sides]
    seen = Counter(names)
    number: Counter[str] = Counter()
    for place, name in enumerate(names):
        if seen[name] > 1:
            number[name] += 1
            names[place] = f"{name} ({number[name]})"
    return names


def scores(side: Side) -> dict[str, Score]:
    """Family -> score, in the order of the first attempts."""
    return {family: score_of(attempts) for family, attempts in by_family(side.attempts).items()}


def by_family(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    """Family -> its attempts, in the order of the first ones."""
    found: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        found.setdefault(attempt.family, []).append(attempt)
    return found


def score_of(attempts: Sequence[Attempt]) -> Score:
    """The score of one memory's attempts, of one family or of several. Raises ValueError without attempts."""
    cells = cells_of(attempts)
    accuracies = {cell: [attempt.accuracy for attempt in of] for cell, of in cells.items()}
    right = math.fsum(value for attempt in attempts for value in attempt.right)
    return Score(
        area=Estimate(**_area(accuracies, weighted_interval)),
        points=tuple(_point(cell, cells[cell], accuracies[cell]) for cell in sorted(cells)),
        tasks=len(attempts),
        objectives=sum(attempt.objectives for attempt in attempts),
        right=right,
        per_right=_per_right(attempts, right),
        mean_peak=_mean(attempt.peak for attempt in attempts),
        largest_peak=max(attempt.peak for attempt in attempts),
        endings=dict(Counter(attempt.ended for attempt in attempts).most_common()),
    )


def cell_weights(cells: Iterable[Cell]) -> dict[Cell, float]:
    """The weight of each cell's accuracy in the score; they sum to 1."""
    families: dict[str, dict[int, list[int]]] = {}
    for family, level, objectives in cells:
        families.setdefault(family, {}).setdefault(level, []).append(objectives)
    return {
        (family, level, n): weight / len(levels) / len(families)
        for family, levels in families.items()
        for level, sizes in levels.items()
        for n, weight in trapezoids(sizes).items()
    }


def trapezoids(sizes: Iterable[int]) -> dict[int, float]:
    """N -> its weight in the area over log2 N, divided by the range: {1: 1/6, 2: 3/6, 8: 2/6}; of a single N: 1."""
    ordered = sorted(set(sizes))
    if len(ordered) == 1:
        return {ordered[0]: 1.0}
    places = [math.log2(n) for n in ordered]
    span = places[-1] - places[0]
    last = len(places) - 1
    return {n: (places[min(i + 1, last)] - places[max(i - 1, 0)]) / (2 * span) for i, n in enumerate(ordered)}


def compare(first: Side, second: Side) -> Compared:
    """Differences per family on the tasks that both attempted.

    Raises UserError for results of another suite, seed or version of the tasks, for a memory that a result lacks, and
    where no task is shared.
    """
    _check_comparable(first, second)
    mine, others = by_task(first), by_task(second)
    shared = [name for name in mine if name in others]
    if not shared:
        raise UserError(f"{first.name} and {second.name} share no task; run both with the same families and sizes")
    for name in shared:
        if _cell(mine[name]) != _cell(others[name]):
            raise UserError(
                f"task {name!r} of {first.name} is another than that of {second.name}; run one of them again"
            )
    families = by_family(mine[name] for name in shared)
    several = [(None, [mine[name] for name in shared])] if len(families) > 1 else []
    return Compared(
        tasks=len(shared),
        left_out=(len(mine) - len(shared), len(others) - len(shared)),
        families=tuple(_difference(family, of, others) for family, of in [*families.items(), *several]),
    )


def by_task(side: Side) -> dict[str, Attempt]:
    """Task -> its attempt. Raises UserError for a task with two."""
    found: dict[str, Attempt] = {}
    for attempt in side.attempts:
        if attempt.task in found:
            raise UserError(f"{side.name} has task {attempt.task!r} twice; give one attempt per task")
        found[attempt.task] = attempt
    return found


def _check_comparable(first: Side, second: Side) -> None:
    for side in (first, second):
        if side.memory not in side.result.memories:
            known = ", ".join(side.result.memories)
            raise UserError(f"{side.result.model} was not run with memory {side.memory!r}; it has {known}")
    for name in ("suite", "seed", "tasks"):
        mine, other = getattr(first.result, name), getattr(second.result, name)
        if mine != other:
            what = "version of the tasks" if name == "tasks" else name
            raise UserError(
                f"{first.name} was run with {what} {mine}, and {second.name} with {other}; "
                "only results on the same tasks are comparable"
            )


def _difference(family: str | None, mine: Sequence[Attempt], others: Mapping[str, Attempt]) -> ComparedFamily:
    theirs = [others[attempt.task] for attempt in mine]
    cells = cells_of(mine)
    values = {cell: [others[one.task].accuracy - one.accuracy for one in of] for cell, of in cells.items()}
    return ComparedFamily(
        family=family,
        first=score_of(mine).area,
        second=score_of(theirs).area,
        difference=Difference(**_area(values, weighted_difference_interval), tasks=len(mine)),
        tokens=(_mean(map(_tokens, mine)), _mean(map(_tokens, theirs))),
        peak=(_mean(one.peak for one in mine), _mean(one.peak for one in theirs)),
    )


def cells_of(attempts: Iterable[Attempt]) -> dict[Cell, list[Attempt]]:
    found: dict[Cell, list[Attempt]] = {}
    for attempt in attempts:
        found.setdefault(_cell(attempt), []).append(attempt)
    return found


def _cell(attempt: Attempt) -> Cell:
    return attempt.family, attempt.level, attempt.objectives


def _area(values: Mapping[Cell, Sequence[float]], interval: Interval) -> dict[str, float]:
    """Value, low and high of an estimate."""
    weights = cell_weights(values)
    low, high = interval(list(values.values()), [weights[cell] for cell in values])
    return {"value": math.fsum(weights[cell] * _mean(of) for cell, of in values.items()), "low": low, "high": high}


def _point(cell: Cell, attempts: Sequence[Attempt], accuracies: Sequence[float]) -> Point:
    low, high = mean_interval(accuracies)
    return Point(
        family=cell[0],
        level=cell[1],
        objectives=cell[2],
        tasks=len(attempts),
        accuracy=Estimate(value=_mean(accuracies), low=low, high=high),
        tokens=_mean(map(_tokens, attempts)),
        peak=_mean(attempt.peak for attempt in attempts),
    )


def _per_right(attempts: Sequence[Attempt], right: float) -> PerRight | None:
    if right == 0:
        return None
    costs = [attempt.cost for attempt in attempts]
    known = [cost for cost in costs if cost is not None]
    return PerRight(
        fresh=sum(attempt.tokens.fresh for attempt in attempts) / right,
        cached=sum(attempt.tokens.cached for attempt in attempts) / right,
        output=sum(attempt.tokens.output for attempt in attempts) / right,
        cost=math.fsum(known) / right if len(known) == len(costs) else None,
    )


def _tokens(attempt: Attempt) -> int:
    return attempt.tokens.fresh + attempt.tokens.cached + attempt.tokens.output


def _mean(values: Iterable[Any]) -> float:
    found = list(values)
    return math.fsum(found) / len(found)
