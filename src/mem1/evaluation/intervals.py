"""The uncertainty of a mean: 95 % intervals over tasks, or over tasks and training seeds together.

    mean_interval([0.0, 1.0, 1.0, 0.5])                    ->  (0.08, 0.97) around 0.625
    mean_interval([1.0] * 48)                              ->  (0.91, 1.00); 48 successes do not prove certainty
    seeds_interval([[0.0, 1.0, 1.0], [0.5, 1.0, 1.0]])     ->  (low, high) around 0.75; two seeds, three tasks
    difference_interval([[1.0] * 48], [[0.0] * 48])        ->  (0.87, 1.00); one seed per side, 48 tasks
    weighted_interval([[1.0] * 8, [0.5] * 8], [0.5, 0.5])  ->  (0.57, 0.83) around 0.75; a sum over kinds of tasks

A score lies in [0, 1], so the interval of its mean is Wilson's, with an effective number of tasks: the number of
all-or-nothing tasks that would be equally uncertain. Four choices matter near 0 and 1, where a sample says little:

- The observed design effect is averaged with 1 (all or nothing), with the weight of two tasks that differ from the
  rest. So 48 equal scores count as 48 all-or-nothing tasks, not as an infinite number of questions.
- A continuity correction of a quarter of an effective task raises the dips in Wilson's coverage for binary scores.
- Student's quantile replaces the normal one; its degrees of freedom are the number of tasks (questions) minus one.
- Seeds and tasks are crossed: every seed meets the same tasks. The variance over seeds is scaled by Student's quantile
  for S - 1 degrees of freedom (4.3 for three seeds, 12.7 for two); variance shared by tasks and seeds counts once.

A difference of two scores gets the same effective number of tasks, plus one task for each side (Bonett and Price); the
variance over seeds is added to the variance over tasks. If questions occur in several tasks, the variance is clustered
by task and by question (Cameron, Gelbach and Miller). A weighted sum of means over different kinds of tasks, such as an
area under a curve, gets four imagined tasks, shared out evenly over the kinds, half of them at either bound (Price and
Bonett); a difference of two such sums gets two. `benchmarks/interval_coverage.py` measures the coverage of each
interval; docs/metrics.md has the results.

Sources: Wilson, "Probable inference", JASA 22 (1927); Dean and Pagano, "Evaluating confidence interval methods for
binomial proportions in clustered surveys", J. Survey Statistics and Methodology 3 (2015), for Wilson's interval with a
design effect; Bonett and Price, "Adjusted Wald confidence interval for a difference of binomial proportions based on
paired data", J. Educational and Behavioral Statistics 37 (2012); Price and Bonett, "An improved confidence interval for
a linear function of binomial proportions", Computational Statistics & Data Analysis 45 (2004); Cameron, Gelbach and
Miller, "Robust inference with multiway clustering", J. Business & Economic Statistics 29 (2011).

Letters: S seeds, T tasks, N questions per task. Leading axes (...) hold independent samples.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

QuestionIds = Sequence[Sequence[Hashable]]
"""For each task, the keys of its questions, in the order of the scores."""

_PRIOR_TASKS = 2.0
"""Prior weight of the all-or-nothing design effect, in tasks that differ from the rest."""
_CONTINUITY = 0.25
"""Continuity correction, in effective tasks."""
_T_975 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""97.5 % quantile of Student's t with 1 to 10 degrees of freedom."""


def mean_interval(
    values: ArrayLike, *, questions: QuestionIds | None = None, within: tuple[float, float] | None = (0.0, 1.0)
) -> tuple[float, float]:
    """95 % interval of the mean over tasks; entry [t] of `values` is a score, or the scores of its N questions.

    `questions` identifies the questions of each task; None: no question occurs in two tasks. `within`: bounds of the
    measure; None: unbounded, and the interval is Student's. Raises ValueError without values, for values out of bounds,
    and if the sizes of `questions` do not match.
    """
    return seeds_interval(np.asarray(values, dtype=np.float64)[None], questions=questions, within=within)


def seeds_interval(
    runs: ArrayLike, *, questions: QuestionIds | None = None, within: tuple[float, float] | None = (0.0, 1.0)
) -> tuple[float, float]:
    """95 % interval of the mean over seeds and tasks; entry `[s][t]` of `runs` is seed s on task t."""
    low, high = within or (0.0, 1.0)
    scores = _Scores.of(
        (np.asarray(runs, dtype=np.float64) - low) / (high - low), questions, bounded=within is not None
    )
    ends = score_ends(scores.values, scores.repeats) if within is not None else _student_ends(scores)
    return _pair(low + (high - low) * ends)


