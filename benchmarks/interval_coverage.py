"""How often the 95 % intervals of mem1 hold the truth, in simulation.

    python benchmarks/interval_coverage.py                       all cells, a few minutes
    python benchmarks/interval_coverage.py --samples 500         quicker, rougher

Prints a Markdown table: for each interval the number of cells, the lowest and the mean coverage over them, where the
lowest is, and the mean width in widths of 2 x 1.96 true standard errors. The last column is the lowest coverage of the
percentile bootstrap (Efron 1979) in the same cells, as far as they are drawn for it. A coverage from n samples has a
standard error of sqrt(0.95 x 0.05 / n): 0.005 of 2,000. The lowest of hundreds of cells lies two or three of those low
by chance alone, so the ten lowest of each kind are drawn again with --again samples; "again" is the lowest of those.

Scores are logistic-normal. A task, a seed, and a seed's luck with a task each move the log-odds by a normal amount; the
answers of a task are drawn with that chance, by themselves or ("equal") as one answer for all N questions.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from machine import commit, hardware

from mem1.evaluation.intervals import (
    difference_ends,
    mean_interval,
    score_ends,
    weighted_difference_interval,
    weighted_interval,
)

EXACT_MATCH = (0.02, 0.05, 0.1, 0.3, 0.5, 0.9, 0.96, 0.98)
TASKS, SIZES, SEEDS = (48, 200, 500), (1, 2, 16), (1, 3, 5)
RESAMPLES = 300
_AGAIN = 10
"""Cells with the lowest coverage, which are drawn again."""
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(80)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One kind of evaluation, of which many samples are drawn."""

    em: float
    """True mean over all seeds and tasks."""
    objectives: int
    tasks: int
    seeds: int = 1
    equal: bool = False
    """All questions of a task are answered alike."""
    task_sd: float = 1.5
    """Standard deviation over tasks, of log-odds; 0: questions are independent."""
    seed_sd: float = 0.3
    luck_sd: float = 0.5
    """Of a seed with a task."""

    def __str__(self) -> str:
        kind = "equal" if self.equal else "independent" if self.task_sd == 0 else "related"
        seeds = "" if self.seeds == 1 else f", {self.seeds} seeds of {self.seed_sd:g}"
        return f"EM {self.em:g}, N = {self.objectives}, {self.tasks} tasks, {kind}{seeds}"

    def draw(self, samples: int, rng: np.random.Generator, tasks: np.ndarray | None = None) -> np.ndarray:
        """Shape (samples, S, T); `tasks` are standard normal, of shape (samples, 1, T), shared with another side."""
        seed_sd = self.seed_sd if self.seeds > 1 else 0.0
        luck_sd = self.luck_sd if self.task_sd else 0.0
        if tasks is None:
            tasks = rng.normal(size=(samples, 1, self.tasks))
        odds = (
            _middle(self.em, math.hypot(self.task_sd, seed_sd, luck_sd))
            + self.task_sd * tasks
            + seed_sd * rng.normal(size=(samples, self.seeds, 1))
            + luck_sd * rng.normal(size=(samples, self.seeds, self.tasks))
        )
        chance = 1 / (1 + np.exp(-odds))
        if self.equal:
            return (rng.random(chance.shape) < chance).astype(float)
        return rng.binomial(self.objectives, chance) / self.objectives


def _middle(em: float, sd: float) -> float:
    """Log-odds around which the mean chance is `em`."""
    low, high = -40.0, 40.0
    for _ in range(80):
        middle = (low + high) / 2
        mean = float((_WEIGHTS / (1 + np.exp(-(middle + sd * _NODES)))).sum() / _WEIGHTS.sum())
        low, high = (middle, high) if mean < em else (low, middle)
    return low


def percentile_ends(runs: np.ndarray, rng: np.random.Generator, minus: np.ndarray | None = None) -> np.ndarray:
    """Both ends of the percentile bootstrap over tasks and seeds, for comparison."""
    ends = np.empty((len(runs), 2))
    for i in range(len(runs)):
        tasks = rng.integers(0, runs.shape[-1], size=(RESAMPLES, runs.shape[-1]))
        means = np.zeros(RESAMPLES)
        for sign, side in ((1, runs), (-1, minus)):
            if side is not None:
                by_seed = side[i][:, tasks].mean(axis=2)
                seeds = rng.integers(0, len(by_seed), size=by_seed.shape)
                means += sign * np.take_along_axis(by_seed, seeds, axis=0).mean(axis=0)
        ends[i] = np.percentile(means, [2.5, 97.5])
    return ends


