"""Penalty on the policy's distance from a reference policy, estimated on the sampled tokens.

    d_k = logp_k - reference_k          k1 = d          k2 = d^2 / 2          k3 = exp(-d) - 1 + d

| | estimates KL(policy, reference) | sign | its gradient, used as a loss, is on average |
|---|---|---|---|
| k1 | without bias, high variance | either | 0: teaches nothing |
| k2 | with bias, low variance | never negative | that of KL(policy, reference): the right one |
| k3 | without bias, low variance | never negative | that of KL(reference, policy): right to first order |

So: k1 in the reward (subtracted from each token's reward, without gradient), k2 in the loss; k3 to log, and in the
loss where GRPO's own choice (arXiv 2402.03300, equation 4) is wanted.

Source: Schulman, "Approximating KL divergence" (joschu.net/blog/kl-approx.html), for tokens sampled from the policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from mem1.configuration import Config

if TYPE_CHECKING:
    from torch import Tensor

KlEstimator = Literal["k1", "k2", "k3"]

LARGEST_ERROR = 0.2


class Kl(Config):
    """A penalty on the distance from the policy at the start of reinforcement learning."""

    coefficient: float = Field(default=0.001, ge=0)
    """Weight of the penalty, applied to the mean per-token KL (loss) or to each token's estimate (reward)."""
    where: Literal["reward", "loss"] = "loss"
    estimator: KlEstimator | None = None
    """None: k2 in the loss, k1 in the reward, which takes no other."""
    target: float | None = Field(default=None, gt=0)
    """KL in nats per token towards which the coefficient is adapted; None: it is constant."""
    horizon: float = Field(default=10.0, gt=0)
    """Steps over which the coefficient is adapted; without effect if there is no target."""

    @model_validator(mode="after")
    def _teaches(self) -> Kl:
        if self.where == "loss" and self.estimator == "k1":
            raise ValueError('estimator = "k1" in the loss has a gradient of 0 on average; take k2 or k3 there')
        if self.where == "reward" and self.estimator in ("k2", "k3"):
            raise ValueError(
                f'estimator = "{self.estimator}" in the reward has a policy gradient that is not that of the KL; '
                "take k1 there"
            )
        return self

    @property
    def loss_estimator(self) -> Literal["k2", "k3"]:
        """Estimator of the penalty in the loss."""
        return "k3" if self.estimator == "k3" else "k2"


def kl_estimate(logprobs_M: Tensor, reference_M: Tensor, estimator: KlEstimator) -> Tensor:
    """One estimate per token, (M,), with the gradient of `logprobs_M`. Raises ValueError for an unknown estimator."""
    difference_M = logprobs_M - reference_M
    if estimator == "k1":
        return difference_M
    if estimator == "k2":
        return difference_M.square() / 2
    if estimator == "k3":
        return (-difference_M).expm1() + difference_M
    raise ValueError(f"no estimator called {estimator!r}; there are k1, k2, k3")


def adapted(coefficient: float, *, measured: float, target: float, horizon: float) -> float:
    """The KL coefficient after an update that measured this KL: larger above the target, smaller below.

        e = clip((measured - target) / target, -0.2, 0.2)          coefficient (1 + e / horizon)

    Source: Ziegler et al. 2019 (arXiv 1909.08593), section 2.2; `horizon` in updates, its K = 1 / horizon = 0.1.
    Raises ValueError unless target and horizon are positive.
    """
    if target <= 0 or horizon <= 0:
        raise ValueError(f"target and horizon must be positive, not {target} and {horizon}")
    error = min(max((measured - target) / target, -LARGEST_ERROR), LARGEST_ERROR)
    return coefficient * (1 + error / horizon)
