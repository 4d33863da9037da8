"""REINFORCE++: rewards normalised over the whole batch instead of within each group.

    A_i = (x_i - mean(x)) / (std(x) + eps)          x_i = r_i, or r_i - mean of its group with `group_baseline`

Source: REINFORCE++ (arXiv 2501.03262), and its variant with a baseline. One scale for all tasks: unlike GRPO's, a
group whose rewards hardly differ is not blown up; without the group baseline, one attempt a task is enough.

How we differ: the authors' code (OpenRLHF) takes mean and standard deviation over the *tokens* of the batch, so that
a long attempt shifts everybody's advantage by more than a short one. Ours are over its *trajectories* (std divided
by their number): what a trajectory counts for must not depend on how many contexts or tokens it had. The two agree
where all have as many tokens. The original's KL term per token belongs in the reward or the loss, not here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

from mem1.algorithms.dr_grpo import centred_advantages
from mem1.algorithms.grpo import EPSILON, group_advantages


def global_advantages(
    rewards_G_by_group: Sequence[Sequence[float]], *, group_baseline: bool
) -> list[tuple[float, ...]]:
    """Advantages of all attempts of a step, per group; exactly 0 for all where nothing differs, and with
    `group_baseline` in each group where nothing differs.

    Raises ValueError for fewer than two attempts: in the batch, or with `group_baseline` in any group.
    """
    if group_baseline:
        return _scaled([centred_advantages(rewards) for rewards in rewards_G_by_group])
    advantages = iter(group_advantages(list(chain.from_iterable(rewards_G_by_group))))
    return [tuple(next(advantages) for _ in rewards) for rewards in rewards_G_by_group]


def _scaled(groups: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """By the standard deviation of all; their mean is 0, but for rounding that must not be subtracted."""
    every = list(chain.from_iterable(groups))
    if len(every) < 2:
        raise ValueError(f"advantages over a step need at least 2 attempts, not {len(every)}")
    std = math.sqrt(math.fsum(x * x for x in every) / len(every))
    return [tuple(x / (std + EPSILON) for x in group) for group in groups]
