"""Reinforcement learning on the outcome, on the token tree.

One step: draw tasks, let the policy attempt each G times, make a training sample of each attempt, and take the
optimiser steps of the recipe on mini-batches of them: one by default. Step i is a pure function of the weights (policy,
critic, reference), the optimisers, the seed and i, so a resumed run repeats an unbroken one exactly; with
`max_staleness` its tasks are, but its rollout depends on which weights were published in time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from mem1.algorithms.base import has_variance
from mem1.algorithms.losses import kl_estimate
from mem1.algorithms.ppo import explained_variance
from mem1.engines.out_of_memory import SAMPLING, TRAINING, memory_named
from mem1.envs.base import TaskSource
from mem1.policy.policy import Policy
from mem1.recipe.rl import Rl
from mem1.records import Group, Trajectory
from mem1.rollout import RolloutPort
from mem1.scoring import check_metrics
from mem1.training.gradients.actor_critic import ActorCritic
from mem1.training.gradients.samples import TrainingSample, make_samples, minibatches, scorable_groups, versions
from mem1.training.gradients.update import OptimizerStep, PassStats, accumulate
from mem1.training.monitoring.metrics_log import Metrics
from mem1.training.monitoring.validation import Validation, mean, rollout_metrics, validation_metrics
from mem1.training.ranks.optimizers import Optimizers, adamw, together, warmup_decay
from mem1.training.ranks.placement import SINGLE_PROCESS, Placement
from mem1.training.sampling.group_sampling import GroupSampler
from mem1.training.sampling.weight_sync import WeightSync


@dataclass
class RlStage:
    """Any algorithm: what sets one apart is in the object `config.algorithm`."""

    policy: Policy
    config: Rl
    rollout: RolloutPort
    source: TaskSource
    seed: int
    workers: int = 1
    """Packs trained at a time."""
    placement: Placement = SINGLE_PROCESS
    sync: WeightSync | None = None
    """On rank 0, the servers that sample; None: the ranks sample with the policy itself."""
    validation: Validation | None = None
    name: str = "rl"
    untouched: bool = True
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds of the last step by what they were spent on."""
    groups: Sequence[Group] = ()
    """Attempts of the last step."""

    def __post_init__(self) -> None:
        self.networks = ActorCritic.make(self.config, self.policy.model, placement=self.placement, threads=self.workers)
        self.model = self.networks.policy
        given = {"weight_decay": self.config.weight_decay, "beta2": self.config.beta2}
        self._actor: Optimizers = adamw(self.model, self.config.learning_rate, **given)
        self._critic: Optimizers | None = None
        critic_config = self.config.algorithm.critic_config
        if self.networks.critic is not None and critic_config is not None:
            self._critic = adamw(self.networks.critic, critic_config.critic_learning_rate, **given)
        self._sampler = GroupSampler(
            self.model, self.config, self.rollout, self.source, self.seed, self.placement, self.sync
        )
        self.optimizers = together(*(o for o in (self._actor, self._critic) if o is not None))

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """State for a checkpoint besides the policy and the optimisers."""
        return self.networks.modules

    @property
    def steps(self) -> int:
        return self.config.steps

    def step(self, index: int) -> Metrics:
        """One rollout and its optimiser steps."""
        started = time.perf_counter()
        with memory_named("sampling", SAMPLING):
            self.groups = groups = self.sample(index)
        sampled = time.perf_counter()
        with memory_named("training on the attempts", TRAINING.format(stage="rl")):
            metrics = self.update(groups, index)
        updated = time.perf_counter()
        tokens = sum(t.num_completion_tokens for group in groups for t in group.trajectories)
        self.timings = {
            "rollout": sampled - started,
            "update": updated - sampled,
            "sampled_tokens_per_second": tokens / (sampled - started),
        }
        return metrics

    def validated(self, done: int) -> Metrics | None:
        """Metrics on the development tasks of the policy after `done` steps; None: no validation is due."""
        if self.validation is None or not self.validation.due(done):
            return None
        with memory_named("sampling for the validation", SAMPLING):
            if not self._sampler.served:
                self.placement.sync_to_sampler(self.model, self.policy.model)
            return validation_metrics(self._sampler.validate(self.validation, done))

    def sample(self, index: int) -> list[Group]:
        """G attempts at each task of this step."""
        if not self._sampler.served:
            self.placement.sync_to_sampler(self.model, self.policy.model)
        return self._sampler.sample(index)

    def update(self, groups: Sequence[Group], index: int) -> Metrics:
        """The optimiser steps on one rollout."""
        algorithm = self.config.algorithm
        scorable = scorable_groups(algorithm, groups)
        samples_by_group: list[list[TrainingSample]] = []
        if kept := algorithm.keep_groups(scorable):
            old = self.networks.old_policy_stats([group.trajectories for group in kept])
            made = make_samples(self.config, kept, old, kl_coefficient=self.networks.kl_coefficient)
            self.untouched = self._critic is None
            samples_by_group = self.networks.centre_critic(made)
        stats = StepStats()
        parts = minibatches(
            samples_by_group, count=self.config.minibatches, epochs=self.config.epochs, seed=f"{self.seed}/rl/{index}"
        )
        for number, part in enumerate(parts):
            self._optimizer_step(part, index, number, stats)
        samples = [sample for group in samples_by_group for sample in group]
        before = sample_metrics(samples)
        attempts = [t for group in groups for t in group.trajectories]
        own = {
            "groups_with_variance": sum(map(has_variance, groups)) / len(groups),
            "groups_skipped": float(len(groups) - len(scorable)),
            "skipped_too_few": float(not scorable),
            "skipped_equal": float(bool(scorable) and not stats.updates),
            "learning_rate": self.config.learning_rate * self._scale(index),
            **stats.metrics(),
            **before,
            **(stats.critic_metrics() if self._critic is not None else {}),
            **self._kl_metrics(before.get("kl"), moved=stats.updates > 0 and not self._warming_up(index)),
            **algorithm.metrics(groups=len(groups), attempts=len(attempts), kept=len(samples)),
        }
        check_metrics((name for attempt in attempts for name in attempt.metrics), own)
        return {**rollout_metrics(attempts), **own}

    def _optimizer_step(
        self, part: Sequence[Sequence[TrainingSample]], index: int, number: int, stats: StepStats
    ) -> None:
        """The `number`th on the rollout of step `index`."""
        warming = self._warming_up(index)
        begun = self.config.version_at(index)
        step = OptimizerStep(version=begun + (0 if warming else number), begun=begun, first=number == 0, frozen=warming)
        trained = accumulate(self.networks, part, stats.passes, step)
        if not trained:
            return
        stats.updates += 1
        self.untouched = False
        stats.staleness.update(staleness(trained, step.version))
        if not warming:
            stats.norms.append(self._actor.step(scale=self._scale(index), max_grad_norm=self.config.max_grad_norm))
        if self._critic is not None:
            critic = self.config.algorithm.critic_config
            scale = self._schedule(index, self.config.steps, critic.critic_rate_warmup if critic else None)
            stats.critic_norms.append(self._critic.step(scale=scale, max_grad_norm=self.config.max_grad_norm))

    def _kl_metrics(self, kl: float | None, *, moved: bool) -> dict[str, float | None]:
        """The coefficient as this step used it; it is adapted for the next one if the policy has moved."""
        if self.networks.reference is None:
            return {}
        metrics: dict[str, float | None] = {"kl_coefficient": self.networks.kl_coefficient}
        if kl is not None and moved:
            self.untouched = False
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

    def _schedule(self, step: int, steps: int, warmup: int | None = None) -> float:
        rising = self.config.warmup if warmup is None else warmup
        return warmup_decay(step, steps=steps, warmup_steps=rising, decay=self.config.decay)


