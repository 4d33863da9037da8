"""One way of training, several seeds, the same evaluation tasks: what each kind of chance does to the mean.

    over_seeds([run_0, run_1, run_2])
    ->  OverSeeds(mean=0.61, by_seed=(0.58, 0.66, 0.59), spread=0.04,
                  over_tasks=(0.58, 0.64), over_both=(0.54, 0.67))

`over_tasks` says how much the mean of these very policies would move with other tasks; `spread` how much one training
differs from the next, on these tasks; `over_both` how much the mean would move with other seeds and other tasks, which
is what a claim about the method needs.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from mem1.errors import UserError
from mem1.evaluation.differences import Measure, values_by_task
from mem1.evaluation.intervals import bootstrap_interval, crossed_interval
from mem1.evaluation.metrics import solved
from mem1.records import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class OverSeeds:
    """In the unit of the measure."""

    mean: float
    """Over seeds and tasks."""
    by_seed: tuple[float, ...]
    """Mean over tasks of each seed, in the order of the runs."""
    spread: float | None
    """Standard deviation of `by_seed` (divisor S - 1); None: one seed says nothing about others."""
    over_tasks: tuple[float, float]
    """95 % interval over tasks, for these seeds: of the mean over seeds, task by task."""
    over_both: tuple[float, float] | None
    """95 % interval over seeds and tasks, resampled together (intervals.py); None with one seed."""


def over_seeds(runs: Sequence[Sequence[Trajectory]], *, measure: Measure = solved) -> OverSeeds:
    """Summary of runs that differ in their training seed alone.

    Raises UserError where there is no run, or the runs did not all attempt the same tasks, each once.
    """
    if not runs:
        raise UserError("a mean over seeds needs at least one run")
    values = values_by_task(runs, measure)
    by_seed = tuple(statistics.fmean(run) for run in values)
    several = len(values) > 1
    return OverSeeds(
        mean=statistics.fmean(by_seed),
        by_seed=by_seed,
        spread=statistics.stdev(by_seed) if several else None,
        over_tasks=bootstrap_interval([statistics.fmean(task) for task in zip(*values, strict=True)]),
        over_both=crossed_interval(values) if several else None,
    )
