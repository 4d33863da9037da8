"""The losses by hand: PPO's, GSPO's, CISPO's, the plain policy gradient, importance weights, the penalty on the KL."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from builders import loss_inputs
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mem1.algorithms.losses import (
    Kl,
    KlEstimator,
    Loss,
    adapted,
    clipped_surrogate,
    kl_estimate,
    negative_log_likelihood,
    policy_gradient,
    truncated_weights,
)
from mem1.algorithms.ratios import Cispo, Gspo

pytestmark = pytest.mark.numeric


def surrogate(
    logprobs: Tensor, old: Tensor, advantages: Tensor, *, low: float = 0.2, high: float = 0.2, denominator: float = 1.0
) -> Loss:
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


def test_a_token_on_which_the_clip_took_effect_has_no_gradient():
    #                 clipped   good side of the bound   clipped   good side
    logprobs = ratios(1.5, 1.5, 0.5, 0.5).requires_grad_()
    surrogate(logprobs, ZEROS, torch.tensor([1.0, -1.0, -1.0, 1.0]).double()).loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([0.0, 1.5, 0.0, -0.5])


def test_the_likelihood_of_demonstrations_is_a_sum_over_the_steps_denominator():
    logprobs = torch.tensor([math.log(0.5), math.log(0.25)], requires_grad=True)
    loss = negative_log_likelihood(logprobs, denominator=2.0)
    loss.backward()
    assert loss.item() == pytest.approx(1.5 * math.log(2))
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-0.5, -0.5]


def tensor(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


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
    turns: bool = False,
) -> Loss:
    """The loss of as many trajectories as there are lengths, or of one with as many `turns`, each a sequence."""
    made = Gspo(unit="turn" if turns else "trajectory", clip_low=clip, clip_high=clip)
    advantages_M = advantages.expand(len(lengths)).repeat_interleave(torch.tensor(lengths))
    sizes = [lengths] if turns else [[length] for length in lengths]
    old = torch.zeros_like(logprobs) if old is None else old
    return made.loss(loss_inputs(logprobs, old, advantages_M, *sizes), denominator=denominator)


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
    one = gspo(ratios(*[1.1] * 6), tensor(1.0), [6])
    three = gspo(ratios(*[1.1] * 6), tensor(1.0), [1, 2, 3], turns=True)
    assert three.loss.item() == pytest.approx(one.loss.item()) == -1.1
    assert gspo(ratios(*[1.1] * 6), tensor(1, 1, 1), [1, 2, 3]).loss.item() == pytest.approx(-3.3)


def test_one_turn_that_drifted_is_clipped_alone_only_if_turns_are_the_unit():
    logprobs = ratios(2.0, 2.0, 0.5, 0.5)
    assert gspo(logprobs, tensor(1.0), [4]).clipped == 0
    assert gspo(logprobs, tensor(1.0), [2, 2], turns=True).clipped == 2


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
    inputs = loss_inputs(logprobs, torch.zeros(4), tensor(1, 1, -1, -2))
    result = Cispo(clip_high=0.2).loss(inputs, denominator=2.0)
    (gradient,) = torch.autograd.grad(result.loss, logprobs)
    assert gradient.tolist() == pytest.approx([-0.6, -0.25, 0.55, 1.2])
    assert result.loss.item() == pytest.approx(float((gradient * logprobs.detach()).sum()))
    assert result.clipped == 2


def test_cispo_keeps_the_gradient_that_ppo_drops():
    logprobs = ratios(1.5).requires_grad_()
    mine = by_cispo(logprobs, torch.zeros(1), tensor(1.0)).mul(6)
    ppo = clipped_surrogate(logprobs, torch.zeros(1), tensor(1.0), clip_low=0.2, clip_high=0.2, denominator=1.0)
    assert torch.autograd.grad(mine, logprobs)[0].item() == pytest.approx(-1.2)
    assert torch.autograd.grad(ppo.loss, logprobs)[0].item() == 0


def test_an_optional_lower_bound_raises_ratios():
    logprobs = ratios(0.5, 0.9).requires_grad_()
    inputs = loss_inputs(logprobs, torch.zeros(2), tensor(1, 1))
    result = Cispo(clip_high=0.2, clip_low=0.2).loss(inputs, denominator=1.0)
    assert torch.autograd.grad(result.loss, logprobs)[0].tolist() == pytest.approx([-0.8, -0.9])
    assert result.clipped == 1


def test_the_policy_gradient_by_hand():
    logprobs = tensor(-1, -2, -0.5).requires_grad_()
    loss = policy_gradient(logprobs, tensor(1, -2, 0), denominator=4.0)
    assert loss.item() == -(-1 + 4) / 4
    assert torch.autograd.grad(loss, logprobs)[0].tolist() == [-0.25, 0.5, 0.0]


LossOf = Callable[[Tensor, Tensor, Tensor], Tensor]


def by_ppo(new: Tensor, old: Tensor, advantages: Tensor) -> Tensor:
    return clipped_surrogate(new, old, advantages, clip_low=0.2, clip_high=0.3, denominator=6.0).loss


def by_gspo(new: Tensor, old: Tensor, advantages: Tensor) -> Tensor:
    """Sequences of two tokens, each weighed by its tokens, with the advantage of its first."""
    return gspo(new, advantages[::2], [2] * (len(new) // 2), old=old, denominator=6.0 / 2).loss


def by_cispo(new: Tensor, old: Tensor, advantages: Tensor) -> Tensor:
    return Cispo(clip_high=0.2).loss(loss_inputs(new, old, advantages), denominator=6.0).loss


@pytest.mark.parametrize("loss", [by_ppo, by_gspo, by_cispo])
def test_on_the_policy_itself_every_loss_has_the_plain_policy_gradient(loss: LossOf):
    new = noise(6).requires_grad_()
    advantages = tensor(1, 1, -2, -2, 0.5, 0.5)
    (expected,) = torch.autograd.grad(policy_gradient(new, advantages, denominator=6.0), new)
    (actual,) = torch.autograd.grad(loss(new, new.detach(), advantages), new)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("loss", [by_ppo, by_gspo])
def test_the_gradient_of_a_surrogate_is_its_derivative(loss: LossOf):
    new, old = noise(2, 6)
    advantages = tensor(1, 1, -2, -2, 0.5, 0.5)
    assert torch.autograd.gradcheck(lambda n: loss(n, old, advantages), new.requires_grad_())


@pytest.mark.parametrize("loss", [by_ppo, by_gspo, by_cispo])
@given(cut=st.integers(1, 2))
def test_micro_batches_of_whole_sequences_add_up(loss: LossOf, cut: int):
    new, old, advantages = noise(3, 6)
    parts = [loss(new[p], old[p], advantages[p]) for p in (slice(2 * cut), slice(2 * cut, None))]
    assert sum(part.item() for part in parts) == pytest.approx(loss(new, old, advantages).item())


@pytest.mark.parametrize(
    ("trainer", "sampler", "lengths", "weights", "capped"),
    [
        ((0.4, 0.5, 0.9), (0.5, 0.5, 0.3), None, [0.8, 1.0, 2.0], 1),  # ratios 0.8 1 3
        # ratios 0.8 2 | 3 1.5 0.5, products 1.6 | 2.25
        ((0.4, 0.8, 0.9, 0.3, 0.1), (0.5, 0.4, 0.3, 0.2, 0.2), [2, 3], [1.6, 1.6, 2.0, 2.0, 2.0], 3),
        ((0.4, 0.8, 0.9), (0.5, 0.4, 0.3), [1, 1, 1], [0.8, 2.0, 2.0], 1),  # one token each: the token level
        ((0.01,), (0.5,), None, [0.02], 0),  # not held up where the trainer finds a token unlikely
        ((0.4, 0.5), (0.4, 0.5), [2], [1.0, 1.0], 0),
    ],
)
def test_weights_by_hand(trainer, sampler, lengths, weights, capped):
    found, cut = truncated_weights(ratios(*trainer).requires_grad_(), ratios(*sampler), cap=2.0, lengths=lengths)
    assert found.tolist() == pytest.approx(weights)
    assert cut == capped
    assert not found.requires_grad


def test_a_long_sequence_runs_to_the_cap_and_not_to_infinity():
    weights, _ = truncated_weights(torch.zeros(1000), torch.full((1000,), -1.0), cap=2.0, lengths=[1000])
    assert weights.tolist() == [2.0] * 1000


def test_before_the_cap_weights_make_the_samplers_mean_the_trainers():
    trainer, sampler = torch.randn(2, 6, generator=torch.Generator().manual_seed(0)).double().log_softmax(-1)
    number = torch.arange(6.0).double()
    weights = truncated_weights(trainer, sampler, cap=1e9)[0]
    torch.testing.assert_close((sampler.exp() * weights * number).sum(), (trainer.exp() * number).sum())


def test_lengths_of_weights_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="lengths sum to 4, but there are 3 tokens"):
        truncated_weights(torch.zeros(3), torch.zeros(3), cap=2.0, lengths=[4])


OLD, ADVANTAGES = ratios(0.5, 0.25, 0.1, 0.4), torch.tensor([1.0, -2.0, 0.5, 1.5]).double()


def clipped(logprobs: Tensor, weights: Tensor | None) -> Tensor:
    return clipped_surrogate(
        logprobs, OLD, ADVANTAGES, clip_low=0.2, clip_high=0.2, denominator=4.0, weights_M=weights
    ).loss


def per_token_sequences(logprobs: Tensor, weights: Tensor | None) -> Tensor:
    inputs = loss_inputs(logprobs, OLD, ADVANTAGES, [1], [1], [1], [1], weights_M=weights)
    return Gspo(clip_low=0.2, clip_high=0.2).loss(inputs, denominator=4.0).loss


def reinforce(logprobs: Tensor, weights: Tensor | None) -> Tensor:
    return policy_gradient(logprobs, ADVANTAGES, denominator=4.0, weights_M=weights)


def minimax(logprobs: Tensor, weights: Tensor | None) -> Tensor:
    inputs = loss_inputs(logprobs, OLD, ADVANTAGES, weights_M=weights)
    return Cispo(clip_high=0.2).loss(inputs, denominator=4.0).loss


@pytest.mark.parametrize("loss", [clipped, per_token_sequences, reinforce, minimax])
def test_a_weight_multiplies_its_tokens_gradient_and_no_other(loss):
    weights = torch.tensor([1.0, 0.5, 2.0, 0.0]).double()
    plain, weighted = (ratios(0.55, 0.26, 0.09, 0.41).requires_grad_() for _ in range(2))
    (before,) = torch.autograd.grad(loss(plain, None), plain)
    (after,) = torch.autograd.grad(loss(weighted, weights), weighted)
    assert before.abs().min() > 0
    torch.testing.assert_close(after, weights * before)
    assert loss(plain, torch.ones(4).double()).item() == loss(plain, None).item()


LOGITS = torch.tensor([0.3, -1.0, 0.7, 0.0, 1.2, -0.4], dtype=torch.float64)
REFERENCE = torch.tensor([0.0, 0.5, -0.6, 1.0, 0.2, -0.1], dtype=torch.float64).log_softmax(-1)


def expected(estimator: KlEstimator) -> float:
    policy = LOGITS.log_softmax(-1)
    return float((policy.exp() * kl_estimate(policy, REFERENCE, estimator)).sum())


def expected_gradient(estimator: KlEstimator) -> Tensor:
    """What the loss does to the logits on average over the words that the policy samples."""
    logits = LOGITS.clone().requires_grad_()
    policy = logits.log_softmax(-1)
    return torch.autograd.grad((policy.detach().exp() * kl_estimate(policy, REFERENCE, estimator)).sum(), logits)[0]


def divergence(p: Tensor, q: Tensor) -> Tensor:
    return (p.exp() * (p - q)).sum()


def gradient(forward: bool) -> Tensor:
    """Of KL(policy, reference) if `forward`, else of KL(reference, policy)."""
    logits = LOGITS.clone().requires_grad_()
    policy = logits.log_softmax(-1)
    kl = divergence(policy, REFERENCE) if forward else divergence(REFERENCE, policy)
    return torch.autograd.grad(kl, logits)[0]


def test_one_word_by_hand():
    #  policy 1/2, reference 1/4: ratio reference to policy 1/2
    policy, reference = torch.tensor([0.5]).double().log(), torch.tensor([0.25]).double().log()
    assert kl_estimate(policy, reference, "k1").item() == pytest.approx(math.log(2))
    assert kl_estimate(policy, reference, "k2").item() == pytest.approx(math.log(2) ** 2 / 2)
    assert kl_estimate(policy, reference, "k3").item() == pytest.approx(0.5 - 1 + math.log(2))


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(estimator: KlEstimator):
    assert expected(estimator) == pytest.approx(float(divergence(LOGITS.log_softmax(-1), REFERENCE)), abs=1e-14)


def test_k2_is_biased():
    true = float(divergence(LOGITS.log_softmax(-1), REFERENCE))
    assert abs(expected("k2") - true) > 0.01 * true


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@given(st.lists(st.tuples(st.floats(-8, 0), st.floats(-8, 0)), min_size=1, max_size=8))
def test_k2_and_k3_are_never_negative(estimator: KlEstimator, pairs: list[tuple[float, float]]):
    policy, reference = torch.tensor(pairs, dtype=torch.float64).T
    assert kl_estimate(policy, reference, estimator).min() >= -1e-15
    assert kl_estimate(policy, policy, estimator).max() == 0


def test_k1_in_the_loss_teaches_nothing():
    assert expected_gradient("k1").abs().max() < 1e-15


def test_k1_in_the_reward_has_the_gradient_of_the_kl():
    logits = LOGITS.clone().requires_grad_()
    policy = logits.log_softmax(-1)
    penalty = kl_estimate(policy.detach(), REFERENCE, "k1")
    actual = torch.autograd.grad((policy.detach().exp() * penalty * policy).sum(), logits)[0]
    torch.testing.assert_close(actual, gradient(forward=True))


def test_k2_in_the_loss_has_the_gradient_of_the_kl():
    torch.testing.assert_close(expected_gradient("k2"), gradient(forward=True))


def test_k3_in_the_loss_has_the_gradient_of_the_other_kl():
    torch.testing.assert_close(expected_gradient("k3"), gradient(forward=False))
    assert (gradient(forward=False) - gradient(forward=True)).abs().max() > 0.01


@pytest.mark.parametrize(
    ("measured", "after"), [(0.1, 0.2), (0.11, 0.202), (0.12, 0.204), (9.0, 0.204), (0.09, 0.198), (0.0, 0.196)]
)
def test_the_coefficient_follows_the_measured_kl_by_at_most_a_fifth_of_a_tenth(measured: float, after: float):
    assert adapted(0.2, measured=measured, target=0.1, horizon=10) == pytest.approx(after)


@pytest.mark.parametrize(("target", "horizon"), [(0.0, 10.0), (0.1, 0.5), (-1.0, 10.0)])
def test_a_target_or_horizon_that_is_not_positive_is_refused(target: float, horizon: float):
    with pytest.raises(ValueError, match="greater than"):
        Kl(target=target, horizon=horizon)
