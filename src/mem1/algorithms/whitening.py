"""Advantages of tokens brought to mean 0 and standard deviation 1.

    (A_k - mean(A)) / sqrt(var(A) + eps)          (1, 3)  ->  (-1, 1);   without shift  ->  (1, 3)

Source: common practice of PPO (Huang et al. 2022, "The 37 implementation details of PPO", detail 7, which whitens each
mini-batch; here the whole rollout). Use it with GAE, whose advantages are a token's own: mean and variance (divided
by M) are over the sampled tokens. Not for the group family: there the statistics are over trajectories.
"""

from __future__ import annotations

from torch import Tensor

EPSILON = 1e-8


def whitened(advantages_M: Tensor, *, shift: bool = True) -> Tensor:
    """Of all M sampled tokens of a rollout at once, (M,): called on a part, it would give other numbers.

    Without `shift` the mean stays, so that no advantage changes its sign.
    """
    mean = advantages_M.mean()
    centred_M = (advantages_M - mean) / (advantages_M.var(correction=0) + EPSILON).sqrt()
    return centred_M if shift else centred_M + mean
