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

import numpy as np

from mem1.errors import UserError
from mem1.evaluation.differences import Measure, values_by_task
from mem1.evaluation.intervals import mean_interval, seeds_interval
from mem1.evaluation.metrics import asked, em_by_question
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
    """95 % interval over seeds and tasks (intervals.py); None with one seed."""


def over_seeds(
    runs: Sequence[Sequence[Trajectory]],
    *,
    measure: Measure = em_by_question,
    within: tuple[float, float] | None = (0.0, 1.0),
) -> OverSeeds:
    """Summary of runs that differ in their training seed alone.

    `within`: the bounds that the measure keeps; None: it has none, as peak tokens. Raises UserError where there is no
    run, or the runs did not all attempt the same tasks, each once, and ValueError where a value is out of bounds.
    """
    if not runs:
        raise UserError("a mean over seeds needs at least one run")
    values = values_by_task(runs, measure)
    by_seed = tuple(float(np.mean(run)) for run in values)
    several = len(values) > 1
    questions = [asked(t) for t in runs[0]]
    of_these_seeds = np.mean(np.asarray(values, dtype=np.float64), axis=0)
    return OverSeeds(
        mean=statistics.fmean(by_seed),
        by_seed=by_seed,
        spread=statistics.stdev(by_seed) if several else None,
        over_tasks=mean_interval(of_these_seeds, asked=questions, within=within),
        over_both=seeds_interval(values, asked=questions, within=within) if several else None,
    )
