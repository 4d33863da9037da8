"""Metrics of attempts, validation of a run on development tasks while it trains, and the best policy that it has seen.

    every 10 steps      the policy attempts each development task once, greedily   ->   {"reward": 1.2, "em": 0.6, ...}
    runs/quick/best     the policy with the highest validation reward: a model folder, with step and reward in its
                        manifest.json

The sampler is that of training; the tasks are the same at every validation, and none is of the final evaluation. Means
are over the attempts whose tool and engine did not fail.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from mem1.configuration import plain
from mem1.durable import explain_full_disk, partial_of, put_folder, read_manifest, restore, sweep
from mem1.engines.codec import Codec, check_words
from mem1.envs.base import TaskSource
from mem1.envs.tasks import made_tasks
from mem1.memory import memory_spans
from mem1.policy.policy import Policy
from mem1.protocol import ACT, ANSWER, MALFORMED, SEARCH, Tags
from mem1.recipe.evaluation import Evaluation
from mem1.recipe.recipe import Recipe
from mem1.recipe.rollouts import recipe_rollout
from mem1.records import Ended, Task, Trajectory, Turn
from mem1.rollout import RolloutPort
from mem1.scoring import check_metrics
from mem1.tasks.compose import different
from mem1.training.checks import reencoded_share
from mem1.training.gradients.samples import versions
from mem1.training.monitoring.metrics_log import Metrics


def attempt_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float | dict[str, float] | None]:
    """Metrics of behaviour and reward; None where no attempt could be scored. Raises UserError for a metric of the
    environment that has the name of one of these."""
    scorable = [t for t in trajectories if t.ended.scorable]
    measured = dict.fromkeys(name for t in scorable for name in t.metrics)
    endings = Counter(str(t.ended) for t in trajectories)
    turns = [turn for t in scorable for turn in t.turns]
    searches = [float(sum(turn.action == SEARCH for turn in t.turns)) for t in scorable]
    memories = [spans for turn in turns if (spans := memory_spans(turn))]
    shops = any(turn.action == ACT for turn in turns)
    own: dict[str, float | dict[str, float] | None] = {
        "turns": mean([len(t.turns) for t in scorable]),
        "peak_tokens": mean([max((turn.num_tokens for turn in t.turns), default=0) for t in scorable]),
        "completion_tokens": mean([t.num_completion_tokens for t in scorable]),
        **({} if shops else {"searches": mean(searches)}),
        "valid_actions": mean([float(valid) for t in scorable for valid in _valid(t)]),
        "malformed": mean([float(turn.action == MALFORMED) for turn in turns]),
        "answer_tokens": mean([_length(turn, "action") for turn in turns if turn.action == ANSWER]),
        "state_tokens": mean([float(sum(stop - start for start, stop in spans)) for spans in memories]),
        "endings": {ending: float(number) for ending, number in sorted(endings.items())},
    }
    check_metrics(measured, {"reward", *own})
    return {
        "reward": mean([t.reward or 0.0 for t in scorable]),
        **{name: mean([mean(t.per_objective(name)) or 0.0 for t in scorable]) for name in measured or ("em", "f1")},
        **own,
    }


def _valid(trajectory: Trajectory) -> list[bool]:
    """Whether the action of each turn was carried out: not where it is malformed, or ended the attempt instead."""
    if not trajectory.turns:
        return []
    stopped = trajectory.ended is Ended.BAD_TAGS or (
        trajectory.ended is Ended.OUT_OF_TURNS and trajectory.turns[-1].action != ACT
    )
    valid = [turn.action != MALFORMED for turn in trajectory.turns]
    return [*valid[:-1], valid[-1] and not stopped]


def _length(turn: Turn, role: str) -> float:
    """Tokens of a part of the completion, tags included."""
    start, stop = turn.completion_spans.get(role, (0, 0))
    return float(stop - start)


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float | dict[str, float] | None]:
    """`attempt_metrics`, with what matters to training on the attempts."""
    versions_by_attempt = [{v for turn in t.turns for v, _ in versions(turn)} for t in trajectories if t.ended.scorable]
    return {
        **attempt_metrics(trajectories),
        "reencoded_share": reencoded_share(trajectories),
        "mixed_weights_share": mean([float(len(some) > 1) for some in versions_by_attempt]),
    }


def mean(numbers: Sequence[float]) -> float | None:
    """None for no numbers."""
    return sum(numbers) / len(numbers) if numbers else None


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Tasks of a validation, and its steps."""

    every: int
    """Steps between validations."""
    tasks: Sequence[Task]
    rollout: RolloutPort
    seed: int

    @classmethod
    def of(cls, config: Recipe, rollout: RolloutPort, tags: Tags, codec: Codec) -> Validation | None:
        """The validation of a recipe, with the engine of `rollout`; None: it has none.

        Raises UserError where its tasks cannot be drawn.
        """
        evaluation = config.evaluation
        if config.rl is None or not evaluation.every:
            return None
        developed = config.model_copy(update={"tasks": config.tasks.development()})
        source = developed.tasks.source("evaluation", tags)
        tasks = development_tasks(config, source)
        check_words(codec, tasks, tags, whose=config.model.name)
        own = recipe_rollout(developed, engine=rollout.engine, dialogue=rollout.dialogue, source=source)
        return cls(every=evaluation.every, tasks=tasks, rollout=own, seed=evaluation.seed)

    def due(self, done: int) -> bool:
        """Whether to validate once `done` steps are done."""
        return done % self.every == 0


