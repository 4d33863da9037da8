"""Truncated importance weights between sampler and trainer, and what the losses do with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mem1.algorithms.losses import clipped_surrogate, policy_gradient, truncated_weights
from mem1.algorithms.ratios import cispo, sequence_surrogate

pytestmark = pytest.mark.numeric


def logs(*probabilities: float) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def test_token_level_by_hand():
    #  trainer 0.4 0.5 0.9 / sampler 0.5 0.5 0.3   ->   0.8 1 3
    weights = truncated_weights(logs(0.4, 0.5, 0.9), logs(0.5, 0.5, 0.3), cap=2.0)
    assert weights.weights_M.tolist() == pytest.approx([0.8, 1.0, 2.0])
    assert weights.capped == 1


def test_sequence_level_is_the_product_over_the_sequence_by_hand():
    #  ratios 0.8 2 | 3 1.5 0.5    products 1.6 | 2.25, capped at 2
    trainer, sampler = logs(0.4, 0.8, 0.9, 0.3, 0.1), logs(0.5, 0.4, 0.3, 0.2, 0.2)
    weights = truncated_weights(trainer, sampler, cap=2.0, lengths=[2, 3])
    assert weights.weights_M.tolist() == pytest.approx([1.6, 1.6, 2.0, 2.0, 2.0])
    assert weights.capped == 3


def test_a_word_that_the_trainer_finds_unlikely_is_not_held_up():
    weights = truncated_weights(logs(0.01), logs(0.5), cap=2.0)
    assert weights.weights_M.tolist() == pytest.approx([0.02])
    assert weights.capped == 0


def test_a_sequence_of_one_token_is_the_token_level():
    trainer, sampler = logs(0.4, 0.8, 0.9), logs(0.5, 0.4, 0.3)
    token = truncated_weights(trainer, sampler, cap=2.5)
    sequence = truncated_weights(trainer, sampler, cap=2.5, lengths=[1, 1, 1])
    assert torch.equal(token.weights_M, sequence.weights_M)
    assert token.capped == sequence.capped == 1


def test_a_sampler_that_is_the_trainer_is_weighed_1_and_no_gradient_flows():
    trainer = logs(0.4, 0.5).requires_grad_()
    weights = truncated_weights(trainer, trainer, cap=2.0, lengths=[2])
    assert weights.weights_M.tolist() == [1.0, 1.0]
    assert weights.capped == 0
    assert not weights.weights_M.requires_grad


def test_a_long_sequence_runs_to_the_cap_and_not_to_infinity():
    weights = truncated_weights(torch.zeros(1000), torch.full((1000,), -1.0), cap=2.0, lengths=[1000])
    assert weights.weights_M.tolist() == [2.0] * 1000


def test_before_the_cap_weights_make_the_samplers_mean_the_trainers():
    trainer, sampler = torch.randn(2, 6, generator=torch.Generator().manual_seed(0)).double().log_softmax(-1)
    number = torch.arange(6.0).double()
    weights = truncated_weights(trainer, sampler, cap=1e9).weights_M
    torch.testing.assert_close((sampler.exp() * weights * number).sum(), (trainer.exp() * number).sum())


def test_lengths_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="lengths sum to 4, but there are 3 tokens"):
        truncated_weights(torch.zeros(3), torch.zeros(3), cap=2.0, lengths=[4])


OLD, ADVANTAGES = logs(0.5, 0.25, 0.1, 0.4), torch.tensor([1.0, -2.0, 0.5, 1.5]).double()

Loss = Callable[[Tensor, "Tensor | None"], Tensor]


def clipped(logprobs: Tensor, weights: Tensor | None) -> Tensor:
    return clipped_surrogate(
        logprobs, OLD, ADVANTAGES, clip_low=0.2, clip_high=0.2, denominator=4.0, weights_M=weights
    ).loss


def per_token_sequences(logprobs: Tensor, weights: Tensor | None) -> Tensor:
    return sequence_surrogate(
        logprobs, OLD, ADVANTAGES, [1, 1, 1, 1], clip_low=0.2, clip_high=0.2, denominator=4.0, weights_M=weights
    ).loss


def reinforce(logprobs: Tensor, weights: Tensor | None) -> Tensor:
    return policy_gradient(logprobs, ADVANTAGES, denominator=4.0, weights_M=weights)


def minimax(logprobs: Tensor, weights: Tensor | None) -> Tensor:
    return cispo(logprobs, OLD, ADVANTAGES, clip_high=0.2, denominator=4.0, weights_M=weights).loss


@pytest.mark.parametrize("loss", [clipped, per_token_sequences, reinforce, minimax])
def test_a_weight_multiplies_its_tokens_gradient_and_no_other(loss: Loss):
    weights = torch.tensor([1.0, 0.5, 2.0, 0.0]).double()
    plain, weighted = (logs(0.55, 0.26, 0.09, 0.41).requires_grad_() for _ in range(2))
    (before,) = torch.autograd.grad(loss(plain, None), plain)
    (after,) = torch.autograd.grad(loss(weighted, weights), weighted)
    assert before.abs().min() > 0
    torch.testing.assert_close(after, weights * before)
    assert loss(plain, torch.ones(4).double()).item() == loss(plain, None).item()
