"""The three estimators of the KL, checked by adding up a six-word vocabulary instead of sampling from it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mem1.algorithms.losses import KlEstimator, adapted, kl_estimate

pytestmark = pytest.mark.numeric

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


def test_an_unknown_estimator_is_refused():
    with pytest.raises(ValueError, match="'k4'; there are k1, k2, k3"):
        kl_estimate(LOGITS, REFERENCE, "k4")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("measured", "after"),
    [(0.1, 0.2), (0.11, 0.202), (0.12, 0.204), (9.0, 0.204), (0.09, 0.198), (0.0, 0.196)],
)
def test_the_coefficient_follows_the_measured_kl_by_at_most_a_fifth_of_a_tenth(measured: float, after: float):
    assert adapted(0.2, measured=measured, target=0.1, horizon=10) == pytest.approx(after)


@pytest.mark.parametrize(("target", "horizon"), [(0.0, 10.0), (0.1, 0.0), (-1.0, 10.0)])
def test_a_target_or_horizon_that_is_not_positive_is_refused(target: float, horizon: float):
    with pytest.raises(ValueError, match="must be positive"):
        adapted(0.2, measured=0.1, target=target, horizon=horizon)
