"""Differences on the same tasks, and seeds apart from tasks: what each interval answers to and what it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from mem1.errors import UserError
from mem1.evaluation.compare import Difference, over_seeds, paired_difference, values_by_task
from mem1.evaluation.intervals import difference_interval, mean_interval, seeds_interval
from mem1.evaluation.metrics import solved
from mem1.records import Ended, Question, Task, Trajectory


def difference(ours: Sequence[Trajectory], theirs: Sequence[Trajectory], **how: Any) -> Difference:
    """Between two single runs."""
    return paired_difference([ours], [theirs], **how)


def run(scores: Sequence[float], order: Sequence[int] | None = None) -> list[Trajectory]:
    """One attempt a task with these scores, in any order."""
    attempts = [
        Trajectory(
            turns=(),
            task=Task(
                id=f"t{i}", questions=(Question(id=f"q{i}", text=f"Who{i}?", answers=("A",)),), prompt="?", turn_limit=1
            ),
            metrics={"em": (score,), "f1": (score,)},
            reward=score,
            seconds=float(i),
        )
        for i, score in enumerate(scores)
    ]
    return [attempts[i] for i in (order or range(len(attempts)))]


def width(interval: tuple[float, float]) -> float:
    return interval[1] - interval[0]


def test_a_difference_is_task_by_task_in_whatever_order_they_come():
    ours, theirs = run([1, 0, 1, 1]), run([0, 0, 1, 0], order=[3, 1, 0, 2])
    found = difference(ours, theirs)
    assert (found.value, found.tasks) == (0.5, 4)
    assert (found.low, found.high) == difference_interval([[1, 0, 1, 1]], [[0, 0, 1, 0]])
    assert difference(theirs, ours).value == -0.5


def test_values_are_matched_by_task_and_not_by_place():
    first, second = run([0.0, 0.25, 0.5, 1.0]), run([0.1, 0.35, 0.6, 1.1], order=[2, 0, 3, 1])
    assert values_by_task([first, second], solved) == [[0.0, 0.25, 0.5, 1.0], [0.1, 0.35, 0.6, 1.1]]
    in_place = run([0.1, 0.35, 0.6, 1.1])
    assert difference(second, first, within=None) == difference(in_place, first, within=None)
    assert difference(second, first, within=None).value == pytest.approx(0.1)


def test_the_seeds_of_two_ways_of_training_have_nothing_in_common():
    # seed by seed the two differ by nothing; as their seeds are independent, the difference is not sure at all
    by_seed = [0.2, 0.8, 0.4, 0.6]
    runs = [run([score] * 20) for score in by_seed]
    found = paired_difference(runs, runs)
    assert found.value == pytest.approx(0.0)
    assert found.low < -0.1 and found.high > 0.1


def test_a_constant_gain_on_hard_and_easy_tasks_is_beyond_doubt():
    easy_or_hard = [0.0, 0.9] * 10
    found = difference(run([x + 0.1 for x in easy_or_hard]), run(easy_or_hard))
    assert (found.low, found.value, found.high) == pytest.approx((0.054, 0.1, 0.144), abs=5e-4)
    assert width(mean_interval(easy_or_hard)) > 0.3, "either mean alone is far from sure"


def test_a_failure_that_was_never_scored_counts_as_wrong():
    failed = [replace(t, metrics={}, reward=None, ended=Ended.TOOL_FAILED) for t in run([1, 1])]
    assert difference(run([1, 1]), failed).value == 1


def test_any_number_of_a_trajectory_can_be_compared():
    assert difference(run([0, 0]), run([1, 1]), measure=lambda t: t.seconds, within=None).value == 0
    with pytest.raises(ValueError, match="out of bounds"):
        difference(run([0] * 3), run([1] * 3), measure=lambda t: t.seconds)
    assert values_by_task([run([0, 0, 0], order=[2, 0, 1])], lambda t: t.seconds) == [[2, 0, 1]]


def test_a_metric_of_an_attempt_as_a_whole_is_compared():
    def whole(*scores: float) -> list[Trajectory]:
        two = [Question(id=name, text=f"Who {name}?", answers=("A",)) for name in "ab"]
        return [
            replace(t, task=replace(t.task, questions=tuple(two)), metrics={"em": t.reward})
            for t in run(scores)
            if t.task
        ]

    assert difference(whole(0.5, 1.0), whole(0.0, 0.5)).value == 0.5


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (run([1, 0]), "run 2 has 2 tasks and run 1 has 3"),
        (run([1, 0, 1, 0])[1:], "run 2 has no task 't0', which run 1 has"),
        (run([1, 0, 1]) + run([1]), "run 2 has task 't0' twice"),
        ([replace(t, task=replace(t.task, turn_limit=2)) for t in run([1, 0, 1]) if t.task], "'t0' of run 2 differs"),
        ([replace(t, task=None) for t in run([1, 0, 1])], "run 2 has a trajectory without its task"),
        ([], "run 2 has no trajectories"),
    ],
)
def test_runs_on_other_tasks_are_refused(theirs: list[Trajectory], message: str):
    with pytest.raises(UserError, match=message):
        difference(run([1, 0, 1]), theirs)


def test_seeds_and_tasks_are_told_apart():
    # seeds differ by 0.2 on every task; no task differs from another
    seeds_only = over_seeds([run([0.4] * 50), run([0.6] * 50), run([0.5] * 50)])
    assert seeds_only.mean == pytest.approx(0.5)
    assert seeds_only.by_seed == pytest.approx((0.4, 0.6, 0.5))
    assert seeds_only.spread == pytest.approx(0.1)
    low, high = seeds_only.over_tasks
    assert 0.4 < low < 0.5 < high < 0.6, "50 equal tasks are no proof that all tasks are"
    # of three seeds: Student's quantile with 2 degrees of freedom, 4.30 * 0.1 / sqrt(3) to either side
    assert seeds_only.over_both == pytest.approx((0.25, 0.75), abs=0.03)
    # tasks differ, seeds do not
    tasks_only = over_seeds([run([0.0, 1.0] * 25)] * 3)
    assert tasks_only.spread == 0
    assert tasks_only.over_both == pytest.approx(tasks_only.over_tasks)
    assert width(tasks_only.over_tasks) == pytest.approx(0.28, abs=0.03)  # 2 * 1.96 * 0.5 / sqrt(50)


def test_one_seed_says_nothing_about_others():
    one = over_seeds([run([1.0, 0.0, 1.0])])
    assert (one.spread, one.over_both) == (None, None)
    assert one.over_tasks == mean_interval([1.0, 0.0, 1.0])


def test_a_task_that_is_hard_for_all_seeds_does_not_count_as_many():
    # the tasks of all seeds agree: taking each seed's tasks for others would halve the interval
    hard_or_easy = [0.0, 1.0] * 50
    assert width(seeds_interval([hard_or_easy] * 4)) == pytest.approx(0.196, abs=0.02)


def test_two_ways_of_training_are_compared_over_seeds_and_tasks():
    tasks = [0.0, 0.8] * 20
    ours = [run([x + gain for x in tasks]) for gain in (0.05, 0.15)]
    theirs = [run(tasks)] * 2
    found = paired_difference(ours, theirs)
    # the tasks cancel; two seeds say little: 12.7 * 0.0707 / sqrt(2) = 0.64 to either side
    assert (found.low, found.value, found.high) == pytest.approx((-0.55, 0.10, 0.73), abs=0.02)
    assert found.tasks == 40


def test_the_seeds_of_either_side_count():
    tasks = [0.1, 0.7] * 20
    seeds = [run([x + gain for x in tasks]) for gain in (0.0, 0.1, 0.2)]
    for ours, theirs, sign in ((seeds, [run(tasks)], 1), ([run(tasks)], seeds, -1)):
        found = paired_difference(ours, theirs)
        # 4.3 * 0.1 / sqrt(3) to either side
        assert (sign * found.low, sign * found.value, sign * found.high) == pytest.approx(
            (0.1 - sign * 0.248, 0.1, 0.1 + sign * 0.248), abs=0.02
        )


def test_questions_that_occur_in_several_tasks_count_once():
    def asked(scores: Sequence[float]) -> list[Trajectory]:
        found = run(scores)
        for i, t in enumerate(found):
            assert t.task is not None
            question = replace(t.task.questions[0], id=f"q{i % 2}", text=f"Who{i % 2}?")
            found[i] = replace(t, task=replace(t.task, questions=(question,)))
        return found

    ours, theirs = [1.0, 0.0] * 10, [0.0, 0.0] * 10
    alone = difference(run(ours), run(theirs))
    assert width((alone.low, alone.high)) < 0.7
    sure = difference(asked(ours), asked(theirs))
    assert (sure.low, sure.high) == (-1.0, 1.0), "two questions, however often they are asked"


def test_sides_and_runs_must_be_there():
    with pytest.raises(UserError, match="needs two sides"):
        paired_difference([run([1.0])], [])
    with pytest.raises(UserError, match="at least one run"):
        over_seeds([])
    with pytest.raises(ValueError, match="2 tasks cannot be compared with runs on 3"):
        difference_interval([[1.0, 0.0]], [[1.0, 0.0, 1.0]])


def test_the_default_measure_is_exact_match_per_objective():
    assert [solved(t) for t in run([1.0, 0.0])] == [1.0, 0.0]
