"""Our advantages as verl's estimators: from the rewards of trajectories, on every sampled token of all their rows.

algorithm.adv_estimator    ours
mem1_grpo                  mem1.algorithms.grpo, which dapo, gspo and cispo use as well
mem1_dr_grpo               mem1.algorithms.dr_grpo
mem1_rloo                  mem1.algorithms.rloo
mem1_reinforce_pp          mem1.algorithms.reinforce_plus_plus; mem1_reinforce_pp_baseline: less its group's mean

The loss is verl's. There is no GAE: verl computes it row by row, and the reward would be paid once a context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mem1.extras.verl.rows import row_groups
from mem1.training.advantages import trajectory_advantages
from mem1.training.rl_config import Algorithm, DrGrpo, Grpo, ReinforcePlusPlus, Rloo, fewest_attempts

ALGORITHMS: dict[str, Algorithm] = {
    "mem1_grpo": Grpo(),
    "mem1_dr_grpo": DrGrpo(),
    "mem1_rloo": Rloo(),
    "mem1_reinforce_pp": ReinforcePlusPlus(),
    "mem1_reinforce_pp_baseline": ReinforcePlusPlus(group_baseline=True),
}
"""Name of an estimator -> whose advantages it gives."""


def row_advantages(
    algorithm: Algorithm, names: Sequence[str], rewards: Sequence[float], trained: Sequence[bool]
) -> list[float]:
    """One advantage a row, that of its trajectory; see `row_groups`.

    0 for padding, and for a group of which too few attempts are left to compare them.
    """
    groups = [
        group for group in row_groups(names, rewards, trained) if len(group.rewards_G) >= fewest_attempts(algorithm)
    ]
    advantages = [0.0] * len(names)
    for group, advantages_G in zip(
        groups, trajectory_advantages(algorithm, [group.rewards_G for group in groups]), strict=True
    ):
        for rows, advantage in zip(group.rows_G, advantages_G, strict=True):
            for row in rows:
                advantages[row] = advantage
    return advantages


def estimate(
    algorithm: Algorithm, *, token_level_rewards: Tensor, response_mask: Tensor, index: Sequence[str], **_: Any
) -> tuple[Tensor, Tensor]:
    """(advantages, returns) of each token as verl calls for them, (rows, tokens); `index` has "uid" of each row."""
    rewards = token_level_rewards.sum(dim=-1).tolist()
    trained = response_mask.any(dim=-1).tolist()
    of_rows = row_advantages(algorithm, [str(name) for name in index], rewards, trained)
    advantages = torch.tensor(of_rows, dtype=torch.float32).unsqueeze(-1) * response_mask
    return advantages, advantages.clone()


def estimators() -> dict[str, Callable[..., tuple[Tensor, Tensor]]]:
    """Name -> estimator."""
    return {name: partial(estimate, algorithm) for name, algorithm in ALGORITHMS.items()}
