"""The losses, by hand: PPO's clipped objective and the likelihood of demonstrations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mem1.algorithms.losses import PolicyLoss, clipped_surrogate, negative_log_likelihood

pytestmark = pytest.mark.numeric


def surrogate(
    logprobs: Tensor, old: Tensor, advantages: Tensor, *, low: float = 0.2, high: float = 0.2, denominator: float = 1.0
) -> PolicyLoss:
    return clipped_surrogate(logprobs, old, advantages, clip_low=low, clip_high=high, denominator=denominator)


def ratios(*values: float) -> Tensor:
    """Log-probabilities whose ratios to old ones of 0 are these."""
    return torch.tensor(values, dtype=torch.float64).log()


ZEROS = torch.zeros(4, dtype=torch.float64)


def test_four_tokens_by_hand():
    #  ratio      1.0   1.5   0.5   1.5
    #  advantage  2.0   1.0  -1.0  -1.0
    #  free       2.0   1.5  -0.5  -1.5
    #  held       2.0   1.2  -0.8  -1.2
    #  smaller    2.0   1.2  -0.8  -1.5      sum 0.9
    result = surrogate(
        ratios(1.0, 1.5, 0.5, 1.5), ZEROS, torch.tensor([2.0, 1.0, -1.0, -1.0]).double(), denominator=10.0
    )
    assert result.loss.item() == pytest.approx(-0.09)
    assert result.clipped == 2


def test_the_two_bounds_are_independent():
    advantages = torch.tensor([1.0, -1.0]).double()
    result = surrogate(ratios(1.4, 0.4), ZEROS[:2], advantages, low=0.5, high=0.1)
    assert result.loss.item() == pytest.approx(-(1.1 - 0.5))
    assert result.clipped == 2
    assert surrogate(ratios(1.4, 0.4), ZEROS[:2], advantages, low=0.7, high=0.5).clipped == 0


def test_on_the_policy_itself_the_gradient_is_that_of_the_policy_gradient():
    logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    advantages = torch.tensor([1.0, -2.0, 0.0])
    result = surrogate(logprobs, logprobs.detach(), advantages, denominator=4.0)
    result.loss.backward()
    assert result.clipped == 0
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-0.25, 0.5, 0.0])


def test_a_token_on_which_the_clip_took_effect_has_no_gradient():
    #                 clipped   good side of the bound   clipped   good side
    logprobs = ratios(1.5, 1.5, 0.5, 0.5).requires_grad_()
    surrogate(logprobs, ZEROS, torch.tensor([1.0, -1.0, -1.0, 1.0]).double()).loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([0.0, 1.5, 0.0, -0.5])


def test_micro_batches_add_up_when_the_denominator_is_that_of_the_step():
    generator = torch.Generator().manual_seed(0)
    new, old, advantages = (torch.randn(12, generator=generator, dtype=torch.float64) for _ in range(3))
    whole = new.clone().requires_grad_()
    parts = new.clone().requires_grad_()
    total = surrogate(whole, old, advantages, denominator=12.0)
    total.loss.backward()
    pieces = [surrogate(parts[a:b], old[a:b], advantages[a:b], denominator=12.0) for a, b in ((0, 1), (1, 8), (8, 12))]
    for piece in pieces:
        piece.loss.backward()
    assert sum(p.loss.item() for p in pieces) == pytest.approx(total.loss.item())
    assert sum(p.clipped for p in pieces) == total.clipped > 0
    assert whole.grad is not None and parts.grad is not None
    torch.testing.assert_close(parts.grad, whole.grad)


def test_the_likelihood_of_demonstrations_is_a_sum_over_the_steps_denominator():
    logprobs = torch.tensor([math.log(0.5), math.log(0.25)], requires_grad=True)
    loss = negative_log_likelihood(logprobs, denominator=2.0)
    loss.backward()
    assert loss.item() == pytest.approx(1.5 * math.log(2))
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-0.5, -0.5]
