"""GSPO: PPO's clipped objective with one ratio per sequence.

    s_i = exp(sum_{k in i} (logp_k - old_logp_k) / |i|)           geometric mean of the tokens' ratios
    L = -sum_i v_i min(s_i A_i, clip(s_i, 1 - low, 1 + high) A_i) / denominator

Source: GSPO (arXiv 2507.18071), equations 5 to 7. The unit is what `lengths_S` counts:

- trajectories: one ratio over all sampled tokens of all turns; v_i = 1, `denominator` = trajectories of the step;
- turns: one ratio per turn, so that a turn that drifted is clipped alone. `weights_S` v_i = 1 / (turns of the
  trajectory), `denominator` as before: a trajectory weighs 1 however many turns it took. Without weights one with
  more contexts would weigh more.

The bounds are narrow beside PPO's (3e-4 and 4e-4 in the paper), as a mean over many tokens hardly moves. Use it
for long sequences and mixtures of experts, where ratios of single tokens are noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mem1.algorithms.sequences import spread, sums
from mem1.algorithms.surrogate import SurrogateLoss


def sequence_surrogate(
    logprobs_M: Tensor,
    old_logprobs_M: Tensor,
    advantages_S: Tensor,
    lengths_S: Sequence[int],
    *,
    clip_low: float,
    clip_high: float,
    denominator: float,
    weights_S: Tensor | None = None,
    weights_M: Tensor | None = None,
) -> SurrogateLoss:
    """The loss of S sequences with M sampled tokens; `clipped` counts the tokens of clipped sequences.

    A sequence's term is spread evenly over its tokens, where `weights_M` (importance.py) multiply it; one without
    tokens adds nothing. Raises ValueError unless the lengths sum to M.
    """
    sizes_S = torch.tensor(lengths_S, dtype=logprobs_M.dtype, device=logprobs_M.device).clamp(min=1)
    ratio_S = (sums(logprobs_M - old_logprobs_M, lengths_S) / sizes_S).exp()
    free_S = ratio_S * advantages_S
    held_S = ratio_S.clamp(1 - clip_low, 1 + clip_high) * advantages_S
    terms_S = free_S.minimum(held_S) / sizes_S
    if weights_S is not None:
        terms_S = terms_S * weights_S
    terms_M = spread(terms_S, lengths_S)
    if weights_M is not None:
        terms_M = terms_M * weights_M
    return SurrogateLoss(-terms_M.sum() / denominator, int(spread(held_S < free_S, lengths_S).sum()))
