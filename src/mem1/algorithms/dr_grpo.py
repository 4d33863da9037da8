"""Dr. GRPO: an attempt's reward less the mean of its group, not divided by anything.

    A_i = r_i - mean(r)            rewards (1, 0, 0, 1)  ->  (0.5, -0.5, -0.5, 0.5)

Source: "Understanding R1-Zero-like training" (arXiv 2503.20783), section 3.2: dividing by the standard deviation
weighs a task by how nearly all or none of its attempts succeed. Its other half is the loss: a response is not divided
by its own length, but by a constant budget of tokens. Here: `denominator` = trajectories of the step x tokens
that a trajectory may sample, instead of the tokens that they did sample. Statistics over the G trajectories.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def centred_advantages(rewards_G: Sequence[float]) -> tuple[float, ...]:
    """Advantage of each of G attempts at one task; exactly 0 for all where the rewards do not differ.

    Raises ValueError for fewer than two rewards: there is nothing to compare with.
    """
    if len(rewards_G) < 2:
        raise ValueError(f"centred advantages need at least 2 attempts at a task, not {len(rewards_G)}")
    if len(set(rewards_G)) == 1:
        return (0.0,) * len(rewards_G)
    mean = math.fsum(rewards_G) / len(rewards_G)
    return tuple(r - mean for r in rewards_G)
