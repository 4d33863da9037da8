"""GAE: the advantage of each sampled token, from a critic's values, across context resets.

    delta_t = r_t + gamma V_{t+1} - V_t          A_t = delta_t + gamma lam A_{t+1}          R_t = A_t + V_t

Source: generalised advantage estimation (arXiv 1506.02438), equation 16 as its recursion, over one trajectory's
*sampled* tokens in generation order: the last token of a turn is followed by the first of the next turn, whatever
became of the context in between. Prompts, copied states and results are no steps. After the last token comes
nothing: value and advantage are 0 there.

    two turns of two tokens, reward 1, gamma 1, lam 0.5
    value       0.5      0.5     |  0.25   0.75
    delta       0       -0.25    |  0.5    0.25
    advantage   0.03125  0.0625  |  0.625  0.25
    return      0.53125  0.5625  |  0.875  1

Restarted at the reset, the first turn's advantages would be -0.25 -0.5: blame, although all went well.

Use it with a critic (PPO). `lam` 1 and `gamma` 1 give the reward still to come less the value: no bias by the
critic; a smaller `lam` trades variance for its bias.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mem1.algorithms.sequences import per_sequence


def generalised_advantages(
    values_M: Tensor, rewards_M: Tensor, lengths: Sequence[int], *, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Advantages and returns (the critic's targets) of M sampled tokens, both (M,) and without gradient.

    `lengths` are the sampled tokens per *trajectory*, all its turns together. Computed in double precision.
    Raises ValueError unless they sum to M.
    """
    advantages: list[float] = []
    for values, rewards in zip(per_sequence(values_M, lengths), per_sequence(rewards_M, lengths), strict=True):
        advantages += _of_one(values.tolist(), rewards.tolist(), gamma, gamma * lam)
    advantages_M = torch.tensor(advantages, dtype=torch.float64)
    returns_M = advantages_M + values_M.detach().to("cpu", torch.float64)
    return advantages_M.to(values_M), returns_M.to(values_M)


def _of_one(values: list[float], rewards: list[float], gamma: float, decay: float) -> list[float]:
    """From the last token of one trajectory to its first."""
    advantages: list[float] = []
    advantage = following = 0.0
    for value, reward in zip(reversed(values), reversed(rewards), strict=True):
        advantage = reward + gamma * following - value + decay * advantage
        following = value
        advantages.append(advantage)
    return advantages[::-1]


def terminal_rewards(rewards_S: Sequence[float], lengths: Sequence[int]) -> Tensor:
    """Each trajectory's reward on its last sampled token, (M,), 0 on all others.

    Never on the last token of each context: that would pay a trajectory once a turn. The reward of a trajectory
    without a sampled token goes nowhere. Raises ValueError unless there is a length for each reward.
    """
    if len(rewards_S) != len(lengths):
        raise ValueError(f"{len(rewards_S)} rewards, but {len(lengths)} lengths: one each per trajectory")
    rewards_M = torch.zeros(sum(lengths))
    stop = 0
    for reward, length in zip(rewards_S, lengths, strict=True):
        stop += length
        if length:
            rewards_M[stop - 1] = reward
    return rewards_M