def difference_interval(
    ours: ArrayLike,
    theirs: ArrayLike,
    *,
    questions: QuestionIds | None = None,
    within: tuple[float, float] | None = (0.0, 1.0),
) -> tuple[float, float]:
    """95 % interval of the difference of two means on the same tasks; each side has independent seeds.

    With a single seed on a side, the interval is about that very policy. Also raises ValueError if the sides have
    different numbers of tasks.
    """
    low, high = within or (0.0, 1.0)
    first, second = (
        _Scores.of((np.asarray(side, dtype=np.float64) - low) / (high - low), questions, bounded=within is not None)
        for side in (ours, theirs)
    )
    tasks = first.values.shape[-1], second.values.shape[-1]
    if tasks[0] != tasks[1]:
        raise ValueError(f"runs on {tasks[0]} tasks cannot be compared with runs on {tasks[1]}")
    repeats = None
    if first.repeats is not None and second.repeats is not None:
        repeats = first.repeats.less(second.repeats)
    if within is None:
        return _pair(_student_ends(first, second))
    return _pair((high - low) * difference_ends(first.values, second.values, repeats))


def weighted_interval(cells: Sequence[ArrayLike], weights: ArrayLike) -> tuple[float, float]:
    """95 % interval of sum_c weights[c] * mean(cells[c]), for scores in [0, 1] of independent tasks.

    Raises ValueError without cells, for an empty one, and for weights that are not one per cell.
    """
    low, high = _weighted_ends(cells, weights, added=(0.0, 0.0, 1.0, 1.0))
    return max(low, 0.0), min(high, 1.0)


def weighted_difference_interval(cells: Sequence[ArrayLike], weights: ArrayLike) -> tuple[float, float]:
    """The same for differences of scores on the same tasks, which lie in [-1, 1]."""
    low, high = _weighted_ends(cells, weights, added=(-1.0, 1.0))
    return max(low, -1.0), min(high, 1.0)


def _weighted_ends(cells: Sequence[ArrayLike], weights: ArrayLike, *, added: tuple[float, ...]) -> tuple[float, float]:
    """Both ends, with the imagined tasks `added`, of which each of C cells gets 1/C; they hold the plain sum."""
    values = [np.asarray(cell, dtype=np.float64) for cell in cells]
    weight = np.asarray(weights, dtype=np.float64)
    if not values or weight.shape != (len(values),) or any(cell.ndim != 1 or cell.size == 0 for cell in values):
        raise ValueError("a weighted sum needs at least one cell, values in each, and one weight per cell")
    extra = np.asarray(added) / len(values)
    count = np.array([cell.size for cell in values])
    size = count + len(added) / len(values)
    mean = (np.array([cell.sum() for cell in values]) + extra.sum()) / size
    square = (np.array([(cell**2).sum() for cell in values]) + (extra * np.asarray(added)).sum()) / size
    centre = float(weight @ mean)
    variance = float(weight**2 @ ((square - mean**2) / size))
    half = _t975(max(1, int(count.sum()) - len(values))) * variance**0.5
    return _pair(np.array([centre - half, centre + half]))


def score_ends(runs: np.ndarray, repeats: Repeats | None = None) -> np.ndarray:
    """Both ends (last axis) for scores in [0, 1] of shape (..., S, T)."""
    by_task = runs.mean(axis=-2)
    mean = by_task.mean(axis=-1)
    all_or_nothing = mean * (1 - mean)
    differing = np.minimum((by_task < 1).sum(axis=-1), (by_task > 0).sum(axis=-1))
    over_tasks, quantile = _over_tasks(by_task, all_or_nothing, differing, repeats)
    size = _effective_size(all_or_nothing, over_tasks, quantile, _over_seeds(runs), _clusters(runs, repeats))
    return np.stack([_wilson(mean, size, quantile, side) for side in (-1, 1)], axis=-1)


