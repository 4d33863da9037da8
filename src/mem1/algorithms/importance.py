"""Truncated importance sampling: weights that correct for a sampler that is not quite the trainer's policy.

    token level       c_k = min(pi_trainer(k) / pi_sampler(k), cap)
    sequence level    c_k = min(prod_{j in its sequence} pi_trainer(j) / pi_sampler(j), cap)

Both log-probs are of the policy *before* the update: the trainer's and the sampler's. Use it where kernels, precision
or stale weights set the sampler apart. Only the sequence level is unbiased (before the cap), but over many tokens its
product runs to the cap or to nothing. The token level, the usual choice, ignores how the tokens before were reached.

Sources: Ionides 2008, "Truncated importance sampling"; between the two engines of one model, Yao et al. 2025, "Your
efficient RL framework secretly brings you off-policy RL training".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from mem1.algorithms.losses import spread, sums
from mem1.configuration import Config

if TYPE_CHECKING:
    from torch import Tensor


class Importance(Config):
    """Truncated importance weights between the sampler and the trainer."""

    level: Literal["token", "sequence"] = "token"
    """sequence: one weight per trajectory."""
    cap: float = Field(default=2.0, ge=1)
    """Largest weight."""


@dataclass(frozen=True, slots=True)
class ImportanceWeights:
    """The weights and the statistics to log with them."""

    weights_M: Tensor
    """(M,) without gradient, between 0 and the cap."""
    capped: int
    """Number of tokens whose weight was cut to the cap."""


def truncated_weights(
    trainer_M: Tensor, sampler_M: Tensor, *, cap: float, lengths: Sequence[int] | None = None
) -> ImportanceWeights:
    """Weights of M sampled tokens from the log-probs of trainer and sampler, at one temperature.

    `lengths` None: token level. Otherwise sequence level, of trajectories or turns by what the lengths count; raises
    ValueError unless they sum to M.
    """
    difference_M = trainer_M.detach() - sampler_M.detach()
    if lengths is not None:
        difference_M = spread(sums(difference_M, lengths), lengths)
    ratio_M = difference_M.exp()
    return ImportanceWeights(ratio_M.clamp(max=cap), int((ratio_M > cap).sum()))
