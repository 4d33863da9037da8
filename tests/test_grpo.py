"""Group-relative advantages, by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mem1.algorithms.grpo import EPSILON, group_advantages

pytestmark = pytest.mark.numeric

REWARDS = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=2, max_size=16)


def test_advantages_are_rewards_less_their_mean_over_their_spread():
    # mean 0.5, deviations 0.5 each, standard deviation 0.5
    expected = 0.5 / (0.5 + EPSILON)
    assert group_advantages([1.0, 0.0, 0.0, 1.0]) == pytest.approx([expected, -expected, -expected, expected])


def test_the_spread_is_that_of_the_group_and_not_an_estimate_of_a_larger_one():
    # rewards 0 and 2: mean 1; divided by G the standard deviation is 1, by G - 1 it would be 1.414
    assert group_advantages([0.0, 2.0]) == pytest.approx([-1.0, 1.0], abs=2e-4)
    # rewards 0 0 0 4: mean 1, variance (1 + 1 + 1 + 9) / 4 = 3
    assert group_advantages([0, 0, 0, 4]) == pytest.approx([-1 / 3**0.5] * 3 + [3 / 3**0.5], abs=2e-4)


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3])
def test_equal_rewards_teach_nothing_at_all(reward: float):
    assert group_advantages([reward] * 7) == (0.0,) * 7


@given(REWARDS)
def test_advantages_add_up_to_nothing_and_keep_the_order(rewards: list[float]):
    advantages = group_advantages(rewards)
    assert math.fsum(advantages) == pytest.approx(0.0, abs=1e-9)
    assert [a for _, a in sorted(zip(rewards, advantages, strict=True))] == sorted(advantages)


@given(REWARDS, st.floats(-5, 5))
def test_a_constant_on_all_rewards_changes_nothing(rewards: list[float], constant: float):
    shifted = group_advantages([r + constant for r in rewards])
    assert shifted == pytest.approx(group_advantages(rewards), abs=1e-6)


@pytest.mark.parametrize("rewards", [[], [1.0]])
def test_one_attempt_has_nothing_to_be_compared_with(rewards: list[float]):
    with pytest.raises(ValueError, match="at least 2 attempts"):
        group_advantages(rewards)
