"""Which of two policies is better on the same tasks, and how much of a mean is due to the training seed.

    paired_difference([ours], [theirs])   ->  Difference(value=0.08, low=0.05, high=0.11, tasks=500)
    over_seeds([run_0, run_1, run_2])
    ->  OverSeeds(mean=0.61, by_seed=(0.58, 0.66, 0.59), spread=0.04,
                  over_tasks=(0.58, 0.64), over_both=(0.54, 0.67))

A hard task is hard for both policies, so the difference per task varies less than either mean: overlapping intervals
may still hide a clear difference. Trajectories are matched by task id, in whatever order they come.

`over_tasks` shows how far the mean of these very policies would move with other tasks; `spread` how much one training
run differs from the next on these tasks; `over_both` how far the mean would move with other seeds and other tasks,
which is what a claim about the method needs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mem1.errors import UserError
from mem1.evaluation.intervals import difference_interval, mean_interval, seeds_interval
from mem1.evaluation.metrics import em_by_question, question_ids
from mem1.records import Task, Trajectory

Measure = Callable[[Trajectory], "float | Sequence[float]"]
"""One number per trajectory, such as `peak_tokens`, or one per question, such as `em_by_question`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def apart(self) -> bool:
        """Whether the interval excludes 0: of a difference, whether one of the two is better."""
        return self.low > 0 or self.high < 0

    def text(self, *, signed: bool = False) -> str:
        """0.71 [0.64, 0.78], or of a difference +0.12 [0.05, 0.19]."""
        value, low, high = (round(number, 2) + 0.0 for number in (self.value, self.low, self.high))
        return f"{value:{'+.2f' if signed else '.2f'}} [{low:.2f}, {high:.2f}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Estimate):
    """One side minus another, in the unit of the measure: mean over tasks, and over seeds if there are several."""

    tasks: int
    """Number of tasks attempted by both."""


def paired_difference(
    ours: Sequence[Sequence[Trajectory]],
    theirs: Sequence[Sequence[Trajectory]],
    *,
    measure: Measure = em_by_question,
    within: tuple[float, float] | None = (0.0, 1.0),
) -> Difference:
    """Mean over tasks of ours minus theirs, one run per training seed on each side.

    The interval is over tasks and seeds; with a single run on a side, over tasks for that very policy. `within`: bounds
    of the measure; None: unbounded, like peak tokens. Raises UserError unless all attempted the same tasks, each once,
    and ValueError for a value out of bounds.
    """
    if not ours or not theirs:
        raise UserError("a difference needs two sides; give at least one run of each")
    values = values_by_task([*ours, *theirs], measure)
    mine, others = values[: len(ours)], values[len(ours) :]
    low, high = difference_interval(mine, others, questions=[question_ids(t) for t in ours[0]], within=within)
    mean = float(np.mean(mine) - np.mean(others))
    return Difference(value=mean, low=low, high=high, tasks=len(mine[0]))


def values_by_task(runs: Sequence[Sequence[Trajectory]], measure: Measure) -> list[list[float | Sequence[float]]]:
    """Entry `[r][t]` is the measure of run r on task t, in the order of the first run's tasks.

    A measure per question is averaged if the tasks differ in their number of questions or of values. Raises UserError
    if a run has other tasks than the first, a task twice, or none.
    """
    by_task = [_by_task(run, number) for number, run in enumerate(runs, start=1)]
    for number, run in enumerate(by_task[1:], start=2):
        if len(run) != len(by_task[0]):
            raise UserError(f"run {number} has {len(run)} tasks and run 1 has {len(by_task[0])}; {_SAME}")
        for name, (task, _) in by_task[0].items():
            if name not in run:
                raise UserError(f"run {number} has no task {name!r}, which run 1 has; {_SAME}")
            if run[name][0] != task:
                raise UserError(f"task {name!r} of run {number} differs from that of run 1; {_SAME}")
    values = [[measure(run[name][1]) for name in by_task[0]] for run in by_task]
    shapes = {np.shape(value) for run_values in values for value in run_values}
    if shapes not in ({()}, {(task.objectives,) for task, _ in by_task[0].values()}):
        return [[float(np.mean(value)) for value in run_values] for run_values in values]
    return values


_SAME = "evaluate both on the same tasks (source, number and seed)"


def _by_task(run: Sequence[Trajectory], number: int) -> dict[str, tuple[Task, Trajectory]]:
    found: dict[str, tuple[Task, Trajectory]] = {}
    for trajectory in run:
        if trajectory.task is None:
            raise UserError(f"run {number} has a trajectory without its task; keep the task when rolling out")
        if trajectory.task.id in found:
            raise UserError(f"run {number} has task {trajectory.task.id!r} twice; give one attempt per task")
        found[trajectory.task.id] = (trajectory.task, trajectory)
    if not found:
        raise UserError(f"run {number} has no trajectories, so there is nothing to compare")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class OverSeeds:
    """Summary of runs that differ only in their training seed, in the unit of the measure."""

    mean: float
    """Mean over seeds and tasks."""
    by_seed: tuple[float, ...]
    """Mean over tasks for each seed, in the order of the runs."""
    spread: float | None
    """Standard deviation of `by_seed` (divisor S - 1); None: a single seed."""
    over_tasks: tuple[float, float]
    """95 % interval over tasks for these seeds."""
    over_both: tuple[float, float] | None
    """95 % interval over seeds and tasks; None: a single seed."""


def over_seeds(
    runs: Sequence[Sequence[Trajectory]],
    *,
    measure: Measure = em_by_question,
    within: tuple[float, float] | None = (0.0, 1.0),
) -> OverSeeds:
    """Summary of runs that differ only in their training seed.

    `within`: bounds of the measure; None: unbounded, like peak tokens. Raises UserError without a run, and unless all
    attempted the same tasks, each once; ValueError for a value out of bounds.
    """
    if not runs:
        raise UserError("a mean over seeds needs at least one run")
    values = values_by_task(runs, measure)
    by_seed = tuple(float(np.mean(run)) for run in values)
    several = len(values) > 1
    questions = [question_ids(t) for t in runs[0]]
    over_seeds_by_task = np.mean(np.asarray(values, dtype=np.float64), axis=0)
    return OverSeeds(
        mean=statistics.fmean(by_seed),
        by_seed=by_seed,
        spread=statistics.stdev(by_seed) if several else None,
        over_tasks=mean_interval(over_seeds_by_task, questions=questions, within=within),
        over_both=seeds_interval(values, questions=questions, within=within) if several else None,
    )