def development_tasks(config: Recipe, source: TaskSource) -> list[Task]:
    """The tasks of a recipe's validation; none where it has no validation. Raises UserError where they cannot be drawn.

    source      the development split of the recipe's tasks
    """
    evaluation = config.evaluation
    if config.rl is None or not evaluation.every:
        return []
    sizes = evaluation.validation_objectives or config.rl.curriculum[-1].objectives
    count, seed = evaluation.validation_tasks, evaluation.seed
    drawn = (made_tasks(source, objectives=n, count=count, seed=seed, exactly=False) for n in dict.fromkeys(sizes))
    return [task for tasks in drawn for task in different(tasks)]


def validation_metrics(attempts: Sequence[Trajectory]) -> Metrics:
    """Means over all development tasks, and of each size where there are several; an attempt without score counts 0."""
    sizes = sorted({t.task.objectives for t in attempts if t.task is not None})
    by_size = {n: [t for t in attempts if t.task is not None and t.task.objectives == n] for n in sizes}
    each = {f"objectives_{n}": _metrics(of) for n, of in by_size.items()} if len(sizes) > 1 else {}
    return {**_metrics(attempts), **each}


def _metrics(attempts: Sequence[Trajectory]) -> dict[str, Any]:
    return {**attempt_metrics(attempts), "reward": sum(t.reward or 0.0 for t in attempts) / len(attempts)}


@dataclass(frozen=True)
class BestPolicy:
    """The folder of the best policy so far; it always holds a whole one."""

    folder: Path
    evaluation: Evaluation
    """Rewards are compared only with those that the same tasks have given."""

    @property
    def _tasks(self) -> dict[str, Any]:
        return plain(self.evaluation, ("every", "objectives", "tasks", "temperature"))

    def record(self) -> float | None:
        """Validation reward of the policy in the folder; None: there is none on these tasks."""
        restore(self.folder)
        manifest = read_manifest(self.folder)
        same = manifest is not None and manifest.facts.get("validation") == self._tasks
        return manifest.facts["reward"] if manifest is not None and same else None

    def replace(self, policy: Policy, *, step: int, reward: float, weights: Mapping[str, Tensor] | None = None) -> None:
        """Put this policy, with these weights or its own, into the folder.

        Raises UserError for a full disk; the former one is then still there."""
        sweep(self.folder)
        partial = partial_of(self.folder)
        facts = {"step": step, "reward": reward, "validation": self._tasks}
        try:
            with explain_full_disk(f"the best policy, of step {step}", "the last checkpoint is intact"):
                policy.save_sealed(partial, weights, facts=facts)
                put_folder(partial, self.folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