def held(ends: np.ndarray, truth: float) -> float:
    return float(((ends[..., 0] <= truth) & (truth <= ends[..., 1])).mean())


@dataclass(frozen=True, kw_only=True)
class Result:
    cell: str
    coverage: float
    width: float
    """In widths of 2 x 1.96 true standard errors."""
    bootstrap: float | None


def of_means(
    samples: int, of_bootstrap: int, rng: np.random.Generator, *, seeds: int, only: Container[str] | None = None
) -> Iterator[Result]:
    """Intervals of one mean: over tasks, and with several seeds over both."""
    spreads = (0.3,) if seeds == 1 else (0.0, 0.5)
    for em, n, tasks, spread, (sd, equal) in itertools.product(EXACT_MATCH, SIZES, TASKS, spreads, _KINDS):
        if equal and n == 1:
            continue
        cell = Cell(em=em, objectives=n, tasks=tasks, seeds=seeds, seed_sd=spread, task_sd=sd, equal=equal)
        if only is not None and str(cell) not in only:
            continue
        runs = cell.draw(samples, rng)
        bootstrap = held(percentile_ends(runs[:of_bootstrap], rng), em) if of_bootstrap and tasks < 500 else None
        yield _result(str(cell), score_ends(runs), em, runs.mean(axis=(1, 2)), bootstrap)


_KINDS = ((0.0, False), (1.5, False), (1.5, True))


def of_differences(
    samples: int, of_bootstrap: int, rng: np.random.Generator, *, seeds: int, only: Container[str] | None = None
) -> Iterator[Result]:
    """Intervals of a difference on the same tasks: none, small and large ones."""
    pairs = ((0.02, 0.02), (0.05, 0.02), (0.3, 0.3), (0.5, 0.4), (0.9, 0.5), (0.96, 0.9), (0.98, 0.96), (0.98, 0.98))
    for (a, b), n, tasks, (sd, equal) in itertools.product(pairs, SIZES, TASKS, _KINDS):
        if equal and n == 1:
            continue
        sides = [Cell(em=em, objectives=n, tasks=tasks, seeds=seeds, task_sd=sd, equal=equal) for em in (a, b)]
        name = f"{sides[0]}, minus EM {b:g}"
        if only is not None and name not in only:
            continue
        shared = rng.normal(size=(samples, 1, tasks))
        ours, theirs = (side.draw(samples, rng, shared) for side in sides)
        bootstrap = None
        if of_bootstrap and tasks < 500:
            bootstrap = held(percentile_ends(ours[:of_bootstrap], rng, theirs[:of_bootstrap]), a - b)
        means = ours.mean(axis=(1, 2)) - theirs.mean(axis=(1, 2))
        yield _result(name, difference_ends(ours, theirs), a - b, means, bootstrap)


