"""Reinforcement learning on the outcome, on the token tree.

One step: draw tasks, let the policy attempt each G times, make a training sample of each attempt, and take the
optimiser steps of the recipe on mini-batches of them: one by default. Step i is a pure function of the weights (policy,
critic, reference), the optimisers, the seed and i, so a resumed run repeats an unbroken one exactly; with
`max_staleness` its tasks are, but its rollout depends on which weights were published in time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from mem1.algorithms.base import has_variance
from mem1.envs.base import TaskSource
from mem1.records import Group
from mem1.rollout import Rollout
from mem1.training.gradients.actor_critic import ActorCritic
from mem1.training.gradients.samples import TrainingSample, make_samples, minibatches, scorable_groups
from mem1.training.gradients.update import OptimizerStep, accumulate
from mem1.training.loop.group_sampling import GroupSampler
from mem1.training.loop.rl_config import Rl
from mem1.training.loop.rl_metrics import StepStats, rollout_metrics, sample_metrics, staleness
from mem1.training.loop.run_folder import Metrics
from mem1.training.ranks.optimizers import Optimizers, adamw, together, warmup_decay
from mem1.training.ranks.placement import SINGLE_PROCESS, Placement
from mem1.training.weights.policy import Policy
from mem1.training.weights.weight_sync import WeightSync


@dataclass
class RlStage:
    """Any algorithm: what sets one apart is in the object `config.algorithm`."""

    policy: Policy
    config: Rl
    rollout: Rollout
    source: TaskSource
    seed: int
    workers: int = 1
    """Packs trained at a time."""
    placement: Placement = SINGLE_PROCESS
    sync: WeightSync | None = None
    """On rank 0, the servers that sample; None: the ranks sample with the policy itself."""
    name: str = "rl"
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds of the last step by what they were spent on."""

    def __post_init__(self) -> None:
        self.networks = ActorCritic.make(self.config, self.policy.model, placement=self.placement, threads=self.workers)
        self.model = self.networks.policy
        self._actor: Optimizers = adamw(self.model, self.config.learning_rate)
        self._critic: Optimizers | None = None
        critic_config = self.config.algorithm.critic_config
        if self.networks.critic is not None and critic_config is not None:
            self._critic = adamw(self.networks.critic, critic_config.critic_learning_rate)
        self._sampler = GroupSampler(
            self.policy, self.config, self.rollout, self.source, self.seed, self.placement, self.sync
        )
        self.optimizers = together(*(o for o in (self._actor, self._critic) if o is not None))

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """What a checkpoint must hold besides the policy and the optimisers."""
        return self.networks.modules

    @property
    def steps(self) -> int:
        return self.config.steps

    def step(self, index: int) -> Metrics:
        """One rollout and its optimiser steps."""
        started = time.perf_counter()
        groups = self.sample(index)
        sampled = time.perf_counter()
        metrics = self.update(groups, index)
        self.timings = {"rollout": sampled - started, "update": time.perf_counter() - sampled}
        return metrics

    def sample(self, index: int) -> list[Group]:
        """G attempts at each task of this step."""
        self.placement.sync_to_sampler(self.model, self.policy.model)
        return self._sampler.sample(index)

    def update(self, groups: Sequence[Group], index: int) -> Metrics:
        """The optimiser steps on one rollout."""
        algorithm = self.config.algorithm
        scorable = scorable_groups(algorithm, groups)
        samples_by_group = self._samples(algorithm.keep_groups(scorable))
        stats = StepStats()
        parts = minibatches(
            samples_by_group,
            count=self.config.minibatches,
            epochs=self.config.epochs,
            seed=f"{self.seed}/rl/{index}",
        )
        for number, part in enumerate(parts):
            self._optimizer_step(part, index, number, stats)
        samples = [sample for group in samples_by_group for sample in group]
        before = sample_metrics(samples)
        attempts = [t for group in groups for t in group.trajectories]
        return {
            **rollout_metrics(attempts),
            "groups_with_variance": sum(map(has_variance, groups)) / len(groups),
            "groups_skipped": float(len(groups) - len(scorable)),
            "skipped_too_few": float(not scorable),
            "skipped_equal": float(bool(scorable) and not stats.updates),
            "learning_rate": self.config.learning_rate * self._scale(index),
            **stats.metrics(),
            **before,
            **(stats.critic_metrics() if self._critic is not None else {}),
            **self._kl_metrics(before.get("kl")),
            **algorithm.metrics(groups=len(groups), attempts=len(attempts), kept=len(samples)),
        }

    def _samples(self, groups: Sequence[Group]) -> list[list[TrainingSample]]:
        if not groups:
            return []
        old = self.networks.old_policy_stats([group.trajectories for group in groups])
        samples = make_samples(self.config, groups, old, kl_coefficient=self.networks.kl_coefficient)
        return self.networks.centre_critic(samples)

    def _optimizer_step(
        self, part: Sequence[Sequence[TrainingSample]], index: int, number: int, stats: StepStats
    ) -> None:
        """The `number`th on the rollout of step `index`."""
        warming = self._warming_up(index)
        begun = self.config.version_at(index)
        step = OptimizerStep(version=begun + (0 if warming else number), begun=begun, first=number == 0, frozen=warming)
        if not accumulate(self.networks, part, stats.passes, step):
            return
        stats.updates += 1
        trained = [sample.trajectory for group in part for sample in group if sample.has_gradient]
        stats.staleness.update(staleness(trained, step.version))
        if not warming:
            stats.norms.append(self._actor.step(scale=self._scale(index), max_grad_norm=self.config.max_grad_norm))
        if self._critic is not None:
            scale = self._schedule(index, self.config.steps)
            stats.critic_norms.append(self._critic.step(scale=scale, max_grad_norm=self.config.max_grad_norm))

    def _kl_metrics(self, kl: float | None) -> dict[str, float | None]:
        """The coefficient as this step used it; it is adapted for the next one."""
        if self.networks.reference is None:
            return {}
        metrics: dict[str, float | None] = {"kl_coefficient": self.networks.kl_coefficient}
        if kl is not None:
            self.networks.reference.adapt(kl)
        return metrics

    def _warming_up(self, index: int) -> bool:
        """Whether this step trains the critic alone."""
        policy_steps = self.config.algorithm.policy_steps
        return policy_steps(index) == policy_steps(index + 1)

    def _scale(self, index: int) -> float:
        """Factor of the policy's learning rate; 0 while the critic warms up."""
        policy_steps = self.config.algorithm.policy_steps
        if self._warming_up(index):
            return 0.0
        return self._schedule(policy_steps(index), policy_steps(self.config.steps))

    def _schedule(self, step: int, steps: int) -> float:
        return warmup_decay(step, steps=steps, warmup_steps=self.config.warmup, decay=self.config.decay)
