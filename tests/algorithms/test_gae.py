"""A critic, by hand: its advantages (across resets, never across trajectories), its loss, what it explains."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mem1.algorithms.ppo import explained_variance, generalised_advantages, value_loss, whitened

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
    advantages, returns = generalised_advantages(tensor(0.5, 0.5, 0.25, 0.75), tensor(0, 0, 0, 1), [4], lam=0.5)
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


def test_lengths_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="lengths sum to 3, but there are 4 tokens"):
        generalised_advantages(torch.zeros(4), torch.zeros(4), [3])


WHOLE_NUMBERS = st.lists(st.integers(-50, 50).map(float), min_size=2, max_size=12)


def test_four_values_by_hand():
    #  old       1      1      1      1
    #  value     1.25   2      2      0
    #  return    2      2      0      2
    #  held      1.25   1.5    1.5    0.5
    #  squares   0.5625 0      4      4         free
    #            0.5625 0.25   2.25   2.25      held
    #  larger    0.5625 0.25   4      4         sum 8.8125
    loss = value_loss(tensor(1.25, 2, 2, 0), tensor(1, 1, 1, 1), tensor(2, 2, 0, 2), clip=0.5, denominator=2.0)
    assert loss.loss.item() == 8.8125 / 4
    assert loss.clipped == 1


def test_without_a_clip_it_is_half_the_squared_error():
    loss = value_loss(tensor(1, 5), tensor(0, 0), tensor(2, 2), clip=None, denominator=1.0)
    assert loss.loss.item() == (1 + 9) / 2
    assert loss.clipped == 0


def test_a_value_that_has_moved_far_enough_towards_its_return_has_no_gradient():
    values = tensor(1.75, 1.75).requires_grad_()
    value_loss(values, tensor(1, 1), tensor(2, 0), clip=0.5, denominator=1.0).loss.backward()
    assert values.grad is not None
    assert values.grad.tolist() == [0.0, 1.75]


def test_the_gradient_is_the_derivative():
    old, returns = tensor(0.1, -0.3, 0.8, 0.0), tensor(1, 0.5, -0.2, 0.3)
    values = tensor(0.15, 0.4, 0.3, -0.9).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: value_loss(v, old, returns, clip=0.2, denominator=3.0).loss, values)


@given(st.integers(0, 8))
def test_the_critics_losses_of_micro_batches_add_up(cut: int):
    values, old, returns = torch.randn(3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole = value_loss(values, old, returns, clip=0.2, denominator=8.0)
    parts = [value_loss(values[p], old[p], returns[p], clip=0.2, denominator=8.0) for p in (slice(cut), slice(cut, 8))]
    assert sum(p.loss.item() for p in parts) == pytest.approx(whole.loss.item())
    assert sum(p.clipped for p in parts) == whole.clipped > 0


def test_explained_variance_by_hand():
    returns = tensor(0, 2, 4, 6)  # variance 5
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(tensor(3, 3, 3, 3), returns) == 0.0
    assert explained_variance(tensor(1, 1, 5, 5), returns) == pytest.approx(1 - 1 / 5)
    assert explained_variance(-returns, returns) == pytest.approx(1 - 4)


def test_a_constant_error_explains_as_much_as_none():
    assert explained_variance(tensor(7, 8, 9), tensor(0, 1, 2)) == pytest.approx(1.0)


@pytest.mark.parametrize("returns", [(), (1.0,), (0.1, 0.1, 0.1)])
def test_returns_that_do_not_vary_leave_nothing_to_explain(returns: tuple[float, ...]):
    assert explained_variance(torch.zeros(len(returns)), torch.tensor(returns)) is None


def test_whitening_by_hand():
    #  mean 3, variance (9 + 1 + 1 + 9) / 4 = 5
    expected = [(a - 3) / 5**0.5 for a in (0, 2, 4, 6)]
    assert whitened(tensor(0, 2, 4, 6)).tolist() == pytest.approx(expected, abs=1e-7)


@given(WHOLE_NUMBERS)
def test_whitened_advantages_have_mean_0_and_variance_1_or_vanish(numbers: list[float]):
    white = whitened(tensor(*numbers))
    assert white.mean().item() == pytest.approx(0, abs=1e-9)
    expected = 1.0 if len(set(numbers)) > 1 else 0.0
    assert white.var(correction=0).item() == pytest.approx(expected, abs=1e-5)
