"""Scores and comparisons of benchmark results, counted by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from mem1.bench.results import Attempt, Result, Spent
from mem1.bench.scores import Side, cell_weights, compare, names_of, score_of, scores, sides_of, trapezoids
from mem1.errors import UserError
from mem1.evaluation.intervals import weighted_difference_interval, weighted_interval


def attempt(task: str, *right: float, family: str = "chain", level: int = 1, memory: str = "full", **more) -> Attempt:
    spent = more.pop("tokens", Spent(fresh=100, cached=20, output=5))
    return Attempt(
        task=task,
        family=family,
        level=level,
        objectives=len(right),
        memory=memory,
        right=right,
        ended=more.pop("ended", "answered"),
        tokens=spent,
        **more,
    )


def result(*attempts: Attempt, **more) -> Result:
    values = {"model": "qwen", "about": {}, "suite": "quick", "seed": 0, "version": "0.1", "tasks": 1, **more}
    return Result(attempts=attempts, **values)


def test_the_weights_are_those_of_trapezoids_over_the_logarithm_of_n():
    assert trapezoids([1, 2, 8]) == pytest.approx({1: 1 / 6, 2: 3 / 6, 8: 2 / 6})
    assert trapezoids([4]) == {4: 1.0}
    sizes, accuracies = [1, 3, 4, 16, 100], [1.0, 0.7, 0.65, 0.2, 0.0]
    x = np.log2(sizes)
    area = sum((accuracies[i] + accuracies[i + 1]) / 2 * (x[i + 1] - x[i]) for i in range(4)) / (x[-1] - x[0])
    weights = trapezoids(sizes)
    assert sum(weights[n] * value for n, value in zip(sizes, accuracies, strict=True)) == pytest.approx(area)


def test_families_and_levels_weigh_the_same_whatever_their_number_of_sizes():
    weights = cell_weights([("a", 1, 1), ("a", 1, 4), ("a", 2, 8), ("b", 1, 1)])
    assert weights == {("a", 1, 1): 0.125, ("a", 1, 4): 0.125, ("a", 2, 8): 0.25, ("b", 1, 1): 0.5}


def test_a_score_counts_failures_as_wrong_and_divides_all_tokens_by_the_right_answers():
    attempts = [
        attempt("n1-0", 1.0, peak=50, cost=0.5),
        attempt("n1-1", 0.0, peak=70, cost=0.25, ended="bad_tags"),
        attempt("n4-0", 1.0, 1.0, 0.0, 0.0, peak=90, cost=0.25, tokens=Spent(fresh=400, cached=60, output=10)),
        attempt("n4-1", 0.0, 0.0, 0.0, 0.0, peak=30, cost=0.5, ended="engine_failed"),
    ]
    found = score_of(attempts)
    assert found.area.value == pytest.approx((0.5 + 0.25) / 2)
    assert found.area.low < 0.375 < found.area.high
    assert [(one.objectives, one.tasks, one.accuracy.value) for one in found.points] == [(1, 2, 0.5), (4, 2, 0.25)]
    assert (found.right, found.objectives, found.tasks) == (3.0, 10, 4)
    assert found.per_right is not None
    assert (found.per_right.fresh, found.per_right.cached) == pytest.approx((700 / 3, 120 / 3))
    assert (found.per_right.tokens, found.per_right.cost) == pytest.approx((845 / 3, 0.5))
    assert (found.mean_peak, found.largest_peak) == (60, 90)
    assert found.endings == {"answered": 2, "bad_tags": 1, "engine_failed": 1}


def test_nothing_right_has_no_price_and_unknown_costs_stay_unknown():
    assert score_of([attempt("a", 0.0, cost=1.0)]).per_right is None
    per_right = score_of([attempt("a", 1.0, cost=1.0), attempt("b", 1.0)]).per_right
    assert per_right is not None and per_right.cost is None


def test_scores_are_per_memory_and_family_in_the_order_of_the_suite():
    both = result(
        attempt("a", 1.0), attempt("b", 0.0, family="budget"), attempt("a", 0.0, memory="notes"), attempt("c", 1.0)
    )
    keep, notes = map(scores, sides_of(both))
    assert (list(keep), list(notes)) == (["chain", "budget"], ["chain"])
    assert keep["chain"].area.value == 1.0 and notes["chain"].area.value == 0.0


def many(rights: Sequence[float], *, family: str = "chain", **more) -> list[Attempt]:
    return [attempt(f"{family}-{number}", right, family=family, **more) for number, right in enumerate(rights)]


def test_a_comparison_is_paired_and_marks_what_is_apart_from_nothing():
    rights = [float(number % 2) for number in range(40)]
    better = [1.0 if number < 12 else right for number, right in enumerate(rights)]
    found = compare(
        Side(result=result(*many(rights)), memory="full"), Side(result=result(*many(better)), memory="full")
    )
    (chain,) = found.families
    assert (found.tasks, found.left_out, chain.family, chain.difference.tasks) == (40, (0, 0), "chain", 40)
    assert (chain.first.value, chain.second.value) == pytest.approx((0.5, 0.65))
    assert chain.difference.value == pytest.approx(0.15) and chain.difference.apart
    assert chain.first.high > chain.second.low, "the intervals overlap; only the paired one tells them apart"
    back = compare(Side(result=result(*many(better)), memory="full"), Side(result=result(*many(rights)), memory="full"))
    assert back.families[0].difference.value == pytest.approx(-0.15) and back.families[0].difference.apart
    same = compare(Side(result=result(*many(rights)), memory="full"), Side(result=result(*many(rights)), memory="full"))
    assert same.families[0].difference.value == 0.0 and not same.families[0].difference.apart


def test_only_shared_tasks_count_and_all_families_together_come_last():
    first = result(*many([1.0] * 6), *many([0.0] * 4, family="budget"))
    second = result(*many([0.0] * 8), *many([1.0] * 3, family="budget", tokens=Spent(fresh=1, cached=2, output=3)))
    found = compare(Side(result=first, memory="full"), Side(result=second, memory="full"))
    assert (found.tasks, found.left_out) == (9, (1, 2))
    values = [
        (one.family, one.difference.tasks, one.first.value, one.second.value, one.difference.value)
        for one in found.families
    ]
    assert values == [("chain", 6, 1.0, 0.0, -1.0), ("budget", 3, 0.0, 1.0, 1.0), (None, 9, 0.5, 0.5, 0.0)]
    assert found.families[1].tokens == (125, 6)


@pytest.mark.parametrize(("name", "value"), [("suite", "full"), ("seed", 3), ("tasks", 2)])
def test_results_of_other_tasks_are_refused(name: str, value: object):
    mine, other = result(*many([1.0])), replace(result(*many([1.0]), model="other"), **{name: value})
    with pytest.raises(UserError, match=r"qwen, full was run with .*, and other, full with .*only results on"):
        compare(Side(result=mine, memory="full"), Side(result=other, memory="full"))


def test_what_cannot_be_matched_is_refused():
    one = result(*many([1.0, 0.0]))
    for other, memory, reason in [
        (one, "notes", "was not run with memory 'notes'; it has full"),
        (result(attempt("else", 1.0)), "full", "share no task"),
        (result(attempt("chain-0", 1.0), attempt("chain-0", 1.0)), "full", "'chain-0' twice"),
        (result(attempt("chain-0", 1.0, level=2)), "full", "is another than that of"),
    ]:
        with pytest.raises(UserError, match=reason):
            compare(Side(result=one, memory="full"), Side(result=other, memory=memory))


def test_sides_are_named_by_what_tells_them_apart():
    one, two = (result(*many([1.0]), *many([1.0], memory="notes"), model=model) for model in ("a", "b"))
    assert names_of(sides_of(one)) == ["full", "notes"]
    assert names_of([Side(result=one, memory="full"), Side(result=two, memory="full")]) == ["a", "b"]
    assert names_of([*sides_of(one), Side(result=two, memory="full")]) == ["a, full", "a, notes", "b, full"]
    assert names_of([*sides_of(one), Side(result=one, memory="full")]) == ["full (1)", "notes", "full (2)"]


def test_the_interval_of_one_cell_of_scores_is_agrestis_and_coulls_with_students_quantile():
    # 8 right of 10 with 2 + 2 added: 10/14, sqrt(10/14 * 4/14 / 14) = 0.12074, times 2.2622 for 9 degrees of freedom
    assert weighted_interval([[1.0] * 8 + [0.0] * 2], [1.0]) == pytest.approx((0.441155, 0.987417), abs=1e-4)


def test_intervals_of_sums_hold_the_truth_and_are_narrower_than_a_single_cell():
    rng = np.random.default_rng(0)
    chances, weights = np.array([0.95, 0.8, 0.5, 0.1]), np.array([1, 2, 2, 1]) / 6
    truth, held, paired = float(weights @ chances), 0, 0
    for _ in range(400):
        first, second = (rng.binomial(4, chances[:, None], size=(4, 12)) / 4 for _ in range(2))
        low, high = weighted_interval(list(first), weights)
        held += low <= truth <= high
        low, high = weighted_difference_interval(list(second - first), weights)
        paired += low <= 0 <= high
    assert held >= 0.93 * 400 and paired >= 0.93 * 400
    low, high = weighted_interval([[1.0] * 5] * 4, [0.25] * 4)
    assert high == 1.0 and 0.75 < low < weighted_interval([[1.0] * 20], [1.0])[0]


@pytest.mark.parametrize(("cells", "weights"), [([], []), ([[1.0], []], [0.5, 0.5]), ([[1.0]], [0.5, 0.5])])
def test_a_sum_without_values_has_no_interval(cells: list[list[float]], weights: list[float]):
    with pytest.raises(ValueError, match="at least one cell"):
        weighted_interval(cells, weights)
