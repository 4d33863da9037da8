"""GRPO: how much better an attempt was than the other attempts at the same task.

    A_i = (r_i - mean(r)) / (std(r) + eps)            rewards (1, 0, 0, 1)  ->  (1, -1, -1, 1)

Source: DeepSeekMath (arXiv 2402.03300), equation of section 4.1.2, outcome supervision; std over the group
(divided by G). One number a *trajectory*: it is put on every sampled token of all its turns, however many
contexts they are spread over. A group whose rewards are all equal teaches nothing: its advantages are 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

EPSILON = 1e-4


def group_advantages(rewards_G: Sequence[float]) -> tuple[float, ...]:
    """Advantage of each of G attempts at one task; exactly 0 for all where the rewards do not differ.

    Raises ValueError for fewer than two rewards: there is nothing to compare with.
    """
    if len(rewards_G) < 2:
        raise ValueError(f"group advantages need at least 2 attempts at a task, not {len(rewards_G)}")
    if len(set(rewards_G)) == 1:
        return (0.0,) * len(rewards_G)
    mean = math.fsum(rewards_G) / len(rewards_G)
    std = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards_G) / len(rewards_G))
    return tuple((r - mean) / (std + EPSILON) for r in rewards_G)
