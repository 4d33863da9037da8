"""95 % intervals: near 0 and 1, over few seeds, with questions that stand in several tasks; their coverage."""

from __future__ import annotations

import numpy as np
import pytest

from mem1.evaluation.intervals import difference_ends, difference_interval, mean_interval, score_ends, seeds_interval

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
