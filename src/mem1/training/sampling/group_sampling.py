"""Draws the tasks of a step and has each attempted by a group, in this process, on all ranks or by servers.

    tasks a b c d e on 2 ranks  ->  rank 0 attempts a c e, rank 1 attempts b d;  all have the groups of a b c d e

What is sampled for a task depends on the seed, the task and the number of the attempt, not on who samples it. With
servers, rollouts may run ahead of the trainer, in a thread (asynchronous reinforcement learning):

    staleness 1     trainer   | train 0 | train 1 | train 2 |        thread   | 0 | 1   | 2   | 3
                              weights 0 | 1       | 2

Rollout j begins when the weights of step j - staleness are published, so no token is older than that. Attempts under
way when newer weights arrive continue with them (`engines/base.py`): each token is marked with its weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from torch import nn

from mem1.algorithms.base import has_variance
from mem1.engines.base import Sampling
from mem1.engines.device import release_unused
from mem1.envs.base import TaskSource
from mem1.envs.tasks import made_tasks
from mem1.net.threads import Pool
from mem1.recipe.rl import Rl
from mem1.records import Group, Task, Trajectory, trajectory_from_json, trajectory_to_json
from mem1.rollout import RolloutPort, attempt_numbers
from mem1.training.monitoring.validation import Validation
from mem1.training.ranks.adapters import gather_along
from mem1.training.ranks.placement import SINGLE_PROCESS, Placement
from mem1.training.sampling.weight_sync import WeightSync

DRAW = 1_000_000_007
"""Distance between the seeds of two draws of a step; larger than that between the seeds of all steps of a run."""


@dataclass(frozen=True)
class Drawn:
    """Tasks to attempt, and how."""

    tasks: Sequence[Task]
    group_size: int
    """Attempts at each."""
    rollout: RolloutPort
    sampling: Sampling
    version: int
    """Version of the weights."""


@dataclass
class GroupSampler:
    """Samples the groups of each step of a stage. Every rank must call it alike."""

    model: nn.Module
    """The trained model, which servers get the weights of."""
    config: Rl
    rollout: RolloutPort
    source: TaskSource
    seed: int
    placement: Placement = SINGLE_PROCESS
    sync: WeightSync | None = None
    """On rank 0, the servers that sample; None: the ranks sample with the policy itself."""

    def __post_init__(self) -> None:
        self.served = self.placement.ranks.any(self.sync is not None)
        """Whether servers sample."""
        self._turns = self.placement.ranks.any(self.sync is not None and self.sync.sleeps)
        """Whether servers and trainer take turns on the same GPUs."""
        self._prefetcher: RolloutPrefetcher | None = None
        if self.sync is not None and self.config.max_staleness:
            self._prefetcher = RolloutPrefetcher(
                self._groups, steps=self.config.steps, staleness=self.config.max_staleness
            )

    def sample(self, step: int) -> list[Group]:
        """The groups of a step, with the present weights of the policy; every rank has all of them."""
        if not self.served:
            return self._groups(step)
        take = self._groups if self._prefetcher is None else self._prefetcher.take
        return self._from_servers(step, lambda: take(step))

    def validate(self, validation: Validation, step: int) -> list[Trajectory]:
        """A greedy attempt at each development task with the weights that `step` begins with; every rank has all."""
        sampling = Sampling(temperature=0.0, seed=validation.seed)
        drawn = Drawn(validation.tasks, 1, validation.rollout, sampling, self.config.version_at(step))
        groups = self._from_servers(step, lambda: self._attempted(drawn)) if self.served else self._attempted(drawn)
        return [attempt for group in groups for attempt in group.trajectories]

    def _publish(self, step: int) -> None:
        """Give the servers the weights of this step. All ranks gather them, one at a time; rank 0 writes them."""
        ranks, version, sync = self.placement.ranks, self.config.version_at(step), self.sync
        lacking = ranks.on_rank_zero(lambda: sync is not None and sync.lacks(version))

        def publish() -> None:
            if sync is not None:
                sync.push_weights(self.model, version)
            elif lacking:
                gather_along(self.model)

        ranks.on_each_rank(publish)
        if self._prefetcher is not None:
            self._prefetcher.published(step)

    def _from_servers(self, step: int, sample: Callable[[], list[Group]]) -> list[Group]:
        """What rank 0 has the servers sample, with the weights of the step, on every rank."""
        ranks = self.placement.ranks
        if self._turns:
            release_unused()
        self._publish(step)
        groups = sample() if ranks.size == 1 else _from_json(ranks.on_rank_zero(lambda: _to_json(sample())))
        if self._turns:
            ranks.on_rank_zero(lambda: self.sync and self.sync.sleep())
        return groups

    def _groups(self, step: int) -> list[Group]:
        """Draw and attempt the tasks of a step, and again in the place of groups without variance, if so configured."""
        self._raise_if_closed()
        sizes = self.config.objectives(step)
        first, count = step * self.config.tasks_per_step, self.config.tasks_per_step
        missing = Counter(sizes[i % len(sizes)] for i in range(first, first + count))
        groups: list[Group] = []
        for draw in range(self.config.algorithm.draws):
            seed = self.seed * 1_000_003 + step + draw * DRAW
            tasks = [
                task
                for objectives, count in missing.items()
                for task in made_tasks(self.source, objectives=objectives, count=count, seed=seed)
            ]
            sampling = Sampling(temperature=self.config.temperature, seed=seed)
            version = self.config.version_at(step)
            drawn = self._attempted(Drawn(tasks, self.config.group_size, self.rollout, sampling, version))
            groups += drawn
            pairs = zip(tasks, drawn, strict=True)
            missing -= Counter(task.objectives for task, group in pairs if has_variance(group))
            if not missing:
                break
        return groups

    def _attempted(self, drawn: Drawn) -> list[Group]:
        """A group for each task; on several ranks that sample, each attempts a share of the tasks."""
        ranks = self.placement.ranks
        if self.served or ranks.size == 1:
            return self._share(drawn, slice(None))
        own = slice(ranks.rank, None, ranks.size)
        shares = ranks.on_each_rank(lambda: _to_json(self._share(drawn, own)))
        # Each has every ranks.size-th task, so taking one of each in turn restores their order.
        return _from_json([row for row in chain.from_iterable(zip_longest(*shares)) if row is not None])

    def _share(self, drawn: Drawn, share: slice) -> list[Group]:
        """The groups of a share of the tasks, their attempts numbered as if all tasks were attempted here."""
        size = drawn.group_size
        repeated = [task for task in drawn.tasks for _ in range(size)]
        numbers = attempt_numbers(repeated)
        chosen = [t * size + n for t in range(len(drawn.tasks))[share] for n in range(size)]
        made = drawn.rollout(
            [repeated[i] for i in chosen],
            sampling=drawn.sampling,
            numbers=[numbers[i] for i in chosen],
            weights_version=drawn.version,
            progress=self._raise_if_closed,
        )
        if self.sync is not None and not all(attempt.ended.scorable for attempt in made):
            self.sync.check()  # an agent does not see why the model failed
        return [Group(trajectories=tuple(made[i : i + size])) for i in range(0, len(made), size)]

    def _raise_if_closed(self, _ended: Sequence[int] = ()) -> None:
        """Raises Cancelled if the run has ended: the rollout was made ahead of it."""
        if self._prefetcher is not None and self.sync is not None and self.sync.closed:
            raise Cancelled


def _to_json(groups: Sequence[Group]) -> list[list[dict[str, Any]]]:
    return [[trajectory_to_json(t) for t in group.trajectories] for group in groups]


def _from_json(rows: Sequence[Sequence[dict[str, Any]]]) -> list[Group]:
    return [Group(trajectories=tuple(map(trajectory_from_json, row))) for row in rows]


class Cancelled(Exception):
    """Nobody waits for this rollout any more."""


class RolloutPrefetcher:
    """A thread that samples the rollouts of the steps in order.

    prefetcher = RolloutPrefetcher(sample, steps=28, staleness=1)
    prefetcher.published(0)      the weights of step 0 are there: rollouts 0 and 1 begin
    prefetcher.take(0)           waits for rollout 0, while the thread continues with rollout 1
    """

    def __init__(self, sample: Callable[[int], list[Group]], *, steps: int, staleness: int) -> None:
        self._sample, self._steps, self._staleness = sample, steps, staleness
        self._thread = Pool(1)
        self._rollouts: dict[int, Future[list[Group]]] = {}
        self._begun: int | None = None

    def published(self, step: int) -> None:
        """Announce that the weights of this step can be sampled with; the first such step has the first rollout."""
        last = min(self._steps - 1, step + self._staleness)
        for number in range(step if self._begun is None else self._begun + 1, last + 1):
            self._rollouts[number] = self._thread.submit(self._sample, number)
        self._begun = last
        if last == self._steps - 1:
            self._thread.close()

    def take(self, step: int) -> list[Group]:
        """Wait for the rollout of this step and return it, or raise the error that sampling it raised."""
        return self._rollouts.pop(step).result()
