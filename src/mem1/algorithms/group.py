"""Algorithms with one advantage per trajectory, from the rewards of attempts at the same task, or of the same step.

| name | advantage A_i of reward r_i | rewards (1, 0, 0, 1) | loss | denominator | source |
|---|---|---|---|---|---|
| grpo | (r_i - mean) / (std + eps) | (1, -1, -1, 1) | clipped surrogate | sampled tokens | arXiv 2402.03300, 4.1.2 |
| dapo | as grpo | | clipped, 0.2 and 0.28 | sampled tokens | arXiv 2503.14476 |
| dr_grpo | r_i - mean | (0.5, -0.5, -0.5, 0.5) | clipped surrogate | attempts x constant | arXiv 2503.20783, 3.2 |
| rloo | r_i - mean of the others | (2/3, -2/3, -2/3, 2/3) | policy gradient | sampled tokens | arXiv 2402.14740, 2 |
| reinforce | r_i - b | (1, 0, 0, 1) for b = 0 | policy gradient | sampled tokens | Williams 1992, 4 |
| reinforce_pp | (x_i - mean) / (std + eps) over the step | | clipped surrogate | sampled tokens | arXiv 2501.03262 |
| rejection | 1: kept, else left out | (1, -, -, 1) | likelihood | sampled tokens kept | arXiv 2308.01825 |

Means and standard deviations (divided by the number) are over *trajectories*; the advantage is on every sampled token
of all turns, however many contexts they are spread over. Attempts whose rewards are all equal have advantages of
exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

from pydantic import Field, model_validator

from mem1.algorithms.base import Advantages, Algorithm, Attempt, ClippedAlgorithm, LossInputs, has_variance
from mem1.algorithms.losses import Loss, negative_log_likelihood, policy_gradient
from mem1.configuration import Config
from mem1.records import Group, Trajectory

EPSILON = 1e-4


class Grpo(ClippedAlgorithm):
    """Rewards normalised within each group; the clipped surrogate."""

    def group_advantages(self, rewards_G: Sequence[float]) -> tuple[float, ...]:
        return normalised_advantages(rewards_G)


class DrGrpo(ClippedAlgorithm):
    """Rewards centred within each group; the clipped surrogate, divided by a constant number of tokens per attempt.

    Dividing by the standard deviation would weigh a task by how nearly all or none of its attempts succeed, dividing
    by the sampled tokens an attempt by its length.
    """

    tokens_per_attempt: int = Field(default=512, ge=1)
    """Tokens that each attempt counts for in the denominator, however many it sampled."""

    def group_advantages(self, rewards_G: Sequence[float]) -> tuple[float, ...]:
        return centred_advantages(rewards_G)

    def denominator(self, trajectories: Sequence[Trajectory]) -> float:
        return float(len(trajectories) * self.tokens_per_attempt)


class PolicyGradientAlgorithm(Algorithm):
    """The plain policy gradient over the sampled tokens of the step."""

    one_update_per_rollout = True

    def loss(self, inputs: LossInputs, *, denominator: float) -> Loss:
        loss = policy_gradient(
            inputs.logprobs_M, inputs.advantages_M, denominator=denominator, weights_M=inputs.weights_M
        )
        return Loss(loss, 0)


class Rloo(PolicyGradientAlgorithm):
    """Rewards less the mean of the *other* attempts at the task; the plain policy gradient.

    The baseline does not depend on the attempt that it is subtracted from, so the gradient is unbiased; centring on
    the whole group shrinks it by (G - 1) / G.
    """

    def group_advantages(self, rewards_G: Sequence[float]) -> tuple[float, ...]:
        return leave_one_out_advantages(rewards_G)


class Reinforce(PolicyGradientAlgorithm):
    """Rewards less a constant; the plain policy gradient. It takes single attempts."""

    baseline: float = 0.0
    """Any number known before the attempts, such as a mean reward of earlier runs."""

    @property
    def compares_attempts(self) -> bool:
        return False

    def group_advantages(self, rewards_G: Sequence[float]) -> tuple[float, ...]:
        return tuple(r - self.baseline for r in rewards_G)


class ReinforcePlusPlus(ClippedAlgorithm):
    """Rewards normalised over all attempts of the step; the clipped surrogate.

    One scale for all tasks: unlike GRPO's, a group whose rewards hardly differ is not blown up. The authors' code
    (OpenRLHF) takes its statistics over the *tokens* of the batch, so that a long attempt shifts every advantage by
    more than a short one; ours are over trajectories. Both agree where all attempts have equally many tokens. The
    original's KL term per token belongs in `[rl.kl]`.
    """

    group_baseline: bool = False
    """Subtract the mean of each group first."""

    @property
    def compares_attempts(self) -> bool:
        return self.group_baseline

    @property
    def min_attempts_per_step(self) -> int:
        return 2

    def step_advantages(self, rewards_G_by_group: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
        return global_advantages(rewards_G_by_group, group_baseline=self.group_baseline)

    def _rewards_differ(self, groups: Sequence[Sequence[Attempt]]) -> list[bool]:
        if self.group_baseline:
            return super()._rewards_differ(groups)
        return [len({x.shaped_reward for group in groups for x in group}) > 1] * len(groups)


class Overlong(Config):
    """DAPO's penalty on attempts that sample too many tokens, all turns together."""

    limit: int = Field(ge=1)
    """Sampled tokens beyond which the penalty is 1; with a buffer, it is 1 at the limit, too."""
    buffer: int = Field(ge=0)
    """Tokens before the limit over which the penalty rises from 0."""

    @model_validator(mode="after")
    def _fits(self) -> Overlong:
        if self.buffer > self.limit:
            raise ValueError(
                f"the buffer must lie between 0 and the limit of {self.limit} tokens, not be {self.buffer}"
            )
        return self

    def penalty(self, tokens: int) -> float:
        """DAPO's soft penalty (equation 13), added to the reward of an attempt that sampled this many tokens.

        limit 100, buffer 20:   80 -> 0     90 -> -0.5     100 -> -1     101 -> -1
        """
        if tokens > self.limit:
            return -1.0
        return min(0.0, (self.limit - self.buffer - tokens) / self.buffer) if self.buffer else 0.0


