"""The plain policy gradient (REINFORCE).

    L = -sum_k c_k A_k logp_k / denominator

Source: Williams 1992, "Simple statistical gradient-following algorithms", equation 11; with weights c_k, the off-policy
gradient. The value of the loss means nothing, only its gradient does. Right for one update per rollout; where
several are taken, use a surrogate.
"""

from __future__ import annotations

from torch import Tensor


def policy_gradient(
    logprobs_M: Tensor, advantages_M: Tensor, *, denominator: float, weights_M: Tensor | None = None
) -> Tensor:
    """Scalar loss of M sampled tokens; `denominator` counts the whole step, `weights_M` as in surrogate.py."""
    terms_M = logprobs_M * advantages_M
    if weights_M is not None:
        terms_M = terms_M * weights_M
    return -terms_M.sum() / denominator