def of_areas(
    samples: int, of_bootstrap: int, rng: np.random.Generator, *, differences: bool, only: Container[str] | None = None
) -> Iterator[Result]:
    """Areas under accuracy over log N, of few tasks for each N, and differences of two on the same tasks."""
    del of_bootstrap
    few = max(samples // 4, 100)
    weights = np.array([1, 2, 2, 2, 2, 1]) / 10
    for (shape, curve), tasks, (sd, equal) in itertools.product(CURVES.items(), (4, 10, 40), _KINDS):
        name = f"{shape}, {tasks} tasks for each N, {'equal' if equal else 'independent' if sd == 0 else 'related'}"
        if only is not None and name not in only:
            continue
        cells = [Cell(em=em, objectives=2**i, tasks=tasks, task_sd=sd, equal=equal) for i, em in enumerate(curve)]
        shared = [rng.normal(size=(few, 1, tasks)) for _ in cells]
        values = [cell.draw(few, rng, of)[:, 0] for cell, of in zip(cells, shared, strict=True)]
        ends, truth = weighted_interval, float(weights @ curve)
        if differences:
            others = [
                replace(cell, em=cell.em * 0.9).draw(few, rng, of) for cell, of in zip(cells, shared, strict=True)
            ]
            values = [other[:, 0] - mine for other, mine in zip(others, values, strict=True)]
            ends, truth = weighted_difference_interval, -0.1 * truth
        found = np.array([ends([cell[i] for cell in values], weights) for i in range(few)])
        means = np.array([cell.mean(axis=1) for cell in values])
        yield _result(name, found, truth, weights @ means, None)


CURVES = {
    "high": (0.98, 0.98, 0.97, 0.96, 0.95, 0.94),
    "falling": (0.98, 0.9, 0.75, 0.5, 0.2, 0.05),
    "cliff": (0.98, 0.98, 0.98, 0.05, 0.02, 0.02),
    "low": (0.1, 0.06, 0.04, 0.02, 0.02, 0.02),
    "level": (0.5, 0.5, 0.5, 0.5, 0.5, 0.5),
}
"""Accuracy at N = 1, 2, 4, 8, 16, 32."""


def of_repeated_questions(
    samples: int, of_bootstrap: int, rng: np.random.Generator, *, only: Container[str] | None = None
) -> Iterator[Result]:
    """Tasks whose questions stand in other tasks too; what is hard about a question is hard in each."""
    few = max(samples // 4, 100)
    for em, n, pool, tasks in itertools.product((0.02, 0.1, 0.5, 0.9, 0.98), (2, 16), (20, 48, 200), (100, 400)):
        name = f"EM {em:g}, N = {n}, {tasks} tasks of {pool} questions"
        if only is not None and name not in only:
            continue
        held_at: list[tuple[float, float]] = []
        values = np.empty((few, 1, tasks))
        for i in range(few):
            chance = 1 / (1 + np.exp(-(_middle(em, 2.5) + 2.5 * rng.normal(size=pool))))
            asked = [rng.permutation(pool)[:n] for _ in range(tasks)]
            scores = (rng.random((tasks, n)) < chance[np.array(asked)]).astype(float)
            held_at.append(mean_interval(scores, questions=[tuple(one) for one in asked]))
            values[i, 0] = scores.mean(axis=1)
        bootstrap = held(percentile_ends(values[:of_bootstrap], rng), em) if of_bootstrap else None
        yield _result(name, np.array(held_at), em, values.mean(axis=(1, 2)), bootstrap)


def of_tokens(
    samples: int, of_bootstrap: int, rng: np.random.Generator, *, only: Container[str] | None = None
) -> Iterator[Result]:
    """Measures without bounds, such as peak tokens: log-normal over tasks."""
    for sd, tasks in itertools.product((0.1, 0.3, 0.6), TASKS):
        name = f"log-normal {sd:g}, {tasks} tasks"
        if only is not None and name not in only:
            continue
        runs = np.exp(sd * rng.normal(size=(samples, 1, tasks)))
        ends = np.array([mean_interval(run[0], within=None) for run in runs])
        bootstrap = held(percentile_ends(runs[:of_bootstrap], rng), math.exp(sd**2 / 2)) if of_bootstrap else None
        yield _result(name, ends, math.exp(sd**2 / 2), runs.mean(axis=(1, 2)), bootstrap)


def _result(cell: str, ends: np.ndarray, truth: float, means: np.ndarray, bootstrap: float | None) -> Result:
    width = float((ends[..., 1] - ends[..., 0]).mean() / (2 * 1.96 * means.std()))
    return Result(cell=cell, coverage=held(ends, truth), width=width, bootstrap=bootstrap)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2000, help="of each cell")
    parser.add_argument("--of-bootstrap", type=int, default=200, help="samples for the percentile bootstrap; 0: none")
    parser.add_argument("--again", type=int, default=10_000, help="samples of the cells that are drawn again")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="kinds of intervals whose name holds this")
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    kinds: dict[str, Callable[..., Iterator[Result]]] = {
        **{f"mean over {'tasks' if s == 1 else f'{s} seeds and tasks'}": partial(of_means, seeds=s) for s in SEEDS},
        **{f"difference, {s} seed{'' if s == 1 else 's'} a side": partial(of_differences, seeds=s) for s in SEEDS},
        "area under accuracy over log N": partial(of_areas, differences=False),
        "difference of two areas": partial(of_areas, differences=True),
        "mean over tasks with questions in common": of_repeated_questions,
        "mean of a measure without bounds": of_tokens,
    }
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}\n")
    print("| 95 % interval | cells | lowest | where | again | mean | width | percentile bootstrap, lowest |")
    print("|---|--:|--:|---|--:|--:|--:|--:|")
    for name, results in kinds.items():
        if given.only not in name:
            continue
        cells = sorted(results(given.samples, given.of_bootstrap, rng), key=lambda one: one.coverage)
        again = results(given.again, 0, rng, only={one.cell for one in cells[:_AGAIN]})
        lowest_again = min(one.coverage for one in again)
        mean, width = (float(np.mean([getattr(one, key) for one in cells])) for key in ("coverage", "width"))
        bootstrap = min((one.bootstrap for one in cells if one.bootstrap is not None), default=None)
        print(
            f"| {name} | {len(cells)} | {cells[0].coverage:.3f} | {cells[0].cell} | {lowest_again:.3f} | {mean:.3f} "
            f"| {width:.2f} | {'' if bootstrap is None else f'{bootstrap:.2f}'} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
