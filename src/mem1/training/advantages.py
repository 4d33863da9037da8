"""From rewards to the advantage of each sampled token.

    group family    one number a trajectory, from the rewards of its group (or of the step); on all its tokens
    ppo             one number a token, by GAE over the trajectory's sampled tokens, across its contexts

Statistics are over trajectories, never over contexts: how often a context was rewritten changes nothing here.

Letters: G attempts of a group, S trajectories, K sampled tokens of one trajectory, M of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mem1.algorithms.dr_grpo import centred_advantages
from mem1.algorithms.gae import generalised_advantages, terminal_rewards
from mem1.algorithms.grpo import group_advantages
from mem1.algorithms.reinforce import reinforce_advantages
from mem1.algorithms.reinforce_plus_plus import global_advantages
from mem1.algorithms.rejection import accepted
from mem1.algorithms.rloo import leave_one_out_advantages
from mem1.algorithms.whitening import whitened
from mem1.records import Trajectory
from mem1.training.rl_config import Algorithm, DrGrpo, Ppo, Reinforce, ReinforcePlusPlus, Rejection, Rloo


def trajectory_advantages(
    algorithm: Algorithm, rewards_G_by_group: Sequence[Sequence[float]]
) -> list[tuple[float, ...]]:
    """Advantage of each attempt, per group; for rejection 1 for the attempts that are kept, 0 for the others."""
    match algorithm:
        case DrGrpo():
            return [centred_advantages(rewards) for rewards in rewards_G_by_group]
        case Rloo():
            return [leave_one_out_advantages(rewards) for rewards in rewards_G_by_group]
        case Reinforce(baseline=baseline):
            return [reinforce_advantages(rewards, baseline=baseline) for rewards in rewards_G_by_group]
        case ReinforcePlusPlus(group_baseline=group_baseline):
            return global_advantages(rewards_G_by_group, group_baseline=group_baseline)
        case Rejection():
            return [_kept(algorithm, rewards) for rewards in rewards_G_by_group]
        case Ppo():
            raise ValueError("ppo has an advantage per token; see token_advantages")
        case _:
            return [group_advantages(rewards) for rewards in rewards_G_by_group]


def _kept(algorithm: Rejection, rewards_G: Sequence[float]) -> tuple[float, ...]:
    kept = accepted(rewards_G, threshold=algorithm.threshold, best=algorithm.best)
    return tuple(float(i in kept) for i in range(len(rewards_G)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenAdvantages:
    """What a critic makes of S trajectories with M sampled tokens."""

    advantages_M: Tensor
    returns_M: Tensor
    """Targets of the critic."""


def token_advantages(
    config: Ppo,
    trajectories: Sequence[Trajectory],
    rewards_S: Sequence[float],
    values_M: Tensor,
    penalties_M: Tensor | None = None,
) -> TokenAdvantages:
    """GAE over each trajectory; the reward comes after its last sampled token.

    `penalties_M`, where given, are subtracted from the reward of each token.
    """
    counts = [t.num_completion_tokens for t in trajectories]
    rewards_M = terminal_rewards(rewards_S, counts).to(values_M)
    if penalties_M is not None:
        rewards_M = rewards_M - penalties_M
    advantages_M, returns_M = generalised_advantages(values_M, rewards_M, counts, gamma=config.gamma, lam=config.lam)
    if config.whiten and len(advantages_M):
        advantages_M = whitened(advantages_M)
    return TokenAdvantages(advantages_M=advantages_M, returns_M=returns_M)


def spread(advantages: Sequence[float], trajectories: Sequence[Trajectory]) -> list[Tensor]:
    """Each trajectory's one advantage on all its sampled tokens, (K,) each."""
    pairs = zip(advantages, trajectories, strict=True)
    return [torch.full((t.num_completion_tokens,), advantage) for advantage, t in pairs]
