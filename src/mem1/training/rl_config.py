"""`[rl]` of a recipe: which algorithm, on how many attempts, with what regularisation.

    [rl.algorithm]
    name = "ppo"
    critic = "separate"

An algorithm is how advantages are made (`advantages.py`), which loss they enter and what that loss is divided by
(`losses.py`); its own settings are its section's, everything else is common to all.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mem1.algorithms.overlong import overlong_penalty
from mem1.configuration import Config
from mem1.configuration.numbers import MOST_TOKENS, LearningRate, Sizes, Temperature


class Grpo(Config):
    """Rewards normalised within each group; the clipped surrogate over the tokens of the step."""

    name: Literal["grpo"] = "grpo"
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.2, gt=0)


class DrGrpo(Config):
    """Rewards centred within each group; the clipped surrogate over a constant number of tokens."""

    name: Literal["dr_grpo"] = "dr_grpo"
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.2, gt=0)
    tokens_per_attempt: int = Field(default=512, ge=1)
    """What each attempt counts for in the denominator, however many tokens it sampled."""


class Rloo(Config):
    """Rewards less the mean of the other attempts; the plain policy gradient."""

    name: Literal["rloo"] = "rloo"


class Reinforce(Config):
    """Rewards less a constant; the plain policy gradient."""

    name: Literal["reinforce"] = "reinforce"
    baseline: float = 0.0


class ReinforcePlusPlus(Config):
    """Rewards normalised over all attempts of the step; the clipped surrogate."""

    name: Literal["reinforce_pp"] = "reinforce_pp"
    group_baseline: bool = False
    """Subtract the mean of each group first."""
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.2, gt=0)


class Overlong(Config):
    """DAPO's penalty on attempts that sample too many tokens, all turns together."""

    limit: int = Field(ge=1)
    """Tokens from which on the penalty is 1."""
    buffer: int = Field(ge=0)
    """Tokens before the limit over which it rises from 0."""

    @model_validator(mode="after")
    def _fits(self) -> Overlong:
        self.penalty(0)
        return self

    def penalty(self, tokens: int) -> float:
        """Added to the reward of an attempt that sampled so many tokens."""
        return overlong_penalty(tokens, limit=self.limit, buffer=self.buffer)


class Dapo(Config):
    """GRPO with a higher upper bound, on groups whose rewards differ: others are drawn anew."""

    name: Literal["dapo"] = "dapo"
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.28, gt=0)
    max_draws: int = Field(default=4, ge=1)
    """Draws of a step, the first included; each asks for as many groups as are still missing."""
    overlong: Overlong | None = None
    """None: no penalty."""


class Gspo(Config):
    """GRPO's advantages with one ratio per sequence."""

    name: Literal["gspo"] = "gspo"
    unit: Literal["trajectory", "turn"] = "trajectory"
    """What a ratio is taken over; a trajectory weighs the same either way."""
    clip_low: float = Field(default=3e-4, gt=0)
    clip_high: float = Field(default=4e-4, gt=0)


class Cispo(Config):
    """GRPO's advantages; the policy gradient weighed by a clipped ratio."""

    name: Literal["cispo"] = "cispo"
    clip_low: float | None = Field(default=None, gt=0)
    """None: not bounded from below."""
    clip_high: float = Field(default=4.0, gt=0)
    """The ratio is at most 1 + clip_high."""


class Ppo(Config):
    """A critic's values, GAE across all context resets, the clipped surrogate."""

    name: Literal["ppo"] = "ppo"
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.2, gt=0)
    gamma: float = Field(default=1.0, gt=0, le=1)
    lam: float = Field(default=1.0, ge=0, le=1)
    """Below 1 the reward at the end reaches the first tokens of a long trajectory only through the critic."""
    whiten: bool = True
    """Advantages brought to mean 0 and variance 1 over the sampled tokens of the step."""
    critic: Literal["head", "separate"] = "head"
    """head: a linear layer on the policy's last hidden state; separate: on that of a copy of the policy's trunk."""
    critic_learning_rate: LearningRate = 1e-3
    critic_warmup: int = Field(default=0, ge=0)
    """Steps at the start in which the critic learns and the policy does not."""
    trunk_gradient: float = Field(default=0.1, ge=0, le=1)
    """Share of the value loss's gradient that reaches the policy's trunk; of no effect on a separate critic."""
    value_clip: float | None = Field(default=None, gt=0)
    """Largest rewarded move of a value within a rollout, in units of reward; None: no clipping."""


class Rejection(Config):
    """Rejection-sampling fine-tuning: the likelihood of the attempts that were good enough."""

    name: Literal["rejection"] = "rejection"
    threshold: float
    """Smallest reward of an attempt that is kept."""
    best: int | None = Field(default=None, ge=1)
    """At most so many of a group; None: all of them."""


Algorithm = Annotated[
    Grpo | DrGrpo | Rloo | Reinforce | ReinforcePlusPlus | Dapo | Gspo | Cispo | Ppo | Rejection,
    Field(discriminator="name"),
]
COMPARES_ATTEMPTS = (Grpo, DrGrpo, Rloo, Dapo, Gspo, Cispo)
"""Algorithms that need two attempts at a task."""
WITHOUT_RATIO = (Rloo, Reinforce)
"""Algorithms whose gradient is right for one update on a rollout only."""


def fewest_attempts(algorithm: Algorithm) -> int:
    """At a task, for the algorithm to learn from them."""
    compares = isinstance(algorithm, COMPARES_ATTEMPTS) or (
        isinstance(algorithm, ReinforcePlusPlus) and algorithm.group_baseline
    )
    return 2 if compares else 1


