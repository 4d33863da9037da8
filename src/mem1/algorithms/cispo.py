"""CISPO: the policy gradient weighed by a clipped ratio through which no gradient flows.

    L = -sum_k c_k sg(clip(w_k, 1 - low, 1 + high)) A_k logp_k / denominator,     w_k = exp(logp_k - old_logp_k)

Source: MiniMax-M1 (arXiv 2506.13585), equations 4 and 5. PPO's clip takes away a token's gradient; here every token
keeps one, of bounded weight, so that rare words that turn a train of thought ("however", "wait") are learnt in every
update. The paper bounds the ratio from above only: `clip_low` None.
"""

from __future__ import annotations

from torch import Tensor

from mem1.algorithms.policy_gradient import policy_gradient
from mem1.algorithms.surrogate import SurrogateLoss


def cispo(
    logprobs_M: Tensor,
    old_logprobs_M: Tensor,
    advantages_M: Tensor,
    *,
    clip_high: float,
    denominator: float,
    clip_low: float | None = None,
    weights_M: Tensor | None = None,
) -> SurrogateLoss:
    """The loss of M sampled tokens; `clipped` counts those whose ratio was beyond a bound.

    `clip_low` None: ratios are not bounded from below. `denominator` counts the whole optimiser step; the paper
    takes the sampled tokens of a group. `weights_M` as in surrogate.py.
    """
    ratio_M = (logprobs_M.detach() - old_logprobs_M).exp()
    held_M = ratio_M.clamp(None if clip_low is None else 1 - clip_low, 1 + clip_high)
    loss = policy_gradient(logprobs_M, held_M * advantages_M, denominator=denominator, weights_M=weights_M)
    return SurrogateLoss(loss, int((held_M != ratio_M).sum()))
