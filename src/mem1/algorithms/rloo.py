"""RLOO: an attempt's reward less the mean of the *other* attempts at the same task.

    A_i = r_i - sum_{j != i} r_j / (G - 1)  =  G / (G - 1) (r_i - mean(r))       (1, 0, 0)  ->  (1, -0.5, -0.5)

Source: "Back to basics" (arXiv 2402.14740), section 2 (leave-one-out baseline). The baseline does not depend on the
attempt that it is subtracted from, so the policy gradient is unbiased; centring on the whole group shrinks it by
(G - 1) / G. One number a *trajectory*; statistics over the G trajectories. Use it with the plain policy gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def leave_one_out_advantages(rewards_G: Sequence[float]) -> tuple[float, ...]:
    """Advantage of each of G attempts at one task; exactly 0 for all where the rewards do not differ.

    Raises ValueError for fewer than two rewards: there is nothing to compare with.
    """
    others = len(rewards_G) - 1
    if others < 1:
        raise ValueError(f"leave-one-out advantages need at least 2 attempts at a task, not {len(rewards_G)}")
    if len(set(rewards_G)) == 1:
        return (0.0,) * len(rewards_G)
    total = math.fsum(rewards_G)
    return tuple(r - (total - r) / others for r in rewards_G)
