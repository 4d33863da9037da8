"""PPO: a critic's values, GAE across all context resets, the clipped surrogate.

    GAE          delta_t = r_t + gamma V_{t+1} - V_t       A_t = delta_t + gamma lam A_{t+1}       R_t = A_t + V_t
    critic       L = sum_k 1/2 max((V_k - R_k)^2, (clip(V_k, old_k - c, old_k + c) - R_k)^2) / denominator

GAE runs over one trajectory's *sampled* tokens in generation order: the last token of a turn is followed by the first
of the next turn, whatever became of the context in between. Prompts, copied states and results are no steps. After
the last token comes nothing: value and advantage are 0 there. Rewards are what `channels` pay (`channels.py`): by
default the outcome, once, on the trajectory's last token and not on the last of each context.

    two turns of two tokens, reward 1, gamma 1, lam 0.5
    value       0.5      0.5     |  0.25   0.75
    delta       0       -0.25    |  0.5    0.25
    advantage   0.03125  0.0625  |  0.625  0.25
    return      0.53125  0.5625  |  0.875  1

Restarted at the reset, the first turn's advantages would be -0.25 -0.5: blame, although all went well.

Sources: PPO (arXiv 1707.06347), equations 7 and 9; the clip of values, which the paper does not have, is that of the
authors' code (openai/baselines, ppo2); GAE (arXiv 1506.02438), equation 16 as its recursion; whitening, Huang et al.
2022, "The 37 implementation details of PPO", detail 7 (there each mini-batch, here the whole rollout).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator

from mem1.algorithms.base import Advantages, Attempt, ClippedAlgorithm
from mem1.algorithms.channels import Outcome, SomeChannels, check_channels, paid, rehearsed
from mem1.algorithms.losses import Loss, per_sequence
from mem1.configuration.model import LearningRate
from mem1.records import Metric, Task

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-8


class Ppo(ClippedAlgorithm):
    """A critic's values, GAE across all context resets, the clipped surrogate. It takes single attempts."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per sampled token."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """1: advantages without the critic's bias. Below 1 they vary less, and the reward at the end reaches the first
    tokens of a long trajectory only through the critic."""
    channels: SomeChannels = (Outcome(),)
    """Rewards and their positions; not normalised, as nothing is compared."""
    whiten: bool = True
    """Bring advantages to mean 0 and variance 1 over the sampled tokens of the step."""
    critic: Literal["head", "separate"] = "head"
    """head: a linear layer on the policy's last hidden state; separate: on that of a copy of the policy's trunk."""
    critic_learning_rate: LearningRate = 1e-3
    critic_warmup: int = Field(default=0, ge=0)
    """Steps at the start that train the critic alone."""
    critic_rate_warmup: int | None = Field(default=None, ge=0)
    """Steps over which the critic's learning rate rises; None: `rl.warmup`, as the policy's."""
    value_grad_scale: float = Field(default=0.1, ge=0, le=1)
    """Share of the value loss's gradient that reaches the policy's trunk; without effect on a separate critic."""
    value_clip: float | None = Field(default=None, gt=0)
    """Largest rewarded move of a value within a rollout, in units of reward; None: no clipping."""

    @property
    def compares_attempts(self) -> bool:
        return False

    @property
    def critic_config(self) -> Ppo:
        return self

    @field_validator("channels")
    @classmethod
    def _can_be_paid(cls, channels: SomeChannels) -> SomeChannels:
        for channel in channels:
            if not channel.has_rewards:
                raise ValueError(f"{channel.name} compares attempts, which ppo does not; take the algorithm channels")
            if not channel.scale:
                raise ValueError(
                    f"scale of {channel.name} has no effect, as ppo does not normalise rewards; leave it out"
                )
        return channels

    def check(self, task: Task, measured: Callable[[], Mapping[str, Metric]]) -> None:
        check_channels(self.channels, task, measured)

    def policy_steps(self, steps: int) -> int:
        return max(0, steps - self.critic_warmup)

    def advantages(self, groups: Sequence[Sequence[Attempt]]) -> list[list[Advantages | None]]:
        """One number per token, from the values and what the channels pay."""
        import torch

        attempts = [x for group in groups for x in group]
        counts = [x.trajectory.num_completion_tokens for x in attempts]
        values_M = torch.cat([x.values_K for x in attempts if x.values_K is not None])
        rewards_M = torch.cat([paid(self.channels, x) for x in attempts]).to(values_M)
        penalties = [x.kl_penalty_K for x in attempts if x.kl_penalty_K is not None]
        if penalties:
            rewards_M = rewards_M - torch.cat(penalties)
        advantages_M, returns_M = generalised_advantages(values_M, rewards_M, counts, gamma=self.gamma, lam=self.lam)
        if self.whiten and len(advantages_M):
            advantages_M = whitened(advantages_M)
        found = (
            Advantages(advantages_K=a, returns_K=r)
            for a, r in zip(advantages_M.split(counts), returns_M.split(counts), strict=True)
        )
        return [[next(found) for _ in group] for group in groups]

    def rehearsal(self) -> Ppo:
        channels = (
            self.channels if not any(channel.demanding for channel in self.channels) else rehearsed(self.channels)
        )
        return self.model_copy(update={"critic_warmup": 0, "critic_rate_warmup": None, "channels": channels})


def generalised_advantages(
    values_M: Tensor, rewards_M: Tensor, lengths: Sequence[int], *, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Advantages and returns (the critic's targets) of M sampled tokens, both (M,) and without gradient.

    `lengths` are the sampled tokens per *trajectory*, all its turns together. Computed in double precision. Raises
    ValueError unless they sum to M.
    """
    advantages: list[float] = []
    for values, rewards in zip(per_sequence(values_M, lengths), per_sequence(rewards_M, lengths), strict=True):
        own: list[float] = []
        advantage = following = 0.0
        for value, reward in zip(reversed(values.tolist()), reversed(rewards.tolist()), strict=True):
            advantage = reward + gamma * following - value + gamma * lam * advantage
            following = value
            own.append(advantage)
        advantages += reversed(own)
    double_M = values_M.detach().cpu().double()
    advantages_M = double_M.new_tensor(advantages)
    return advantages_M.to(values_M), (advantages_M + double_M).to(values_M)


