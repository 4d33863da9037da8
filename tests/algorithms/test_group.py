"""One number a trajectory: the group family beside GRPO, the overlong penalty, and what rejection sampling keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from builders import trajectory
from hypothesis import given
from hypothesis import strategies as st

from mem1.algorithms.base import Algorithm, Attempt
from mem1.algorithms.channels import Channels, Outcome
from mem1.algorithms.group import (
    EPSILON,
    DrGrpo,
    Overlong,
    Reinforce,
    ReinforcePlusPlus,
    accepted,
    centred_advantages,
    global_advantages,
    leave_one_out_advantages,
    normalised_advantages,
)

pytestmark = pytest.mark.numeric

REWARDS = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=2, max_size=16)
Family = Callable[[Sequence[float]], tuple[float, ...]]
FAMILY: list[Family] = [normalised_advantages, centred_advantages, leave_one_out_advantages]


def test_advantages_are_rewards_less_their_mean_over_their_spread():
    # mean 0.5, deviations 0.5 each, standard deviation 0.5
    expected = 0.5 / (0.5 + EPSILON)
    assert normalised_advantages([1.0, 0.0, 0.0, 1.0]) == pytest.approx([expected, -expected, -expected, expected])


@pytest.mark.parametrize(
    "algorithm", [DrGrpo(), ReinforcePlusPlus(), Channels(channels=(Outcome(scale=False),))], ids=str
)
def test_kl_penalties_count_where_the_rewards_that_are_compared_differ(algorithm: Algorithm):
    made = replace(trajectory(([1], [2])), reward=1.0)  # both, before a penalty for length
    penalties = torch.tensor([0.5]), torch.tensor([0.0])

    def advantages(*shaped: float) -> list[float]:
        attempts = [
            Attempt(trajectory=made, shaped_reward=r, kl_penalty_K=k) for r, k in zip(shaped, penalties, strict=True)
        ]
        (found,) = algorithm.advantages([attempts])
        return [float(a.advantages_K) for a in found if a is not None]

    assert advantages(1.0, 1.0) == [0.0, 0.0]
    assert advantages(0.8, 0.6)[0] < 0 < advantages(0.8, 0.6)[1]  # 0.3 and 0.6


def test_the_spread_is_that_of_the_group_and_not_an_estimate_of_a_larger_one():
    # rewards 0 and 2: mean 1; divided by G the standard deviation is 1, by G - 1 it would be 1.414
    assert normalised_advantages([0.0, 2.0]) == pytest.approx([-1.0, 1.0], abs=2e-4)
    # rewards 0 0 0 4: mean 1, variance (1 + 1 + 1 + 9) / 4 = 3
    assert normalised_advantages([0, 0, 0, 4]) == pytest.approx([-1 / 3**0.5] * 3 + [3 / 3**0.5], abs=2e-4)


def test_dr_grpo_does_not_divide_by_the_spread():
    assert centred_advantages([1.0, 0.0, 0.0, 1.0]) == (0.5, -0.5, -0.5, 0.5)
    assert centred_advantages([4, 0, 0, 0]) == (3, -1, -1, -1)


def test_rloo_leaves_the_attempt_itself_out_of_its_baseline():
    assert leave_one_out_advantages([1.0, 0.0, 0.0]) == (1.0, -0.5, -0.5)
    assert leave_one_out_advantages([4, 1]) == (3, -3)


@given(REWARDS)
def test_rloo_is_dr_grpo_times_g_over_g_less_1(rewards: list[float]):
    scale = len(rewards) / (len(rewards) - 1)
    expected = [scale * a for a in centred_advantages(rewards)]
    assert leave_one_out_advantages(rewards) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("family", FAMILY)
@given(rewards=REWARDS)
def test_advantages_add_up_to_nothing_and_keep_the_order(family: Family, rewards: list[float]):
    advantages = family(rewards)
    assert math.fsum(advantages) == pytest.approx(0.0, abs=1e-9)
    assert [a for _, a in sorted(zip(rewards, advantages, strict=True))] == sorted(advantages)


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3])
def test_equal_rewards_teach_nothing_at_all(family: Family, reward: float):
    assert family([reward] * 7) == (0.0,) * 7


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize("rewards", [[], [1.0]])
def test_one_attempt_has_nothing_to_be_compared_with(family: Family, rewards: list[float]):
    with pytest.raises(ValueError, match="at least 2 attempts"):
        family(rewards)


def test_reinforce_takes_single_attempts():
    assert Reinforce().group_advantages([1.0]) == (1.0,)
    assert Reinforce(baseline=0.5).group_advantages([1.0, 0.25]) == (0.5, -0.25)
    assert Reinforce().group_advantages([]) == ()


def test_reinforce_plus_plus_has_one_scale_for_all_tasks():
    # rewards 0 2 | 2 4: mean 2, variance (4 + 0 + 0 + 4) / 4 = 2
    expected = [-2, 0, 0, 2]
    first, second = global_advantages([[0, 2], [2, 4]], group_baseline=False)
    assert [*first, *second] == pytest.approx([x / (2**0.5 + EPSILON) for x in expected])


def test_with_a_group_baseline_a_task_is_compared_with_itself_and_scaled_with_all():
    # rewards 0 2 | 10 16: less the mean of the group -1 1 | -3 3, variance (1 + 1 + 9 + 9) / 4 = 5
    first, second = global_advantages([[0, 2], [10, 16]], group_baseline=True)
    assert [*first, *second] == pytest.approx([x / (5**0.5 + EPSILON) for x in (-1, 1, -3, 3)])


def test_groups_may_be_of_any_size_and_without_baseline_of_one():
    assert [len(group) for group in global_advantages([[0], [1, 1], [2]], group_baseline=False)] == [1, 2, 1]


@pytest.mark.parametrize("baseline", [False, True])
def test_a_batch_in_which_nothing_differs_teaches_nothing(baseline: bool):
    assert global_advantages([[0.1] * 3, [0.1] * 2], group_baseline=baseline) == [(0.0,) * 3, (0.0,) * 2]


@given(st.lists(REWARDS, min_size=1, max_size=4), st.booleans())
def test_the_batch_has_mean_0_and_the_order_of_groups_does_not_matter(groups: list[list[float]], baseline: bool):
    advantages = global_advantages(groups, group_baseline=baseline)
    assert math.fsum(a for group in advantages for a in group) == pytest.approx(0, abs=1e-8)
    backwards = global_advantages(groups[::-1], group_baseline=baseline)
    for one, other in zip(advantages, backwards[::-1], strict=True):
        assert one == pytest.approx(other)


@given(REWARDS)
def test_one_group_alone_is_grpo(rewards: list[float]):
    for baseline in (False, True):
        (advantages,) = global_advantages([rewards], group_baseline=baseline)
        assert advantages == pytest.approx(normalised_advantages(rewards), abs=1e-9)


@pytest.mark.parametrize(("groups", "baseline"), [([[1.0]], False), ([[1.0], [0.0]], True), ([], False)])
def test_reinforce_plus_plus_needs_two_attempts_to_compare(groups: list[list[float]], baseline: bool):
    with pytest.raises(ValueError, match="at least 2 attempts"):
        global_advantages(groups, group_baseline=baseline)


@pytest.mark.parametrize(
    ("tokens", "penalty"), [(0, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (100, -1.0), (101, -1.0), (10**6, -1.0)]
)
def test_the_penalty_grows_through_the_buffer(tokens: int, penalty: float):
    assert Overlong(limit=100, buffer=20).penalty(tokens) == pytest.approx(penalty)


def test_without_a_buffer_the_penalty_is_a_step():
    assert [Overlong(limit=9, buffer=0).penalty(tokens) for tokens in (8, 9, 10)] == [0.0, 0.0, -1.0]


def test_a_buffer_beyond_the_limit_is_refused():
    with pytest.raises(ValueError, match="between 0 and the limit of 10 tokens"):
        Overlong(limit=10, buffer=11)


def test_attempts_that_reach_the_threshold_are_kept_in_order():
    assert accepted([0.0, 1.0, 0.5, 1.0], threshold=0.5) == (1, 2, 3)
    assert accepted([0.0, 1.0, 0.5, 1.0], threshold=1.5) == ()
    assert accepted([], threshold=0.0) == ()


def test_the_best_are_kept_and_the_earlier_of_equal_ones():
    assert accepted([0.5, 1.0, 0.5, 2.0], threshold=0.0, best=2) == (1, 3)
    assert accepted([0.5, 1.0, 0.5, 2.0], threshold=0.0, best=3) == (0, 1, 3)
    assert accepted([0.5, 1.0], threshold=1.0, best=2) == (1,)
