"""95 % intervals: near 0 and 1, over few seeds, with questions that stand in several tasks; their coverage."""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from statistics import fmean, variance

import numpy as np
import pytest

from mem1.evaluation.intervals import (
    difference_ends,
    difference_interval,
    mean_interval,
    score_ends,
    seeds_interval,
    weighted_difference_interval,
    weighted_interval,
)

RNG_SEED = 11
AT_LEAST = 0.93


def width(interval: tuple[float, float]) -> float:
    return interval[1] - interval[0]


def test_the_interval_holds_the_mean_and_stays_within_the_bounds():
    for values in ([0.0, 0.5, 0.5, 1.0, 1.0], [0.0] * 9, [1.0] * 9, [0.25] * 7, [1.0], [0.98, 1.0, 1.0]):
        low, high = mean_interval(values)
        assert 0 <= low <= sum(values) / len(values) <= high <= 1


def test_a_fair_coin_has_the_textbook_width():
    # 2 * 1.96 * 0.5 / sqrt(n)
    assert width(mean_interval([0.0, 1.0] * 50)) == pytest.approx(0.196, abs=0.01)
    assert width(mean_interval([0.0, 1.0] * 800)) == pytest.approx(0.049, abs=0.001)


def test_no_failure_in_48_tasks_is_no_proof_of_none():
    low, high = mean_interval([1.0] * 48)
    assert (low, high) == (pytest.approx(0.913, abs=1e-3), 1.0)
    assert difference_interval([[1.0] * 48], [[1.0] * 48]) == pytest.approx((-0.057, 0.057), abs=1e-3)


def test_one_task_says_nothing_about_others():
    low, high = mean_interval([1.0])
    assert low < 0.01 and high == 1.0
    assert mean_interval([80.0], within=None) == (-float("inf"), float("inf"))


def test_two_questions_asked_fifty_times_are_two_questions():
    low, high = mean_interval([1.0, 0.0] * 50, questions=[("a",), ("b",)] * 50)
    assert low < 0.01 and high > 0.99
    assert width(mean_interval([1.0, 0.0] * 50)) == pytest.approx(0.2, abs=0.01), "as 100 questions, far too sure"


def test_questions_that_tasks_share_count_once():
    # eight questions, of which four are known, in every pair: 28 tasks, but the choice of eight decides
    pairs = [(i, j) for i in range(8) for j in range(i)]
    scores = [[float(q < 4) for q in pair] for pair in pairs]
    of_questions = width(mean_interval(scores, questions=pairs))
    assert of_questions > 1.7 * width(mean_interval(scores))
    # as wide as that of eight single questions
    assert of_questions == pytest.approx(width(mean_interval([1.0] * 4 + [0.0] * 4)), abs=0.15)


