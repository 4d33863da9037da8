"""Reinforcement learning on the outcome, on the token tree.

One step: draw tasks, let the policy attempt each G times, make a lesson of each attempt, and take the optimiser
steps of the recipe on mini-batches of them: one, unless it says otherwise. Step i is a pure function of the weights
(policy, critic, reference), the optimisers, the seed and i, so a resumed run repeats an unbroken one exactly; with
`max_staleness` its tasks are, and its rollout depends on which weights were there in time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from mem1.engines.base import Sampling
from mem1.envs.base import TaskSource
from mem1.records import Group, Task, Trajectory
from mem1.rollout import Rollout
from mem1.training.ahead import Abandoned, Ahead
from mem1.training.batches import minibatches
from mem1.training.lessons import Lesson, centred, groups_to_train, has_variance, judged_groups, make_lessons
from mem1.training.networks import Networks
from mem1.training.rank_rollouts import Attempts, in_groups, of_the_first, on_all_ranks
from mem1.training.ranks.optimizers import Optimizers, adamw, together, warmup_decay
from mem1.training.ranks.placement import SINGLE_PROCESS, Placement
from mem1.training.rl_config import Dapo, Ppo, Rejection, Rl
from mem1.training.rl_metrics import Totals, about_attempts, about_lessons
from mem1.training.sft import Metrics
from mem1.training.updates import Update, accumulate
from mem1.training.weights.policy import Policy
from mem1.training.weights.weight_sync import WeightSync

DRAW = 1_000_000_007
"""Between the seeds of two draws of a step; further apart than the seeds of all steps of a run."""


def weights_version(config: Rl, index: int) -> int:
    """Optimiser steps behind the policy when step `index` begins; that of the trained one is of step `config.steps`."""
    return _policy_step(config, index) * config.updates


def _policy_step(config: Rl, index: int) -> int:
    algorithm = config.algorithm
    return max(0, index - algorithm.critic_warmup) if isinstance(algorithm, Ppo) else index


@dataclass
class RlStage:
    """Any algorithm of `rl_config`; which one shows in `make_lessons` and `policy_loss` only."""

    policy: Policy
    config: Rl
    rollout: Rollout
    source: TaskSource
    seed: int
    workers: int = 1
    """Packs that are trained at a time."""
    place: Placement = SINGLE_PROCESS
    sync: WeightSync | None = None
    """On rank 0, the servers that sample; None: the ranks sample with the policy itself."""
    name: str = "rl"
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds of the last step by what they were spent on."""

    def __post_init__(self) -> None:
        self.networks = Networks.make(self.config, self.policy.model, place=self.place, workers=self.workers)
        self.model = self.networks.policy
        self._actor: Optimizers = adamw(self.model, self.config.learning_rate)
        self._critic: Optimizers | None = None
        if self.networks.critic is not None and isinstance(self.config.algorithm, Ppo):
            self._critic = adamw(self.networks.critic, self.config.algorithm.critic_learning_rate)
        self._served = self.place.ranks.any(self.sync is not None)
        self._ahead: Ahead | None = None
        if self.sync is not None and self.config.max_staleness:
            sync = self.sync
            self._ahead = Ahead(
                self._of_servers,
                steps=self.steps,
                staleness=self.config.max_staleness,
                closed=lambda: sync.closed,
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
        """G attempts at each task of this step.

        Every rank makes its share of the groups, or rank 0 has servers make all, and every rank has all in the end.
        """
        ranks = self.place.ranks
        self.place.sync_to_sampler(self.model, self.policy.model)
        if not self._served:
            return self._drawn(index, lambda tasks, rollout: on_all_ranks(ranks, tasks, self.config.attempts, rollout))
        ranks.on_rank_zero(lambda: self._tell_servers(index))
        return of_the_first(ranks, lambda: self._of_servers(index) if self._ahead is None else self._ahead.take(index))

    def _of_servers(self, index: int) -> list[Group]:
        """The rollout of a step, by rank 0 and its servers alone."""
        return self._drawn(index, lambda tasks, rollout: in_groups(tasks, self.config.attempts, rollout))

    def _drawn(self, index: int, attempt: Callable[[Sequence[Task], Attempts], list[Group]]) -> list[Group]:
        """The groups of a step; for dapo drawn again in the place of those without variance."""
        sizes = self.config.objectives(index)
        missing = Counter(sizes[i % len(sizes)] for i in range(self.config.groups))
        algorithm = self.config.algorithm
        groups: list[Group] = []
        for draw in range(algorithm.max_draws if isinstance(algorithm, Dapo) else 1):
            drawn = self._draw(missing, index, draw, attempt)
            groups += (group for _, group in drawn)
            missing -= Counter(objectives for objectives, group in drawn if has_variance(group))
            if not missing:
                break
        return groups

    def _tell_servers(self, index: int) -> None:
        if self.sync is not None:
            self.sync.push_weights(self.policy.model, self._version(index))
        if self._ahead is not None:
            self._ahead.published(index)

    def _draw(
        self,
        per_size: Mapping[int, int],
        index: int,
        draw: int,
        attempt: Callable[[Sequence[Task], Attempts], list[Group]],
    ) -> list[tuple[int, Group]]:
        """(objectives, group) of so many new tasks of each size; a function of the step and the draw."""
        seed = self.seed * 1_000_003 + index + draw * DRAW
        tasks = [
            task
            for objectives, count in per_size.items()
            for task in self.source.tasks(objectives=objectives, count=count, seed=seed)
        ]
        sampling = Sampling(temperature=self.config.temperature, seed=seed)

        def rollout(own: Sequence[Task], numbers: Sequence[int]) -> list[Trajectory]:
            return self.rollout(
                own,
                sampling=sampling,
                numbers=numbers,
                weights_version=self._version(index),
                progress=None if self._ahead is None else self._go_on,
            )

        groups = attempt(tasks, rollout)
        return [(task.objectives, group) for task, group in zip(tasks, groups, strict=True)]

    def _go_on(self, *_: int) -> None:
        """Raises Abandoned where the run has ended while rollouts were made ahead of it."""
        if self.sync is not None and self.sync.closed:
            raise Abandoned

    def _warming(self, index: int) -> bool:
        """The critic learns and the policy does not."""
        return isinstance(self.config.algorithm, Ppo) and index < self.config.algorithm.critic_warmup

    def _policy_step(self, index: int) -> int:
        """Steps behind the policy: those in which the critic warmed up do not count."""
        return _policy_step(self.config, index)

    def _version(self, index: int) -> int:
        """Optimiser steps behind the policy when step `index` begins."""
        return weights_version(self.config, index)

    def update(self, groups: Sequence[Group], index: int) -> Metrics:
        """The optimiser steps on one rollout."""
        judged = judged_groups(self.config, groups)
        lessons_by_group = self._lessons(groups)
        if self.networks.critic is not None:
            lessons_by_group = centred(self.networks.critic, lessons_by_group)
        totals = Totals()
        parts = minibatches(
            lessons_by_group,
            count=self.config.minibatches,
            epochs=self.config.updates_per_rollout,
            seed=f"{self.seed}/rl/{index}",
        )
        for number, part in enumerate(parts):
            self._optimiser_step(part, index, number, totals)
        lessons = [lesson for group in lessons_by_group for lesson in group]
        known = about_lessons(lessons)
        return {
            **about_attempts([t for group in groups for t in group.trajectories]),
            "groups_with_variance": sum(map(has_variance, groups)) / len(groups),
            "groups_skipped": float(len(groups) - len(judged)),
            "skipped_too_few": float(not judged),
            "skipped_equal": float(bool(judged) and not totals.updates),
            "learning_rate": self.config.learning_rate * self._scale(index),
            **totals.metrics(),
            **known,
            **self._metrics_of_the_algorithm(groups, lessons, totals, known.get("kl")),
        }

    def _lessons(self, groups: Sequence[Group]) -> list[list[Lesson]]:
        trained = groups_to_train(self.config, groups)
        if not trained:
            return []
        return make_lessons(
            self.config,
            trained,
            self.networks.before([group.trajectories for group in trained]),
            kl_coefficient=self.networks.kl_coefficient,
        )

    def _optimiser_step(self, part: Sequence[Sequence[Lesson]], index: int, number: int, totals: Totals) -> None:
        """The `number`th on the rollout of step `index`."""
        warming = self._warming(index)
        begun = self._version(index)
        update = Update(version=begun + (0 if warming else number), begun=begun, first=number == 0, frozen=warming)
        if not accumulate(self.networks, part, totals, update):
            return
        if not warming:
            totals.norms.append(self._actor.step(scale=self._scale(index), max_grad_norm=self.config.max_grad_norm))
        if self._critic is not None:
            scale = self._schedule(index, self.config.steps)
            totals.critic_norms.append(self._critic.step(scale=scale, max_grad_norm=self.config.max_grad_norm))

    def _metrics_of_the_algorithm(
        self, groups: Sequence[Group], lessons: Sequence[Lesson], totals: Totals, kl: float | None
    ) -> dict[str, float | None]:
        """What only some recipes have. Adapts the KL coefficient, which is logged as this step used it."""
        metrics: dict[str, float | None] = {}
        if self.networks.critic is not None:
            metrics |= totals.critic_metrics()
        if self.networks.reference is not None:
            metrics["kl_coefficient"] = self.networks.kl_coefficient
            if kl is not None:
                self.networks.reference.adapt(kl)
        if isinstance(self.config.algorithm, Dapo):
            metrics["groups_drawn"] = float(len(groups))
        if isinstance(self.config.algorithm, Rejection):
            metrics["accepted_share"] = len(lessons) / sum(len(group.trajectories) for group in groups)
        return metrics

    def _scale(self, index: int) -> float:
        """Of the policy's learning rate; 0 while the critic warms up."""
        if self._warming(index):
            return 0.0
        return self._schedule(self._policy_step(index), self._policy_step(self.config.steps))

    def _schedule(self, step: int, steps: int) -> float:
        return warmup_decay(step, steps=steps, warmup_steps=self.config.warmup, decay=self.config.decay)