def sample_metrics(samples: Sequence[TrainingSample]) -> dict[str, float | None]:
    """Metrics from before the first update: KL from the reference in nats per sampled token (k3), importance weights,
    the critic; only those that the recipe has."""
    metrics: dict[str, float | None] = {}
    tokens = sum(len(sample.advantages_K) for sample in samples) or None
    if any(sample.old.reference_K is not None for sample in samples):
        old_M, reference_M = (_concat([getattr(x.old, name) for x in samples]) for name in ("old_K", "reference_K"))
        metrics["kl"] = tokens and float(kl_estimate(old_M, reference_M, "k3").mean())
    if any(sample.weights_K is not None for sample in samples):
        metrics["capped_share"] = tokens and sum(sample.capped for sample in samples) / tokens
    if any(sample.returns_K is not None for sample in samples):
        values_M = _concat([sample.old.values_K for sample in samples])
        returns_M = _concat([sample.returns_K for sample in samples])
        metrics["explained_variance"] = tokens and explained_variance(values_M, returns_M)
    return metrics


def _concat(parts: Sequence[Tensor | None]) -> Tensor:
    return torch.cat([part for part in parts if part is not None] or [torch.zeros(0)])


def staleness(trajectories: Sequence[Trajectory], version: int) -> Counter[int]:
    """Number of tokens by optimiser steps between the weights that sampled them and those of `version`.

    a turn of 5 tokens, 3 by version 6 and 2 by version 7, trained by version 8   ->   {2: 3, 1: 2}
    """
    found: Counter[int] = Counter()
    for turn in (turn for t in trajectories for turn in t.turns):
        for sampled, tokens in versions(turn):
            found[version - sampled] += tokens
    return found


@dataclass
class StepStats:
    """Statistics of all optimiser steps on one rollout."""

    passes: PassStats = field(default_factory=PassStats)
    """Sums over the forward and backward passes."""
    staleness: Counter[int] = field(default_factory=Counter)
    """Number of trained tokens by their staleness in optimiser steps, counted in every pass."""
    updates: int = 0
    """Optimiser steps that had something to learn from."""
    norms: list[float] = field(default_factory=list)
    """Gradient norms of the policy."""
    critic_norms: list[float] = field(default_factory=list)

    def metrics(self) -> dict[str, float | None]:
        """Means over the trained tokens, losses and norms over the updates; None where nothing was trained."""
        sums, tokens = self.passes, self.passes.tokens or None
        stale = sum(steps * count for steps, count in self.staleness.items())
        return {
            "grad_norm": mean(self.norms) or 0.0,
            "loss": sums.loss / max(self.updates, 1),
            "clip_fraction": tokens and sums.clipped / tokens,
            "entropy": tokens and sums.entropy / tokens,
            "sampler_trainer_mean": sums.difference / sums.compared if sums.compared else None,
            "sampler_trainer_max": sums.largest_difference if sums.compared else None,
            "staleness_mean": stale / self.staleness.total() if self.staleness else None,
            "staleness_max": float(max(self.staleness)) if self.staleness else None,
        }

    def critic_metrics(self) -> dict[str, float | None]:
        """The same for the critic."""
        tokens = self.passes.tokens or None
        return {
            "value_loss": self.passes.value_loss / max(self.updates, 1),
            "value_clip_fraction": tokens and self.passes.values_clipped / tokens,
            "critic_grad_norm": mean(self.critic_norms),
        }
