"""Our advantages as verl's estimators, from the rewards of trajectories.

    row   "uid"     reward        groups
    0     7f/0      1             7f: attempt 0 (rows 0, 2) reward 1, attempt 1 (row 1) reward 0
    1     7f/1      0
    2     7f/0      1
    3     pad9c     0  (padding, which belongs to no trajectory)

verl passes an advantage estimator one field of every row, "uid", which names only the group. Our worker adds the number
of the attempt, so that statistics are over trajectories, and every sampled token gets its trajectory's advantage:

    algorithm.adv_estimator    ours
    mem1_grpo                  GRPO, which DAPO, GSPO and CISPO use as well
    mem1_dr_grpo               Dr. GRPO
    mem1_rloo                  RLOO
    mem1_reinforce_pp          REINFORCE++; mem1_reinforce_pp_baseline subtracts the mean of its group

The loss is verl's. GAE is not offered: verl computes it row by row, so the reward would be paid once per context.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mem1.algorithms.base import Algorithm
from mem1.algorithms.group import DrGrpo, Grpo, ReinforcePlusPlus, Rloo
from mem1.errors import UserError

_BETWEEN = "/"


def trajectory_name(group: str, attempt: int) -> str:
    """The "uid" of all rows of one trajectory."""
    return f"{group}{_BETWEEN}{attempt}"


@dataclass(frozen=True, slots=True)
class RowGroup:
    """The attempts at one task that have rows in the batch, ordered by their numbers."""

    rewards_G: tuple[float, ...]
    rows_G: tuple[tuple[int, ...], ...]
    """Row numbers of each attempt."""


def row_groups(names: Sequence[str], rewards: Sequence[float], trained: Sequence[bool]) -> list[RowGroup]:
    """The groups of a batch, whatever the order of its rows.

    names      "uid" of each row
    rewards    reward of each row's whole trajectory
    trained    whether the row has sampled tokens; verl's padding has none

    Raises UserError if rows lack the number of their attempt, or rows of one trajectory differ in reward.
    """
    rows: defaultdict[str, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row, (name, is_trained) in enumerate(zip(names, trained, strict=True)):
        group, between, attempt = name.rpartition(_BETWEEN)
        if between:
            rows[group][int(attempt)].append(row)
        elif is_trained:
            raise UserError(
                f"row {row} of the batch ({name!r}) lacks the number of its attempt; set actor_rollout_ref.rollout."
                "agent.agent_loop_manager_class to mem1.extras.verl.agent_loop.ContextLoopManager"
            )
    return [_group(name, dict(sorted(rows[name].items())), rewards) for name in sorted(rows)]


def _group(name: str, attempts: dict[int, list[int]], rewards: Sequence[float]) -> RowGroup:
    for attempt, rows in attempts.items():
        if len({rewards[row] for row in rows}) > 1:
            raise UserError(
                f"the contexts of attempt {attempt} at {name} have different rewards "
                f"({', '.join(str(rewards[row]) for row in rows[:4])}) instead of that of the whole trajectory; "
                "set algorithm.use_kl_in_reward to false, and actor_rollout_ref.actor.use_kl_loss for a KL penalty"
            )
    return RowGroup(
        rewards_G=tuple(rewards[rows[0]] for rows in attempts.values()),
        rows_G=tuple(tuple(rows) for rows in attempts.values()),
    )


ALGORITHMS: dict[str, Algorithm] = {
    "mem1_grpo": Grpo(),
    "mem1_dr_grpo": DrGrpo(),
    "mem1_rloo": Rloo(),
    "mem1_reinforce_pp": ReinforcePlusPlus(),
    "mem1_reinforce_pp_baseline": ReinforcePlusPlus(group_baseline=True),
}
"""Name of an estimator -> the algorithm whose advantages it computes."""


def row_advantages(
    algorithm: Algorithm, names: Sequence[str], rewards: Sequence[float], trained: Sequence[bool]
) -> list[float]:
    """One advantage per row, that of its trajectory; see `row_groups`.

    0 for padding, and for groups with too few remaining attempts to compare.
    """
    groups = [
        group
        for group in row_groups(names, rewards, trained)
        if len(group.rewards_G) >= algorithm.min_attempts_per_task
    ]
    advantages = [0.0] * len(names)
    for group, advantages_G in zip(
        groups, algorithm.step_advantages([group.rewards_G for group in groups]), strict=True
    ):
        for rows, advantage in zip(group.rows_G, advantages_G, strict=True):
            for row in rows:
                advantages[row] = advantage
    return advantages


def estimate(
    algorithm: Algorithm, *, token_level_rewards: Tensor, response_mask: Tensor, index: Sequence[str], **_: Any
) -> tuple[Tensor, Tensor]:
    """(advantages, returns) per token with verl's signature, (rows, tokens); `index` holds the "uid" of each row."""
    rewards = token_level_rewards.sum(dim=-1).tolist()
    trained = response_mask.any(dim=-1).tolist()
    of_rows = row_advantages(algorithm, [str(name) for name in index], rewards, trained)
    advantages = torch.tensor(of_rows, dtype=torch.float32).unsqueeze(-1) * response_mask
    return advantages, advantages.clone()


def estimators() -> dict[str, Callable[..., tuple[Tensor, Tensor]]]:
    """Estimators by name, as verl registers them."""
    return {name: partial(estimate, algorithm) for name, algorithm in ALGORITHMS.items()}
