"""PPO's clipped objective, as a loss over sampled tokens.

    L = -sum_k c_k min(w_k A_k, clip(w_k, 1 - low, 1 + high) A_k) / denominator,     w_k = exp(logp_k - old_logp_k)

Source: PPO (arXiv 1707.06347), equation 7; two clip bounds as in DAPO (arXiv 2503.14476), equation 10. The c_k
correct for a sampler that is not the old policy (importance.py); 1 without them.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class SurrogateLoss:
    """The loss and what to log about it."""

    loss: Tensor
    """Scalar with gradient; the parts of a step add up."""
    clipped: int
    """Tokens on which the clip took effect."""


def clipped_surrogate(
    logprobs_M: Tensor,
    old_logprobs_M: Tensor,
    advantages_M: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    denominator: float,
    weights_M: Tensor | None = None,
) -> SurrogateLoss:
    """The loss of M sampled tokens.

    `denominator` is fixed for the whole optimiser step, so that micro-batches, packing and ranks cannot change
    the gradient. Old log-probabilities are those from before the first update, at the sampler's temperature: the
    sampler's own, or the trainer's where `weights_M` make up for the difference.
    """
    ratio_M = (logprobs_M - old_logprobs_M).exp()
    free_M = ratio_M * advantages_M
    held_M = ratio_M.clamp(1 - clip_low, 1 + clip_high) * advantages_M
    clipped = int((held_M < free_M).sum())
    terms_M = free_M.minimum(held_M)
    if weights_M is not None:
        terms_M = terms_M * weights_M
    return SurrogateLoss(-terms_M.sum() / denominator, clipped)
