"""How far the policy is from a reference policy, estimated on the sampled tokens; and the weight of that.

    d_k = logp_k - reference_k          k1 = d          k2 = d^2 / 2          k3 = exp(-d) - 1 + d

Source: Schulman, "Approximating KL divergence" (joschu.net/blog/kl-approx.html), for tokens sampled from the policy.

| | estimates KL(policy, reference) | sign | its gradient, used as a loss, is on average |
|---|---|---|---|
| k1 | without bias, high variance | either | 0: teaches nothing |
| k2 | with bias, low variance | never negative | that of KL(policy, reference): the right one |
| k3 | without bias, low variance | never negative | that of KL(reference, policy): right to first order |

So: k1 in the reward (subtracted from each token's reward, without gradient), k2 in the loss; k3 to log, and in the
loss where GRPO's own choice (arXiv 2402.03300, equation 4) is wanted.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

KlEstimator = Literal["k1", "k2", "k3"]

LARGEST_ERROR = 0.2


def kl_estimate(logprobs_M: Tensor, reference_M: Tensor, estimator: KlEstimator) -> Tensor:
    """One estimate a token, (M,), with the gradient of `logprobs_M`. Raises ValueError for an unknown estimator."""
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