def test_twenty_questions_all_wrong_in_a_hundred_tasks_are_twenty():
    asked = [(i % 20, (i + 1 + i // 20) % 20) for i in range(100)]
    wrong = np.zeros((100, 2))
    assert mean_interval(wrong, questions=asked) == mean_interval([0.0] * 20)
    assert difference_interval([wrong], [wrong], questions=asked) == difference_interval([[0.0] * 20], [[0.0] * 20])


def test_questions_that_stand_in_one_task_each_change_nothing():
    scores = [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    assert mean_interval(scores, questions=["ab", "cd", "ef"]) == mean_interval([0.5, 1.0, 0.0])


def test_few_seeds_carry_the_quantile_of_student():
    by_seed = [[0.4] * 500, [0.6] * 500, [0.5] * 500]
    assert width(seeds_interval(by_seed)) == pytest.approx(2 * 4.30 * 0.1 / 3**0.5, abs=0.03)
    assert width(seeds_interval([[0.45] * 500, [0.55] * 500])) > 0.7, "two seeds: 12.7 standard errors"


def test_a_reward_in_other_bounds_is_scaled():
    low, high = mean_interval([0.0, 1.0, 0.5, 0.25])
    assert mean_interval([0.0, 4.0, 2.0, 1.0], within=(0.0, 4.0)) == pytest.approx((4 * low, 4 * high))


@pytest.mark.parametrize(
    ("values", "questions", "message"),
    [
        ([], None, "at least one value"),
        ([3.0, 0.5], None, "out of bounds"),
        ([1.0, 0.5], [("a",)], "one entry per task"),
        ([[1.0, 0.5]], [("a",)], "one key per score"),
    ],
)
def test_what_makes_no_interval_is_refused(values: list, questions: list | None, message: str):
    with pytest.raises(ValueError, match=message):
        mean_interval(values, questions=questions)


# the cells of benchmarks/interval_coverage.py in which the percentile bootstrap held the truth least often


def bootstrap_ends(runs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The percentile bootstrap over seeds and tasks, for comparison."""
    ends = []
    for one in runs:
        by_seed = one[:, rng.integers(0, one.shape[1], size=(200, one.shape[1]))].mean(axis=2)
        seeds = rng.integers(0, len(by_seed), size=by_seed.shape)
        ends.append(np.percentile(np.take_along_axis(by_seed, seeds, axis=0).mean(axis=0), [2.5, 97.5]))
    return np.array(ends)


def coverage(ends: np.ndarray, truth: float) -> float:
    return float(((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean())


def answers(em: float, objectives: int, shape: tuple[int, int, int], rng: np.random.Generator) -> np.ndarray:
    """Scores of tasks whose chances differ (beta, correlation 0.2)."""
    return rng.binomial(objectives, rng.beta(4 * em, 4 * (1 - em), size=shape)) / objectives


@pytest.mark.parametrize(("em", "objectives", "tasks"), [(0.98, 1, 48), (0.02, 1, 48), (0.96, 2, 48), (0.98, 2, 200)])
def test_the_interval_over_tasks_holds_the_truth_as_often_as_it_says(em: float, objectives: int, tasks: int):
    rng = np.random.default_rng(RNG_SEED)
    runs = answers(em, objectives, (4000, 1, tasks), rng)
    assert coverage(score_ends(runs), em) >= AT_LEAST
    if tasks == 48:
        assert coverage(bootstrap_ends(runs[:300], rng), em) < 0.9


@pytest.mark.parametrize(("seeds", "em"), [(3, 0.5), (3, 0.96), (5, 0.9)])
def test_the_interval_over_seeds_holds_the_truth_as_often_as_it_says(seeds: int, em: float):
    rng = np.random.default_rng(RNG_SEED)
    spread = 0.2 * em * (1 - em)
    chances = np.clip(em + spread * rng.uniform(-1.7, 1.7, size=(1000, seeds, 1)), 0, 1)
    runs = (rng.uniform(size=(1000, seeds, 500)) < chances).astype(float)
    assert coverage(score_ends(runs), em) >= AT_LEAST
    if (seeds, em) == (3, 0.5):
        assert coverage(bootstrap_ends(runs[:100], rng), em) < 0.92


@pytest.mark.parametrize(("ours", "theirs", "tasks"), [(0.98, 0.98, 48), (0.98, 0.9, 48), (0.05, 0.02, 200)])
def test_the_interval_of_a_difference_holds_the_truth_as_often_as_it_says(ours: float, theirs: float, tasks: int):
    rng = np.random.default_rng(RNG_SEED)
    hard = rng.uniform(size=(4000, 1, tasks))  # a task that is hard for one is hard for the other
    own = rng.uniform(size=(2, 4000, 1, tasks))
    alike = rng.uniform(size=(4000, 1, tasks)) < 0.5
    sides = [(np.where(alike, hard, luck) < em).astype(float) for luck, em in zip(own, (ours, theirs), strict=True)]
    assert coverage(difference_ends(sides[0], sides[1]), ours - theirs) >= AT_LEAST


# -- all of it once more: plain sums over pairs of observations, and equations solved by bisection ---------------------

Runs = Sequence[Sequence[Sequence[float]]]
"""Seeds, tasks, questions."""
Keys = Sequence[Sequence[Hashable]]


def bisected(low: float, high: float, below, /) -> float:
    """Where `below` turns false."""
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return low


@cache
def student(degrees: int) -> float:
    """The 97.5 % quantile, from the density: t = sqrt(degrees) * tan(angle)."""
    angle, steps = math.pi / 2, 4000
    heights = [math.cos(angle * (i + 0.5) / steps) ** (degrees - 1) for i in range(steps)]
    rest, wanted = 0.0, 0.05 * sum(heights)
    for i in reversed(range(steps)):
        rest += heights[i]
        if rest >= wanted:
            share = (rest - wanted) / heights[i]
            return math.sqrt(degrees) * math.tan(angle * (i + share) / steps)
    raise AssertionError


@dataclass
class Observed:
    """What is said about the mean of differences (or of scores) over tasks."""

    means: list[float]
    """By task."""
    deviations: list[tuple[float, int, Hashable]]
    """Of each observation: its part in the mean, less what it would be if all were equal; its task, its question."""
    by_question: list[list[float]]
    seeds: float
    """Half the width that seeds alone would give, squared."""
    both: float
    """Variance that is both over tasks and over seeds."""

    @classmethod
    def of(cls, sides: Sequence[tuple[float, Runs]], keys: Keys | None) -> Observed:
        tasks = range(len(sides[0][1][0]))
        keys = keys or [[(t, n) for n in range(len(sides[0][1][0][t]))] for t in tasks]
        each = [
            [sum(sign * fmean(run[t][n] for run in runs) for sign, runs in sides) for n in range(len(keys[t]))]
            for t in tasks
        ]
        means = [fmean(of_task) for of_task in each]
        deviations, by_question = [], {}
        for t in tasks:
            for score, key in zip(each[t], keys[t], strict=True):
                deviations.append(((score - fmean(means)) / len(means) / len(each[t]), t, key))
                by_question.setdefault(key, []).append(score)
        seeds = both = 0.0
        for _, runs in sides:
            if len(runs) > 1:
                table = [[fmean(of_task) for of_task in run] for run in runs]
                rows, columns = [fmean(row) for row in table], [fmean(c) for c in zip(*table, strict=True)]
                seeds += student(len(runs) - 1) ** 2 * variance(rows) / len(runs)
                left = [table[s][t] - rows[s] - columns[t] + fmean(rows) for s in range(len(runs)) for t in tasks]
                if len(tasks) > 1:
                    of_a_cell = sum(x * x for x in left) / (len(runs) - 1) / (len(tasks) - 1)
                    both += of_a_cell / (len(runs) * len(tasks))
        return cls(means, deviations, list(by_question.values()), seeds, both)

    @property
    def repeated(self) -> bool:
        return len(self.by_question) < len(self.deviations)

    @property
    def clusters(self) -> int:
        return min(len(self.means), len(self.by_question)) if self.repeated else len(self.means)

    def over_tasks(self) -> float:
        """The variance of their mean: over tasks, or clustered by task and by question (Cameron, Gelbach, Miller)."""
        if not self.repeated:
            return variance(self.means) / len(self.means)
        numbered = [(d, t, key, i) for i, (d, t, key) in enumerate(self.deviations)]

        def together(column: int) -> float:
            groups = len({one[column] for one in numbered})
            pairs = [a[0] * b[0] for a in numbered for b in numbered if a[column] == b[column]]
            return math.fsum(pairs) * groups / (groups - 1)

        return max(together(1), together(2), together(1) + together(2) - together(3))

    def steadied(self, all_or_nothing: float, unlike: Sequence[Iterable[bool]]) -> float:
        """The variance over tasks, its design effect drawn to 1 with the weight of two tasks; `unlike`: which tasks,
        and which questions, differ from the rest."""
        most = all_or_nothing / (self.clusters - 1)
        differing = min(sum(of_one) for of_one in (unlike if self.repeated else unlike[:1]))
        return (differing * self.over_tasks() + 2 * most) / (differing + 2)

    def squared_half(self, over_tasks: float) -> float:
        t = student(self.clusters - 1) ** 2
        return max(t * over_tasks, t * max(over_tasks - self.both, 0) + self.seeds)


def of_scores(runs: Runs, keys: Keys | None) -> tuple[float, float]:
    """Wilson's interval, a quarter of a task further to each side."""
    x = Observed.of([(1, runs)], keys)
    mean, t = fmean(x.means), student(x.clusters - 1)
    unlike = [
        min(([s < 1 for s in of_some], [s > 0 for s in of_some]), key=sum)
        for of_some in (x.means, [fmean(scores) for scores in x.by_question])
    ]
    size = t * t * mean * (1 - mean) / x.squared_half(x.steadied(mean * (1 - mean), unlike))

    def end(side: int) -> float:
        p = min(max(mean + side * 0.25 / size, 0), 1)
        return bisected(p, 0.5 + side * 0.5, lambda q: (p - q) ** 2 < t * t * q * (1 - q) / size)

    return end(-1), end(1)


def of_differences(ours: Runs, theirs: Runs, keys: Keys | None) -> tuple[float, float]:
    """Bonett and Price: one task more on which ours is better, and one on which theirs is."""
    x = Observed.of([(1, ours), (-1, theirs)], keys)
    changed = fmean(map(abs, x.means))
    all_or_nothing = changed - fmean(x.means) ** 2
    sums = [sum(scores) for scores in x.by_question]
    over_tasks = x.steadied(all_or_nothing, [[m != 0 for m in x.means], [s != 0 for s in sums]])
    size = all_or_nothing / over_tasks
    better, worse = ((size * (changed + sign * fmean(x.means)) / 2 + 1) / (size + 2) for sign in (1, -1))
    half = x.squared_half((better + worse - (better - worse) ** 2) / (size + 2)) ** 0.5
    return max(better - worse - half, -1), min(better - worse + half, 1)


def without_bounds(sides: Sequence[tuple[float, Runs]], keys: Keys | None) -> tuple[float, float]:
    x = Observed.of(sides, keys)
    half = x.squared_half(x.over_tasks()) ** 0.5
    return fmean(x.means) - half, fmean(x.means) + half


KEYS = {
    "each question once": None,
    "pairs of five": [(i, j) for i in range(5) for j in range(i)],
    "few tasks": [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")],
    "two questions": [("a", "b"), ("b", "a")] * 4,
    "one of three": [("a", i) for i in range(7)],
}


def random_runs(rng: random.Random, seeds: int, keys: Keys, spread: float) -> Runs:
    """What is hard in a task or a question is so for all seeds; most scores are all or nothing."""
    hard = {key: rng.random() for key in chain(*keys)}

    def score(task: float, key: Hashable, seed: float) -> float:
        chance = (task + hard[key] + rng.random()) / 3 + seed
        return float(chance > 0.5) if rng.random() < 0.7 else min(max(chance, 0), 1)

    tasks = [rng.random() for _ in keys]
    by_seed = [rng.uniform(-spread, spread) for _ in range(seeds)]
    return [[[score(t, key, seed) for key in of] for t, of in zip(tasks, keys, strict=True)] for seed in by_seed]


DIGITS = 1e-4
"""Of the quantiles."""
CASES = [(name, seeds, spread) for name in KEYS for seeds in ((1, 1), (3, 1), (1, 3), (2, 4)) for spread in (0.05, 0.3)]


@pytest.mark.parametrize(("name", "seeds", "spread"), CASES)
def test_every_interval_is_what_plain_sums_give(name: str, seeds: tuple[int, int], spread: float):
    rng = random.Random(f"{name}/{seeds}/{spread}")
    keys = KEYS[name]
    ours, theirs = (random_runs(rng, n, keys or [(i, i + 50) for i in range(9)], spread) for n in seeds)
    assert seeds_interval(ours, questions=keys) == pytest.approx(of_scores(ours, keys), abs=DIGITS)
    found = difference_interval(ours, theirs, questions=keys)
    assert found == pytest.approx(of_differences(ours, theirs, keys), abs=DIGITS)
    assert difference_interval(theirs, ours, questions=keys) == pytest.approx((-found[1], -found[0]))
    assert seeds_interval(ours, questions=keys, within=None) == pytest.approx(
        without_bounds([(1, ours)], keys), abs=DIGITS
    )
    free = difference_interval(ours, theirs, questions=keys, within=None)
    assert free == pytest.approx(without_bounds([(1, ours), (-1, theirs)], keys), abs=DIGITS)
    assert difference_interval(theirs, ours, questions=keys, within=None) == pytest.approx((-free[1], -free[0]))
    scaled = difference_interval(*(4 * np.array(x) - 1 for x in (ours, theirs)), questions=keys, within=(-1, 3))
    assert scaled == pytest.approx((4 * found[0], 4 * found[1]))
    low, high = seeds_interval(ours, questions=keys)
    assert seeds_interval(4 * np.array(ours) - 1, questions=keys, within=(-1, 3)) == pytest.approx(
        (4 * low - 1, 4 * high - 1)
    )


def test_who_is_never_worse_is_better_by_as_much_as_the_other_is_worse():
    ours, theirs = [[[1.0, 0.5], [0.5, 0.5], [1.0, 0.0]]], [[[0.5, 0.5], [0.25, 0.5], [1.0, 0.0]]]
    keys = [("a", "b"), ("b", "c"), ("c", "a")]
    low, high = difference_interval(ours, theirs, questions=keys)
    assert difference_interval(theirs, ours, questions=keys) == pytest.approx((-high, -low))
    assert (low, high) == pytest.approx(of_differences(ours, theirs, keys), abs=1e-4)


def test_clusters_of_tasks_and_of_questions_overlap_by_hand():
    """Of three tasks (a b, b c, c a) with the mean 0.5; deviations -1 -1, -1 1, 1 1 twelfths.

    by task -2, 0, 2:               8 * 3 / 2 = 12
    by question 0, -2, 2:           8 * 3 / 2 = 12
    what is in both, each by itself: 6 * 6 / 5 = 7.2, once
    """
    half = 4.3027 * math.sqrt(12 + 12 - 7.2) / 12
    found = mean_interval([[0, 0], [0, 1], [1, 1]], questions=["ab", "bc", "ca"], within=None)
    assert found == pytest.approx((0.5 - half, 0.5 + half), abs=1e-4)
    # two tasks of the same two questions: by task 0 and 0, by question 2 and -2 eighths, each by itself 4 * 4 / 3,
    # which leaves less than the questions alone
    half = 12.7062 * math.sqrt(8 * 2 / 1) / 8
    found = mean_interval([[1, 0], [0, 1]], questions=["ab", "ba"], within=None)
    assert found == pytest.approx((0.5 - half, 0.5 + half), abs=1e-4)


def of_a_sum(cells: Sequence[Sequence[float]], weights: Sequence[float], imagined: int, least: float) -> list[float]:
    """Price and Bonett: imagined tasks, half of them at 1, half at `least`, as many in each cell."""
    share = imagined / len(cells) / 2
    centre = squared = 0.0
    for cell, weight in zip(cells, weights, strict=True):
        size = len(cell) + 2 * share
        mean = (sum(cell) + share * (1 + least)) / size
        spread = sum((x - mean) ** 2 for x in cell) + share * ((1 - mean) ** 2 + (least - mean) ** 2)
        centre += weight * mean
        squared += weight**2 * spread / size / size
    half = student(max(1, sum(map(len, cells)) - len(cells))) * squared**0.5
    return [max(centre - half, least), min(centre + half, 1)]


@pytest.mark.parametrize("weights", [(0.5, 0.3, 0.2), (0.1, 0.1, 0.8), (0.0, 0.9, 0.1)])
def test_the_interval_of_a_weighted_sum_is_what_plain_sums_give(weights: tuple[float, ...]):
    rng = random.Random(f"{weights}")
    for sizes in ((3, 5, 9), (1, 2, 2), (20, 1, 4)):
        cells = [[rng.choice((0.0, 0.25, 1.0)) for _ in range(size)] for size in sizes]
        assert weighted_interval(cells, weights) == pytest.approx(of_a_sum(cells, weights, 4, 0), abs=1e-4)
        signed = [[2 * x - 1 for x in cell] for cell in cells]
        assert weighted_difference_interval(signed, weights) == pytest.approx(
            of_a_sum(signed, weights, 2, -1), abs=1e-4
        )


@pytest.mark.parametrize("size", [1, 2, 30, 3000])
@pytest.mark.parametrize("cells", [1, 2, 5])
def test_a_weighted_interval_holds_the_plain_sum_although_imagined_tasks_pull_at_it(size: int, cells: int):
    for value in (0.0, 0.1, 0.5, 1.0):
        for weights in ([1.0] * cells, [1.0] + [0.0] * (cells - 1)):
            plain = value * sum(weights)
            low, high = weighted_interval([[value] * size] * cells, weights)
            assert low <= plain and (plain <= high or high == 1.0)
    low, high = weighted_difference_interval([[1.0] * size] * cells, [1 / cells] * cells)
    assert low < high == 1.0


@pytest.mark.parametrize("degrees", [*range(1, 31), 47, 199])
def test_students_quantile(degrees: int):
    def width_of(values: list[float]) -> float:
        return width(mean_interval(values, within=None)) / 2 / math.sqrt(variance(values) / len(values))

    assert width_of([float(i) for i in range(degrees + 1)]) == pytest.approx(student(degrees), abs=2e-4)
