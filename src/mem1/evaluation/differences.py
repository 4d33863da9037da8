"""Which of two policies is better, measured on the same tasks.

    paired_difference(ours, theirs)   ->  Difference(mean=0.08, low=0.05, high=0.11, tasks=500)

A hard task is hard for both, so the difference task by task varies less than either mean: two intervals that overlap
may belong to a difference that is beyond doubt. Trajectories are matched by their task, in whatever order they come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mem1.errors import UserError
from mem1.evaluation.intervals import crossed_interval
from mem1.evaluation.metrics import solved
from mem1.records import Task, Trajectory

Measure = Callable[[Trajectory], float]
"""A number of one trajectory, such as `solved` (exact match per objective) or `peak_tokens`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Ours minus theirs, in the unit of the measure."""

    mean: float
    """Over tasks, and over seeds where there are several."""
    low: float
    """Lower end of its 95 % interval."""
    high: float
    """Upper end; an interval without 0 in it: one of the two is better."""
    tasks: int
    """Tasks that both attempted."""


def paired_difference(
    ours: Sequence[Trajectory], theirs: Sequence[Trajectory], *, measure: Measure = solved
) -> Difference:
    """Mean over tasks of ours minus theirs; the interval is over tasks, for these two policies as they are.

    Raises UserError where they did not attempt the same tasks, each once.
    """
    return paired_difference_over_seeds([ours], [theirs], measure=measure)


def paired_difference_over_seeds(
    ours: Sequence[Sequence[Trajectory]], theirs: Sequence[Sequence[Trajectory]], *, measure: Measure = solved
) -> Difference:
    """The same for two ways of training, each with one run a seed; the interval is over tasks and seeds.

    Raises UserError where not every run attempted the same tasks, each once.
    """
    values = values_by_task([*ours, *theirs], measure)
    mine, others = values[: len(ours)], values[len(ours) :]
    if not mine or not others:
        raise UserError("a difference needs two sides; give at least one run of each")
    low, high = crossed_interval(mine, minus=others)
    return Difference(mean=_mean(mine) - _mean(others), low=low, high=high, tasks=len(mine[0]))


def values_by_task(runs: Sequence[Sequence[Trajectory]], measure: Measure) -> list[list[float]]:
    """Entry [r][t] is the measure of run r on task t, in the order of the first run's tasks.

    Raises UserError where a run has other tasks than the first, the same one twice, or none.
    """
    by_task = [_by_task(run, number) for number, run in enumerate(runs, start=1)]
    for number, run in enumerate(by_task[1:], start=2):
        if len(run) != len(by_task[0]):
            raise UserError(f"run {number} has {len(run)} tasks and run 1 has {len(by_task[0])}; {_SAME}")
        for name, (task, _) in by_task[0].items():
            if name not in run:
                raise UserError(f"run {number} has no task {name!r}, which run 1 has; {_SAME}")
            if run[name][0] != task:
                raise UserError(f"task {name!r} of run {number} is another than that of run 1; {_SAME}")
    return [[measure(run[name][1]) for name in by_task[0]] for run in by_task]


_SAME = "evaluate both on the same tasks (source, number and seed)"


def _by_task(run: Sequence[Trajectory], number: int) -> dict[str, tuple[Task, Trajectory]]:
    found: dict[str, tuple[Task, Trajectory]] = {}
    for trajectory in run:
        if trajectory.task is None:
            raise UserError(f"run {number} has a trajectory without its task; keep the task when rolling out")
        if trajectory.task.id in found:
            raise UserError(f"run {number} has task {trajectory.task.id!r} twice; give one attempt a task")
        found[trajectory.task.id] = (trajectory.task, trajectory)
    if not found:
        raise UserError(f"run {number} has no trajectories, so there is nothing to compare")
    return found


def _mean(values: Sequence[Sequence[float]]) -> float:
    return sum(map(sum, values)) / (len(values) * len(values[0]))