class Dapo(Grpo):
    """GRPO with a higher upper bound, on groups whose rewards differ: the others are drawn again."""

    clip_high: float = Field(default=0.28, gt=0)
    max_draws: int = Field(default=4, ge=1)
    """Draws of a step, the first included; each asks for as many groups as are still missing."""
    overlong: Overlong | None = None
    """None: no penalty."""

    @property
    def draws(self) -> int:
        return self.max_draws

    def keep_groups(self, groups: Sequence[Group]) -> list[Group]:
        return [group for group in groups if has_variance(group)]

    def shaped_reward(self, reward: float, trajectory: Trajectory) -> float:
        return reward if self.overlong is None else reward + self.overlong.penalty(trajectory.num_completion_tokens)

    def metrics(self, *, groups: int, attempts: int, kept: int) -> dict[str, float]:
        return {"groups_drawn": float(groups)}

    def rehearsal(self) -> Dapo:
        return self.model_copy(update={"max_draws": 1})


class Rejection(Algorithm):
    """Rejection-sampling fine-tuning: the likelihood of the attempts that were good enough.

    A threshold alone is RFT; `best` is RAFT's choice (arXiv 2304.06767), and keeps easy tasks, whose attempts all
    succeed, from crowding out the hard ones.
    """

    imitates = True

    threshold: float
    """Smallest reward of an attempt that is kept."""
    best: int | None = Field(default=None, ge=1)
    """Most attempts kept per group, those of the highest reward; None: all of them."""

    @property
    def compares_attempts(self) -> bool:
        return False

    def group_advantages(self, rewards_G: Sequence[float]) -> tuple[float, ...]:
        """1 for the attempts that are kept, 0 for the others."""
        kept = accepted(rewards_G, threshold=self.threshold, best=self.best)
        return tuple(float(i in kept) for i in range(len(rewards_G)))

    def advantages(self, groups: Sequence[Sequence[Attempt]]) -> list[list[Advantages | None]]:
        kept = self.step_advantages([[x.shaped_reward for x in group] for group in groups])
        return [
            [x if keep else None for x, keep in zip(found, keep_G, strict=True)]
            for found, keep_G in zip(super().advantages(groups), kept, strict=True)
        ]

    def loss(self, inputs: LossInputs, *, denominator: float) -> Loss:
        return Loss(negative_log_likelihood(inputs.logprobs_M, denominator=denominator), 0)

    def metrics(self, *, groups: int, attempts: int, kept: int) -> dict[str, float]:
        return {"accepted_share": kept / attempts}

    def rehearsal(self) -> Rejection:
        return self.model_copy(update={"threshold": min(1.0, self.threshold)})


