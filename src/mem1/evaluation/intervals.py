"""How sure a mean is: the percentile bootstrap over tasks, or over tasks and training seeds at once.

    bootstrap_interval([0.0, 1.0, 1.0, 0.5])             ->  (low, high) around 0.625
    bootstrap_interval([1.0, 1.0])                       ->  (1.0, 1.0)
    crossed_interval([[0.0, 1.0, 1.0], [0.5, 1.0, 1.0]]) ->  (low, high) around 0.75; two seeds, three tasks

Every seed is measured on the same tasks, so the two are crossed: a resample draws seeds and tasks each by themselves,
with replacement, and one draw of tasks serves all drawn seeds. Drawing tasks anew for each seed would treat one hard
task as many independent ones and give too narrow an interval.

Sources: Efron, "Bootstrap methods: another look at the jackknife", 1979; Owen, "The pigeonhole bootstrap", Annals of
Applied Statistics 1 (2007), who shows that no bootstrap of crossed data is exact and that this one errs on the wide
side. With few seeds it errs the other way: the variance over S seeds comes out as (S - 1) / S of what it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_VALUES_AT_ONCE = 2_000_000
"""Largest number of resampled values held at a time: 16 MB."""


def bootstrap_interval(values: Sequence[float], *, resamples: int = 2000, seed: int = 0) -> tuple[float, float]:
    """95 % interval of the mean of `values`, by resampling them with replacement.

    Deterministic from `seed`. Raises ValueError without values.
    """
    return crossed_interval([values], resamples=resamples, seed=seed)


def crossed_interval(
    runs: Sequence[Sequence[float]],
    *,
    minus: Sequence[Sequence[float]] = (),
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """95 % interval of the mean over seeds and tasks; entry [s][t] of `runs` is seed s on task t.

    With `minus`, of the difference of the two means, on the same resampled tasks; its seeds are drawn by themselves,
    as seed 0 of one training has nothing in common with seed 0 of another. Deterministic from `seed`. Raises ValueError
    without values, and where the runs do not all have the same tasks.
    """
    groups = [np.asarray(group, dtype=np.float64) for group in (runs, minus) if len(group)]
    if not groups or any(group.ndim != 2 or group.shape[1] == 0 for group in groups):
        raise ValueError("an interval needs at least one value, and as many in each run")
    tasks = groups[0].shape[1]
    if groups[-1].shape[1] != tasks:
        raise ValueError(f"runs on {tasks} tasks cannot be compared with runs on {groups[-1].shape[1]}")
    # tasks and seeds have a generator each: with one run, this is the bootstrap over tasks to the last digit
    of_tasks, of_seeds = np.random.default_rng(seed), np.random.default_rng((seed, 1))
    means: list[np.ndarray] = []
    at_once = max(1, _VALUES_AT_ONCE // (tasks * max(map(len, groups))))
    for start in range(0, resamples, at_once):
        rows = min(at_once, resamples - start)
        drawn_tasks = of_tasks.integers(0, tasks, size=(rows, tasks))
        drawn = [_mean_of_drawn(group, drawn_tasks, of_seeds) for group in groups]
        means.append(drawn[0] if len(drawn) == 1 else drawn[0] - drawn[1])
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return float(low), float(high)


def _mean_of_drawn(group: np.ndarray, tasks: np.ndarray, of_seeds: np.random.Generator) -> np.ndarray:
    """Per row of drawn `tasks`, the mean over them and over as many drawn seeds as the group has."""
    by_seed = group[:, tasks].mean(axis=2)
    seeds = of_seeds.integers(0, len(group), size=by_seed.shape)
    return np.take_along_axis(by_seed, seeds, axis=0).mean(axis=0)
