"""Losses of sampled tokens, and how per-token numbers are grouped into sequences.

    clipped surrogate    L = -sum_k c_k min(w_k A_k, clip(w_k, 1 - low, 1 + high) A_k) / denominator
    policy gradient      L = -sum_k c_k A_k logp_k / denominator
    likelihood           L = -sum_k logp_k / denominator                          w_k = exp(logp_k - old_logp_k)

`denominator` is fixed for the whole optimiser step, so micro-batches, packing and ranks cannot change the gradient. The
weights c_k correct for a sampler that is not the old policy (importance.py); without them they are 1.

Sources: PPO (arXiv 1707.06347), equation 7, with two clip bounds as in DAPO (arXiv 2503.14476), equation 10; Williams
1992, "Simple statistical gradient-following algorithms", equation 11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A loss and the statistics to log with it."""

    loss: Tensor
    """Scalar with gradient; those of the micro-batches of a step add up."""
    clipped: int
    """Number of tokens on which a clip took effect."""


def clipped_surrogate(
    logprobs_M: Tensor,
    old_logprobs_M: Tensor,
    advantages_M: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    denominator: float,
    weights_M: Tensor | None = None,
) -> PolicyLoss:
    """PPO's clipped objective, as a loss.

    Old log-probs are those from before the first update, at the sampler's temperature: the sampler's own, or the
    trainer's where `weights_M` correct for the difference.
    """
    ratio_M = (logprobs_M - old_logprobs_M).exp()
    free_M = ratio_M * advantages_M
    held_M = ratio_M.clamp(1 - clip_low, 1 + clip_high) * advantages_M
    clipped = int((held_M < free_M).sum())
    terms_M = free_M.minimum(held_M)
    if weights_M is not None:
        terms_M = terms_M * weights_M
    return PolicyLoss(-terms_M.sum() / denominator, clipped)


def policy_gradient(
    logprobs_M: Tensor, advantages_M: Tensor, *, denominator: float, weights_M: Tensor | None = None
) -> Tensor:
    """REINFORCE, as a scalar loss whose gradient alone means something.

    It is right for one update per rollout; for more, use a surrogate.
    """
    terms_M = logprobs_M * advantages_M
    if weights_M is not None:
        terms_M = terms_M * weights_M
    return -terms_M.sum() / denominator


def negative_log_likelihood(logprobs_M: Tensor, *, denominator: float) -> Tensor:
    """Scalar loss of M demonstrated tokens."""
    return -logprobs_M.sum() / denominator


def per_sequence(values_M: Tensor, lengths: Sequence[int]) -> tuple[Tensor, ...]:
    """One view per sequence, a trajectory or a turn: values a b c d e, lengths (3, 2) -> (a b c, d e).

    Raises ValueError unless the lengths sum to M.
    """
    if sum(lengths) != len(values_M):
        raise ValueError(f"the lengths sum to {sum(lengths)}, but there are {len(values_M)} tokens")
    return values_M.split(list(lengths))


def sums(values_M: Tensor, lengths: Sequence[int]) -> Tensor:
    """Sum over each sequence, (S,), with gradient; 0 for one without tokens."""
    import torch

    return torch.stack([part.sum() for part in per_sequence(values_M, lengths)])


def spread(values_S: Tensor, lengths: Sequence[int]) -> Tensor:
    """Each sequence's value on all its tokens, (M,), with gradient: x y, lengths (3, 2) -> x x x y y."""
    import torch

    return values_S.repeat_interleave(torch.tensor(lengths, device=values_S.device))
