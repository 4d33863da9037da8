"""Runs of neighbouring tokens among the M sampled ones: trajectories or turns, whichever `lengths` counts.

tokens    a b c | d e         lengths (3, 2)
sums      a+b+c   d+e         (S,)
spread    x x x   y y         (M,) from (x, y)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def per_sequence(values_M: Tensor, lengths: Sequence[int]) -> tuple[Tensor, ...]:
    """One view per sequence. Raises ValueError unless the lengths sum to M."""
    if sum(lengths) != len(values_M):
        raise ValueError(f"the lengths sum to {sum(lengths)}, but there are {len(values_M)} tokens")
    return values_M.split(list(lengths))


def sums(values_M: Tensor, lengths: Sequence[int]) -> Tensor:
    """Sum over each sequence, (S,), with gradient; 0 for one without tokens."""
    return torch.stack([part.sum() for part in per_sequence(values_M, lengths)])


def spread(values_S: Tensor, lengths: Sequence[int]) -> Tensor:
    """Each sequence's value on all its tokens, (M,), with gradient."""
    return values_S.repeat_interleave(torch.tensor(lengths, device=values_S.device))