def difference_ends(ours: np.ndarray, theirs: np.ndarray, repeats: Repeats | None = None) -> np.ndarray:
    """Both ends (last axis) for the difference of scores in [0, 1] of shapes (..., S, T) and (..., S', T)."""
    by_task = ours.mean(axis=-2) - theirs.mean(axis=-2)
    mean, size_of_change = by_task.mean(axis=-1), np.abs(by_task).mean(axis=-1)
    all_or_nothing = size_of_change - mean**2
    over_tasks, quantile = _over_tasks(by_task, all_or_nothing, (by_task != 0).sum(axis=-1), repeats)
    size = _effective_size(all_or_nothing, over_tasks, quantile, _Seeds(), _clusters(ours, repeats))
    centre = size * mean / (size + 2)
    variance = ((size * size_of_change + 2) / (size + 2) - centre**2) / (size + 2)
    half = np.sqrt(_squared_half(variance, quantile, _over_seeds(ours).add(_over_seeds(theirs))))
    return np.clip(np.stack([centre - half, centre + half], axis=-1), -1.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """Scores of questions that occur in several tasks: one observation per question of each task."""

    deviations: np.ndarray
    """(score - mean) / (T * questions in its task); they sum to 0."""
    scores: np.ndarray
    tasks: np.ndarray
    """Index of each observation's task."""
    questions: np.ndarray
    """Index of each observation's question."""
    difference: bool = False
    """Whether the scores are differences of scores."""

    def less(self, other: Repeats) -> Repeats:
        """The difference, observation by observation."""
        return Repeats(
            deviations=self.deviations - other.deviations,
            scores=self.scores - other.scores,
            tasks=self.tasks,
            questions=self.questions,
            difference=True,
        )

    @property
    def clusters(self) -> int:
        """Number of tasks or of questions, whichever is smaller."""
        return int(min(self.tasks.max(), self.questions.max())) + 1

    def variance(self) -> float:
        """Variance of the mean, clustered by task and by question; at least that of either clustering."""
        by_task, by_question = (_of_sums(self.deviations, groups) for groups in (self.tasks, self.questions))
        each = _of_sums(self.deviations, np.arange(len(self.deviations)))
        return max(by_task, by_question, by_task + by_question - each)

    def differing(self, default: np.ndarray) -> np.ndarray:
        """Number of tasks or questions whose scores differ from the rest, whichever is smaller."""
        sums, counts = np.bincount(self.questions, self.scores), np.bincount(self.questions)
        by_question = (sums != 0).sum() if self.difference else min((sums < counts).sum(), (sums > 0).sum())
        return np.minimum(default, by_question)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scores:
    values: np.ndarray
    """Shape (S, T)."""
    repeats: Repeats | None

    @classmethod
    def of(cls, runs: np.ndarray, questions: QuestionIds | None, *, bounded: bool) -> _Scores:
        if runs.ndim not in (2, 3) or runs.size == 0:
            raise ValueError("an interval needs at least one value, and equally many in each run")
        if bounded and not (runs.min() >= -1e-9 and runs.max() <= 1 + 1e-9):
            raise ValueError("values out of bounds: pass the measure's bounds as `within`, or None if it is unbounded")
        values = runs if runs.ndim == 2 else runs.mean(axis=2)
        return cls(values=np.clip(values, 0, 1) if bounded else values, repeats=_repeats(runs, questions))


def _repeats(runs: np.ndarray, questions: QuestionIds | None) -> Repeats | None:
    """None if no question occurs in two tasks."""
    if questions is None:
        return None
    if len(questions) != runs.shape[1] or (runs.ndim == 3 and any(len(one) != runs.shape[2] for one in questions)):
        raise ValueError("`questions` needs one entry per task, with one key per score")
    numbers: dict[Hashable, int] = {}
    pairs = {(t, numbers.setdefault(key, len(numbers))) for t, keys in enumerate(questions) for key in keys}
    if len(pairs) == len(numbers):
        return None
    by_task = runs.mean(axis=0)
    mean, tasks = float(by_task.mean()), len(questions)
    rows: list[tuple[int, int, float, float]] = []
    for t, keys in enumerate(questions):
        each = by_task[t] if by_task.ndim == 2 else np.full(len(keys), by_task[t])
        for key, score in zip(keys, each, strict=True):
            rows.append((t, numbers[key], float(score), (float(score) - mean) / (tasks * len(keys))))
    columns: tuple[Any, ...] = tuple(map(np.asarray, zip(*rows, strict=True)))
    return Repeats(tasks=columns[0], questions=columns[1], scores=columns[2], deviations=columns[3])


def _of_sums(deviations: np.ndarray, groups: np.ndarray) -> float:
    sums = np.bincount(groups, deviations)
    return float((sums**2).sum() * len(sums) / (len(sums) - 1)) if len(sums) > 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seeds:
    """Contribution of the seeds to the variance of the mean."""

    scaled: np.ndarray | float = 0.0
    """Variance over seeds times the square of Student's quantile."""
    shared: np.ndarray | float = 0.0
    """Variance that appears both over tasks and over seeds: the interaction of seed and task."""

    def add(self, other: _Seeds) -> _Seeds:
        return _Seeds(scaled=self.scaled + other.scaled, shared=self.shared + other.shared)


def _over_seeds(runs: np.ndarray) -> _Seeds:
    seeds, tasks = runs.shape[-2:]
    if seeds == 1:
        return _Seeds()
    by_seed = runs.mean(axis=-1)
    scaled = _t975(seeds - 1) ** 2 * by_seed.var(axis=-1, ddof=1) / seeds
    if tasks == 1:
        return _Seeds(scaled=scaled)
    rest = runs - by_seed[..., None] - runs.mean(axis=-2, keepdims=True) + by_seed.mean(axis=-1)[..., None, None]
    shared = (rest**2).sum(axis=(-2, -1)) / ((seeds - 1) * (tasks - 1) * seeds * tasks)
    return _Seeds(scaled=scaled, shared=shared)


def _over_tasks(
    by_task: np.ndarray, all_or_nothing: np.ndarray, differing: np.ndarray, repeats: Repeats | None
) -> tuple[np.ndarray, float]:
    """Variance of the mean over tasks with the steadied design effect, and Student's quantile for it."""
    tasks = by_task.shape[-1]
    clusters = _clusters(by_task, repeats)
    if clusters == 1:  # one task says nothing about others
        return np.full_like(all_or_nothing, np.inf), _t975(1)
    variance = by_task.var(axis=-1, ddof=1) / tasks if repeats is None else np.asarray(repeats.variance())
    if repeats is not None:
        differing = repeats.differing(differing)
    most = all_or_nothing / (clusters - 1)
    effect = np.divide(variance, most, out=np.ones_like(most), where=most > 1e-15)
    return (differing * effect + _PRIOR_TASKS) / (differing + _PRIOR_TASKS) * most, _t975(clusters - 1)


def _clusters(scores: np.ndarray, repeats: Repeats | None) -> int:
    """Number of tasks (the last axis), or of questions where tasks share them and there are fewer."""
    return scores.shape[-1] if repeats is None else repeats.clusters


def _effective_size(
    all_or_nothing: np.ndarray, over_tasks: np.ndarray, quantile: float, seeds: _Seeds, clusters: int
) -> np.ndarray:
    """Number of all-or-nothing tasks that are as uncertain as these, seeds included; `clusters` where all are equal."""
    squared = _squared_half(over_tasks, quantile, seeds)
    size = np.divide(
        quantile**2 * all_or_nothing, squared, out=np.full_like(squared, float(clusters)), where=squared > 1e-15
    )
    return np.maximum(size, 1e-6)


def _squared_half(over_tasks: np.ndarray | float, quantile: float, seeds: _Seeds) -> np.ndarray:
    """Square of half the width that a symmetric interval would have."""
    with_seeds = quantile**2 * np.maximum(over_tasks - seeds.shared, 0) + seeds.scaled
    return np.asarray(np.maximum(quantile**2 * over_tasks, with_seeds))


def _wilson(mean: np.ndarray, size: np.ndarray, z: float, side: int) -> np.ndarray:
    p = np.clip(mean + side * _CONTINUITY / size, 0, 1)
    end = (p + z * z / (2 * size) + side * z * np.sqrt(p * (1 - p) / size + (z / (2 * size)) ** 2)) / (1 + z * z / size)
    return np.clip(end, 0, 1)


def _student_ends(first: _Scores, second: _Scores | None = None) -> np.ndarray:
    """Both ends for a measure without bounds: symmetric, infinite with one task."""
    by_task, seeds, repeats = first.values.mean(axis=0), _over_seeds(first.values), first.repeats
    if second is not None:
        by_task, seeds = by_task - second.values.mean(axis=0), seeds.add(_over_seeds(second.values))
        repeats = None if repeats is None or second.repeats is None else repeats.less(second.repeats)
    clusters = len(by_task) if repeats is None else repeats.clusters
    mean = by_task.mean()
    if clusters == 1:
        return np.array([-np.inf, np.inf])
    over_tasks = by_task.var(ddof=1) / len(by_task) if repeats is None else repeats.variance()
    half = np.sqrt(_squared_half(over_tasks, _t975(clusters - 1), seeds))
    return np.array([mean - half, mean + half])


def _t975(degrees: int) -> float:
    """97.5 % quantile of Student's t; above 10 degrees by the expansion of Fisher and Cornish, to 4 digits."""
    if degrees <= len(_T_975):
        return _T_975[degrees - 1]
    z = 1.959964
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / degrees**power for power, term in enumerate(terms))


def _pair(ends: np.ndarray) -> tuple[float, float]:
    return round(float(ends[0]), 12), round(float(ends[1]), 12)
