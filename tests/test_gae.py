"""Advantages from a critic: across resets, never across trajectories."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mem1.algorithms.ppo import generalised_advantages, terminal_rewards

pytestmark = pytest.mark.numeric

UNIT = st.floats(0, 1)
NUMBERS = st.lists(st.floats(-2, 2), min_size=1, max_size=12)


def tensor(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def noise(size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_four_tokens_of_two_turns_by_hand():
    #              turn 1         | turn 2
    #  value       0.5     0.5    | 0.25   0.75
    #  delta       0      -0.25   | 0.5    0.25       the reward of 1 is in the last one
    advantages, returns = generalised_advantages(
        tensor(0.5, 0.5, 0.25, 0.75), terminal_rewards([1.0], [4]).double(), [4], lam=0.5
    )
    assert advantages.tolist() == [0.03125, 0.0625, 0.625, 0.25]
    assert returns.tolist() == [0.53125, 0.5625, 0.875, 1.0]


def test_a_discount_shrinks_what_follows_by_hand():
    #  value 1 2, rewards 0 4, gamma 0.5, lam 0.5:   delta 0 + 1 - 1 = 0   and   4 - 2 = 2;   0 + 0.25 * 2 = 0.5
    advantages, returns = generalised_advantages(tensor(1, 2), tensor(0, 4), [2], gamma=0.5, lam=0.5)
    assert advantages.tolist() == [0.5, 2.0]
    assert returns.tolist() == [1.5, 4.0]


@given(NUMBERS, UNIT, UNIT)
def test_it_is_the_discounted_sum_of_deltas_of_the_paper(values: list[float], gamma: float, lam: float):
    size = len(values)
    rewards = noise(size).tolist()
    following = [*values[1:], 0.0]
    deltas = [r + gamma * n - v for r, n, v in zip(rewards, following, values, strict=True)]
    expected = [sum((gamma * lam) ** k * deltas[t + k] for k in range(size - t)) for t in range(size)]
    advantages, returns = generalised_advantages(tensor(*values), tensor(*rewards), [size], gamma=gamma, lam=lam)
    assert advantages.tolist() == pytest.approx(expected, abs=1e-12)
    assert (returns - advantages).tolist() == pytest.approx(values, abs=1e-12)


@given(NUMBERS)
def test_without_discount_and_decay_the_advantage_is_the_reward_to_come_less_the_value(values: list[float]):
    rewards = noise(len(values))
    advantages, returns = generalised_advantages(tensor(*values), rewards, [len(values)])
    to_come = [float(rewards[t:].sum()) for t in range(len(values))]
    assert returns.tolist() == pytest.approx(to_come, abs=1e-12)
    assert advantages.tolist() == pytest.approx([r - v for r, v in zip(to_come, values, strict=True)], abs=1e-12)


@given(st.integers(2, 12), st.data(), UNIT, UNIT)
def test_cut_at_any_reset_a_trajectory_has_the_same_advantages_if_the_rest_is_handed_back(
    size: int, data: st.DataObject, gamma: float, lam: float
):
    cut = data.draw(st.integers(1, size - 1))
    values, rewards = noise(size, 1), noise(size, 2)
    whole, _ = generalised_advantages(values, rewards, [size], gamma=gamma, lam=lam)
    late, _ = generalised_advantages(values[cut:], rewards[cut:], [size - cut], gamma=gamma, lam=lam)
    handed_back = rewards[:cut].clone()
    handed_back[-1] += gamma * values[cut] + gamma * lam * late[0]
    early, _ = generalised_advantages(values[:cut], handed_back, [cut], gamma=gamma, lam=lam)
    torch.testing.assert_close(torch.cat([early, late]), whole)


def test_restarted_at_the_reset_the_first_turn_would_not_hear_of_the_reward():
    values = tensor(0.5, 0.5, 0.25, 0.75)
    for reward in (1.0, 5.0):
        restarted, _ = generalised_advantages(values, tensor(0, 0, 0, reward), [2, 2], lam=0.5)
        assert restarted[:2].tolist() == [-0.25, -0.5]
    linked = [generalised_advantages(values, tensor(0, 0, 0, r), [4], lam=0.5)[0] for r in (1.0, 5.0)]
    assert (linked[1] - linked[0]).tolist() == [0.5, 1.0, 2.0, 4.0]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5))
def test_trajectories_do_not_see_each_other(lengths: list[int]):
    values, rewards = noise(sum(lengths), 1), noise(sum(lengths), 2)
    together, _ = generalised_advantages(values, rewards, lengths, gamma=0.9, lam=0.8)
    alone = [
        generalised_advantages(v, r, [len(v)], gamma=0.9, lam=0.8)[0]
        for v, r in zip(values.split(lengths), rewards.split(lengths), strict=True)
    ]
    assert torch.equal(together, torch.cat(alone))


def test_no_gradient_flows_and_the_type_stays():
    values = torch.zeros(3, requires_grad=True)
    advantages, returns = generalised_advantages(values, torch.ones(3), [3])
    assert not advantages.requires_grad and not returns.requires_grad
    assert advantages.dtype == returns.dtype == torch.float32


def test_the_reward_is_paid_once_a_trajectory_on_its_last_token():
    assert terminal_rewards([1.0, 0.5], [3, 2]).tolist() == [0, 0, 1, 0, 0.5]
    assert terminal_rewards([1.0, 7.0, 0.5], [1, 0, 2]).tolist() == [1, 0, 0.5]


def test_lengths_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="lengths sum to 3, but there are 4 tokens"):
        generalised_advantages(torch.zeros(4), torch.zeros(4), [3])
    with pytest.raises(ValueError, match="2 rewards, but 1 lengths"):
        terminal_rewards([1.0, 0.0], [4])