class Kl(Config):
    """A penalty on the distance from the policy at the start of reinforcement learning."""

    coefficient: float = Field(default=0.001, ge=0)
    """Weight of the penalty, applied to the mean per-token KL (loss) or to each token's estimate (reward)."""
    where: Literal["reward", "loss"] = "loss"
    estimator: Literal["k1", "k2", "k3"] | None = None
    """None: k2 in the loss, k1 in the reward, which takes no other."""
    target: float | None = Field(default=None, gt=0)
    """Nats a token; the coefficient is adapted until the KL is there. None: it stays."""
    horizon: float = Field(default=10.0, gt=0)
    """Steps over which the coefficient is adapted; of no effect without a target."""

    @model_validator(mode="after")
    def _teaches(self) -> Kl:
        if self.where == "loss" and self.estimator == "k1":
            raise ValueError('estimator = "k1" in the loss has a gradient of 0 on average; take k2 or k3 there')
        if self.where == "reward" and self.estimator in ("k2", "k3"):
            raise ValueError(
                f'estimator = "{self.estimator}" in the reward has a policy gradient that is not that of the KL; '
                "take k1 there"
            )
        return self

    @property
    def loss_estimator(self) -> Literal["k2", "k3"]:
        """Estimator of the penalty in the loss."""
        return "k3" if self.estimator == "k3" else "k2"


class Importance(Config):
    """Truncated importance weights between the sampler and the trainer."""

    level: Literal["token", "sequence"] = "token"
    """sequence: one weight per trajectory."""
    cap: float = Field(default=2.0, ge=1)


class Phase(Config):
    """Some steps of reinforcement learning on tasks of the same sizes."""

    steps: int = Field(ge=1)
    objectives: Sizes = (2,)
    """Numbers of objectives; the groups of a step take them in turn."""


class Rl(Config):
    """Reinforcement learning on the outcome, over the token tree."""

    phases: tuple[Phase, ...] = Field(min_length=1)
    groups: int = Field(default=12, ge=1, le=100_000)
    """Tasks of a step."""
    attempts: int = Field(default=8, ge=1, le=100_000)
    """Attempts at each task (G)."""
    temperature: Temperature = 1.0
    learning_rate: LearningRate = 3e-4
    warmup: int = Field(default=5, ge=0)
    """Steps over which the learning rates rise."""
    decay: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps, at the end, over which the learning rates fall to a twentieth."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    updates_per_rollout: int = Field(default=1, ge=1)
    """Times that all attempts of a step are gone through."""
    minibatches: int = Field(default=1, ge=1)
    """Parts, of whole trajectories, with one optimiser step each."""
    entropy: float = Field(default=0.0, ge=0)
    """Bonus on the mean entropy of the sampled tokens, in nats."""
    pack_tokens: int = Field(default=8192, ge=64, le=MOST_TOKENS)
    """Tokens of the token tree of a micro-batch; of no effect on the gradient."""
    packed: bool = True
    """False: one context a row, for models that cannot be packed exactly."""
    algorithm: Algorithm = Grpo()
    kl: Kl | None = None
    """None: no penalty, and no copy of the policy."""
    old_policy: Literal["sampler", "trainer"] = "sampler"
    """Whose log-probs of the sampled tokens the ratio divides by. trainer: computed before the first update, one more
    forward pass, for an engine that does not give exactly the trainer's."""
    importance: Importance | None = None
    """Weights between the two; the ratio then divides by the trainer's log-probs."""
    max_staleness: int = Field(default=0, ge=0)
    """Steps that the rollouts may be ahead of the trainer, with servers that sample ([rollout]) and `importance`, which
    makes up for older weights. 0: each step samples, then trains."""

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    @property
    def updates(self) -> int:
        """Optimiser steps on each rollout."""
        return self.updates_per_rollout * self.minibatches

    def objectives(self, step: int) -> tuple[int, ...]:
        """Numbers of objectives at this step, counted from 0."""
        for phase in self.phases:
            if step < phase.steps:
                return phase.objectives
            step -= phase.steps
        raise IndexError("past the last phase")

    @property
    def fewest_attempts(self) -> int:
        """At a task, for the algorithm to learn from them."""
        return fewest_attempts(self.algorithm)

    @property
    def fewest_of_a_step(self) -> int:
        """Attempts of all groups together, for the algorithm to learn from them."""
        return 2 if isinstance(self.algorithm, ReinforcePlusPlus) else self.fewest_attempts

    @model_validator(mode="after")
    def _fits_the_algorithm(self) -> Rl:
        name = self.algorithm.name
        if self.attempts < self.fewest_attempts:
            raise ValueError(f"{name} compares the attempts at a task; set attempts to 2 or more, or take ppo")
        if self.groups * self.attempts < self.fewest_of_a_step:
            raise ValueError(f"{name} compares the attempts of a step; set groups or attempts to 2 or more")
        if isinstance(self.algorithm, WITHOUT_RATIO) and self.updates > 1:
            raise ValueError(
                f"{name} has no ratio to the old policy, so it takes one update a rollout; set updates_per_rollout "
                "and minibatches to 1, or take grpo or reinforce_pp"
            )
        if isinstance(self.algorithm, Rejection) and (self.importance or (self.kl and self.kl.where == "reward")):
            raise ValueError("rejection takes neither importance weights nor a KL penalty in the reward")
        if self.max_staleness and self.importance is None:
            raise ValueError(
                f"max_staleness = {self.max_staleness} trains on what older weights have sampled, which "
                "[rl.importance] must make up for; give it, empty for its defaults, or set max_staleness to 0"
            )
        if self.minibatches > self.groups * self.attempts:
            raise ValueError(
                f"{self.minibatches} minibatches of {self.groups * self.attempts} attempts: some are empty"
            )
        return self
