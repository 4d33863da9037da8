"""GSPO, CISPO and the plain policy gradient, by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mem1.algorithms.losses import PolicyLoss, clipped_surrogate, policy_gradient
from mem1.algorithms.ratios import cispo, sequence_surrogate

pytestmark = pytest.mark.numeric


def tensor(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def ratios(*values: float) -> Tensor:
    """Log-probabilities whose ratios to old ones of 0 are these."""
    return tensor(*values).log()


def noise(*shape: int) -> Tensor:
    return 0.3 * torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def gspo(
    logprobs: Tensor,
    advantages: Tensor,
    lengths: list[int],
    *,
    old: Tensor | None = None,
    clip: float = 0.2,
    denominator: float = 1.0,
    weights: Tensor | None = None,
) -> PolicyLoss:
    return sequence_surrogate(
        logprobs,
        torch.zeros_like(logprobs) if old is None else old,
        advantages,
        lengths,
        clip_low=clip,
        clip_high=clip,
        denominator=denominator,
        weights_S=weights,
    )


def test_three_sequences_by_hand():
    #  token ratios     4 1 | 0.25 1 1 0.25 | 1.1
    #  geometric mean   2   | 0.5           | 1.1
    #  advantage        1   | 1             | -1
    #  free, held       2 1.2 | 0.5 0.8     | -1.1 -1.1      smaller 1.2 + 0.5 - 1.1 = 0.6
    result = gspo(ratios(4, 1, 0.25, 1, 1, 0.25, 1.1), tensor(1, 1, -1), [2, 4, 1], denominator=3.0)
    assert result.loss.item() == pytest.approx(-0.2)
    assert result.clipped == 2  # both tokens of the first sequence, though the second one's ratio is 1


def test_a_sequences_gradient_is_shared_evenly_by_its_tokens():
    logprobs = ratios(1.21, 1.0, 0.9).requires_grad_()
    (gradient,) = torch.autograd.grad(gspo(logprobs, tensor(2, -1), [2, 1]).loss, logprobs)
    #  ratio 1.1, advantage 2, over 2 tokens: -1.1 each
    assert gradient.tolist() == pytest.approx([-1.1, -1.1, 0.9])


def test_sequences_of_one_token_are_ppo():
    logprobs, old, advantages = noise(3, 7)
    mine = gspo(logprobs, advantages, [1] * 7, old=old, denominator=7.0)
    ppo = clipped_surrogate(logprobs, old, advantages, clip_low=0.2, clip_high=0.2, denominator=7.0)
    assert mine.loss.item() == pytest.approx(ppo.loss.item())
    assert mine.clipped == ppo.clipped > 0


def test_a_sequence_counts_once_however_long_it_is():
    short, long = gspo(ratios(1.1), tensor(1.0), [1]), gspo(ratios(*[1.1] * 9), tensor(1.0), [9])
    assert long.loss.item() == pytest.approx(short.loss.item())


def test_a_trajectory_of_many_turns_weighs_as_much_as_one_of_few():
    #  the same ratio on every token: one turn of 6, or three turns of 1, 2 and 3
    one = gspo(ratios(*[1.1] * 6), tensor(1.0), [6], weights=tensor(1.0))
    three = gspo(ratios(*[1.1] * 6), tensor(1.0, 1.0, 1.0), [1, 2, 3], weights=tensor(1 / 3, 1 / 3, 1 / 3))
    assert three.loss.item() == pytest.approx(one.loss.item()) == -1.1
    assert gspo(ratios(*[1.1] * 6), tensor(1, 1, 1), [1, 2, 3]).loss.item() == pytest.approx(-3.3)


def test_one_turn_that_drifted_is_clipped_alone_only_if_turns_are_the_unit():
    logprobs = ratios(2.0, 2.0, 0.5, 0.5)
    assert gspo(logprobs, tensor(1.0), [4]).clipped == 0
    assert gspo(logprobs, tensor(1.0, 1.0), [2, 2], weights=tensor(0.5, 0.5)).clipped == 2


def test_a_sequence_without_tokens_adds_nothing():
    with_it, without = gspo(ratios(1.1, 0.9), tensor(1, 5, 2), [1, 0, 1]), gspo(ratios(1.1, 0.9), tensor(1, 2), [1, 1])
    assert with_it.loss.item() == without.loss.item()


def test_lengths_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="lengths sum to 3, but there are 4 tokens"):
        gspo(torch.zeros(4), tensor(1.0), [3])


def test_cispo_by_hand():
    #  ratio       1.5  0.5  1.1   3
    #  held        1.2  0.5  1.1   1.2
    #  advantage   1    1   -1    -2
    logprobs = ratios(1.5, 0.5, 1.1, 3).requires_grad_()
    result = cispo(logprobs, torch.zeros(4), tensor(1, 1, -1, -2), clip_high=0.2, denominator=2.0)
    (gradient,) = torch.autograd.grad(result.loss, logprobs)
    assert gradient.tolist() == pytest.approx([-0.6, -0.25, 0.55, 1.2])
    assert result.loss.item() == pytest.approx(float((gradient * logprobs.detach()).sum()))
    assert result.clipped == 2


def test_cispo_keeps_the_gradient_that_ppo_drops():
    logprobs = ratios(1.5).requires_grad_()
    mine = cispo(logprobs, torch.zeros(1), tensor(1.0), clip_high=0.2, denominator=1.0)
    ppo = clipped_surrogate(logprobs, torch.zeros(1), tensor(1.0), clip_low=0.2, clip_high=0.2, denominator=1.0)
    assert torch.autograd.grad(mine.loss, logprobs)[0].item() == pytest.approx(-1.2)
    assert torch.autograd.grad(ppo.loss, logprobs)[0].item() == 0


def test_a_lower_bound_holds_ratios_up_if_asked_to():
    logprobs = ratios(0.5, 0.9).requires_grad_()
    result = cispo(logprobs, torch.zeros(2), tensor(1, 1), clip_high=0.2, clip_low=0.2, denominator=1.0)
    assert torch.autograd.grad(result.loss, logprobs)[0].tolist() == pytest.approx([-0.8, -0.9])
    assert result.clipped == 1


def test_the_policy_gradient_by_hand():
    logprobs = tensor(-1, -2, -0.5).requires_grad_()
    loss = policy_gradient(logprobs, tensor(1, -2, 0), denominator=4.0)
    assert loss.item() == -(-1 + 4) / 4
    assert torch.autograd.grad(loss, logprobs)[0].tolist() == [-0.25, 0.5, 0.0]


Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def by_ppo(new: Tensor, old: Tensor, advantages: Tensor) -> Tensor:
    return clipped_surrogate(new, old, advantages, clip_low=0.2, clip_high=0.3, denominator=6.0).loss


def by_gspo(new: Tensor, old: Tensor, advantages: Tensor) -> Tensor:
    """Sequences of two tokens, each weighed by its tokens, with the advantage of its first."""
    weights = torch.full((len(new) // 2,), 2.0).double()
    return gspo(new, advantages[::2], [2] * (len(new) // 2), old=old, denominator=6.0, weights=weights).loss


def by_cispo(new: Tensor, old: Tensor, advantages: Tensor) -> Tensor:
    return cispo(new, old, advantages, clip_high=0.2, denominator=6.0).loss


@pytest.mark.parametrize("loss", [by_ppo, by_gspo, by_cispo])
def test_on_the_policy_itself_every_loss_has_the_plain_policy_gradient(loss: Loss):
    new = noise(6).requires_grad_()
    advantages = tensor(1, 1, -2, -2, 0.5, 0.5)
    (expected,) = torch.autograd.grad(policy_gradient(new, advantages, denominator=6.0), new)
    (actual,) = torch.autograd.grad(loss(new, new.detach(), advantages), new)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("loss", [by_ppo, by_gspo])
def test_the_gradient_of_a_surrogate_is_its_derivative(loss: Loss):
    new, old = noise(2, 6)
    advantages = tensor(1, 1, -2, -2, 0.5, 0.5)
    assert torch.autograd.gradcheck(lambda n: loss(n, old, advantages), new.requires_grad_())


@pytest.mark.parametrize("loss", [by_ppo, by_gspo, by_cispo])
@given(cut=st.integers(1, 2))
def test_micro_batches_of_whole_sequences_add_up(loss: Loss, cut: int):
    new, old, advantages = noise(3, 6)
    parts = [loss(new[p], old[p], advantages[p]) for p in (slice(2 * cut), slice(2 * cut, None))]
    assert sum(part.item() for part in parts) == pytest.approx(loss(new, old, advantages).item())