def normalised_advantages(rewards_G: Sequence[float]) -> tuple[float, ...]:
    """GRPO's advantages. Raises ValueError for fewer than two rewards: there is nothing to compare with."""
    centred = centred_advantages(rewards_G)
    std = math.sqrt(math.fsum(x**2 for x in centred) / len(centred))
    return tuple(x / (std + EPSILON) for x in centred)


def centred_advantages(rewards_G: Sequence[float]) -> tuple[float, ...]:
    """Dr. GRPO's advantages. Raises ValueError for fewer than two rewards."""
    if len(rewards_G) < 2:
        raise ValueError(f"advantages that compare attempts need at least 2 attempts, not {len(rewards_G)}")
    if len(set(rewards_G)) == 1:
        return (0.0,) * len(rewards_G)
    mean = math.fsum(rewards_G) / len(rewards_G)
    return tuple(r - mean for r in rewards_G)


def leave_one_out_advantages(rewards_G: Sequence[float]) -> tuple[float, ...]:
    """RLOO's advantages, G / (G - 1) (r_i - mean(r)). Raises ValueError for fewer than two rewards."""
    if not any(centred_advantages(rewards_G)):
        return (0.0,) * len(rewards_G)
    total, others = math.fsum(rewards_G), len(rewards_G) - 1
    return tuple(r - (total - r) / others for r in rewards_G)


def global_advantages(
    rewards_G_by_group: Sequence[Sequence[float]], *, group_baseline: bool
) -> list[tuple[float, ...]]:
    """REINFORCE++'s advantages, by group; with `group_baseline` each group is centred first.

    Raises ValueError for fewer than two attempts: in the step, or with `group_baseline` in any group.
    """
    if not group_baseline:
        advantages = iter(normalised_advantages(list(chain.from_iterable(rewards_G_by_group))))
        return [tuple(next(advantages) for _ in rewards) for rewards in rewards_G_by_group]
    groups = [centred_advantages(rewards) for rewards in rewards_G_by_group]
    every = list(chain.from_iterable(groups))
    if len(every) < 2:
        raise ValueError(f"advantages over a step need at least 2 attempts, not {len(every)}")
    # Their mean is 0, but for a rounding error that must not be subtracted.
    std = math.sqrt(math.fsum(x * x for x in every) / len(every))
    return [tuple(x / (std + EPSILON) for x in group) for group in groups]


def accepted(rewards_G: Sequence[float], *, threshold: float, best: int | None = None) -> tuple[int, ...]:
    """Indices, ascending, of the attempts at one task with at least the threshold's reward.

        rewards (0, 1, 0.5, 1), threshold 0.5   ->  (1, 2, 3);   best 2  ->  (1, 3)

    `best` keeps at most that many, those of the highest reward, the earlier of two equal ones.
    """
    good = [i for i, reward in enumerate(rewards_G) if reward >= threshold]
    return tuple(sorted(sorted(good, key=lambda i: -rewards_G[i])[:best]))
