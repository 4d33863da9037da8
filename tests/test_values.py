"""The critic's loss, what it explains, and whitened advantages, by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mem1.algorithms.ppo import explained_variance, value_loss, whitened

pytestmark = pytest.mark.numeric

NUMBERS = st.lists(st.integers(-50, 50).map(float), min_size=2, max_size=12)


def tensor(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


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
def test_micro_batches_add_up(cut: int):
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


@given(NUMBERS)
def test_whitened_advantages_have_mean_0_and_variance_1_or_vanish(numbers: list[float]):
    white = whitened(tensor(*numbers))
    assert white.mean().item() == pytest.approx(0, abs=1e-9)
    expected = 1.0 if len(set(numbers)) > 1 else 0.0
    assert white.var(correction=0).item() == pytest.approx(expected, abs=1e-5)
