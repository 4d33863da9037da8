"""Truncated importance sampling: what makes up for a sampler that is not quite the trainer's policy.

    token level       c_k = min(pi_trainer(k) / pi_sampler(k), cap)
    sequence level    c_k = min(prod_{j in its sequence} pi_trainer(j) / pi_sampler(j), cap)

Source: Ionides 2008, "Truncated importance sampling"; between the two engines of one model, Yao et al. 2025, "Your
efficient RL framework secretly brings you off-policy RL training". Both log-probabilities are of the policy from
*before* the update: the trainer's and the sampler's. Only the sequence level is unbiased (before the cap); over many
tokens its product runs to the cap or to nothing. The token level leaves out how the tokens before were reached, and
is the usual choice. Use it where kernels, precision or stale weights set the sampler apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from mem1.algorithms.sequences import spread, sums


@dataclass(frozen=True, slots=True)
class ImportanceWeights:
    """The weights and what to log about them."""

    weights_M: Tensor
    """(M,) without gradient, between 0 and the cap."""
    capped: int
    """Tokens whose weight is the cap's rather than their own."""


def truncated_weights(
    trainer_M: Tensor, sampler_M: Tensor, *, cap: float, lengths: Sequence[int] | None = None
) -> ImportanceWeights:
    """Weights of M sampled tokens from the log-probabilities of trainer and sampler, at one temperature.

    `lengths` None: token level. Otherwise sequence level, of trajectories or turns by what the lengths count; raises
    ValueError unless they sum to M.
    """
    difference_M = trainer_M.detach() - sampler_M.detach()
    if lengths is not None:
        difference_M = spread(sums(difference_M, lengths), lengths)
    ratio_M = difference_M.exp()
    return ImportanceWeights(ratio_M.clamp(max=cap), int((ratio_M > cap).sum()))