def whitened(advantages_M: Tensor) -> Tensor:
    """(A - mean(A)) / sqrt(var(A) + eps), for all M sampled tokens of a rollout at once: (1, 3) -> (-1, 1).

    For GAE, whose advantages are a token's own; in the group family statistics are over trajectories.
    """
    return (advantages_M - advantages_M.mean()) / (advantages_M.var(correction=0) + EPSILON).sqrt()


def value_loss(
    values_M: Tensor, old_values_M: Tensor, returns_M: Tensor, *, clip: float | None, denominator: float
) -> Loss:
    """The critic's loss on M sampled tokens; `denominator` counts the whole optimiser step.

    `old_values_M` are those from which `returns_M` were computed, before the first update. The larger of the two
    squares counts, so a value that has moved by more than `clip` towards its return learns no further in this
    rollout.
    """
    free_M = (values_M - returns_M).square()
    if clip is None:
        return Loss(0.5 * free_M.sum() / denominator, 0)
    held_M = (old_values_M + (values_M - old_values_M).clamp(-clip, clip) - returns_M).square()
    return Loss(0.5 * free_M.maximum(held_M).sum() / denominator, (held_M > free_M).sum())


def explained_variance(values_M: Tensor, returns_M: Tensor) -> float | None:
    """Share of the variance of the returns that the values explain: 1 all, 0 no better than a constant, or less.

        1 - Var(R - V) / Var(R), over all tokens of a step: the parts of a step do not add up

    None where the returns do not vary.
    """
    returns = returns_M.detach().double()
    if len(returns.unique()) < 2:
        return None
    errors = returns - values_M.detach().double()
    return 1 - float(errors.var(correction=0) / returns.var(correction=0))
