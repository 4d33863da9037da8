"""Heads that look a fixed number of tokens back, whatever the tokens are: set by biases, not trained."""

from __future__ import annotations

from typing import Any

import torch

from mem1.training.model_config import TinyModel


@torch.no_grad()
def look_back(attention: Any, head: int, distance: int, config: TinyModel) -> None:
    """Set the biases of one head so that their score is largest `distance` tokens back; 0: at the token itself.

    A score of biases alone depends on the distance d only, sum_i a_i cos(theta_i (d - d0)), which has its maximum at
    d = d0.
    """
    size = attention.head_dim
    half = size // 2
    theta = config.rope_theta ** (-torch.arange(half, dtype=torch.float64) * 2 / size)
    rows = slice(head * size, (head + 1) * size)
    strength = config.look_back_strength
    key = torch.cat([torch.full((half,), strength), torch.zeros(half)])
    # rotating the query by -theta * distance makes rotary scores peak at that distance
    query = torch.cat([strength * torch.cos(-theta * distance), strength * torch.sin(-theta * distance)])
    attention.k_proj.bias[rows] = key.to(attention.k_proj.bias.dtype)
    attention.q_proj.bias[rows] = query.to(attention.q_proj.bias.dtype)
