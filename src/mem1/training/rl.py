"""Reinforcement learning on the outcome: GRPO on the token tree.

One step: draw tasks, let the policy attempt each G times, compare the attempts of a group, and take one
optimiser step on all of them. Step i is a pure function of the weights, the optimiser, the seed and i, so a
resumed run repeats an unbroken one exactly.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from mem1.algorithms.grpo import group_advantages
from mem1.algorithms.surrogate import clipped_surrogate
from mem1.engines.base import Sampling
from mem1.envs.source import TaskSource
from mem1.packing import pack
from mem1.records import Group, Trajectory
from mem1.rollout import Rollout
from mem1.training.checks import reencoded_share
from mem1.training.config import Rl
from mem1.training.logprobs import completion_logprobs, flat_logprobs
from mem1.training.optimizers import Optimizers, adamw, warmup
from mem1.training.policy import Policy
from mem1.training.sft import Metrics

Advised = tuple[Trajectory, float]
"""A trajectory and its advantage."""


@dataclass
class RlStage:
    """GRPO; a trajectory's one advantage is put on every sampled token of all its turns."""

    policy: Policy
    config: Rl
    rollout: Rollout
    source: TaskSource
    seed: int
    name: str = "rl"
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds of the last step by what they were spent on."""

    def __post_init__(self) -> None:
        self.optimizers: Optimizers = adamw(self.policy.model, self.config.learning_rate)

    @property
    def steps(self) -> int:
        return self.config.steps

    def step(self, index: int) -> Metrics:
        """One rollout and one optimiser step."""
        started = time.perf_counter()
        groups = self.sample(index)
        sampled = time.perf_counter()
        metrics = self.update(groups, index)
        self.timings = {"rollout": sampled - started, "update": time.perf_counter() - sampled}
        return metrics

    def sample(self, index: int) -> list[Group]:
        """G attempts at each task of this step."""
        seed = self.seed * 1_000_003 + index
        sizes = self.config.objectives(index)
        per_size = Counter(sizes[i % len(sizes)] for i in range(self.config.groups))
        tasks = [
            task
            for objectives, count in per_size.items()
            for task in self.source.tasks(objectives=objectives, count=count, seed=seed)
        ]
        attempts = self.rollout(
            [task for task in tasks for _ in range(self.config.attempts)],
            sampling=Sampling(temperature=self.config.temperature, seed=seed),
            weights_version=index,
        )
        size = self.config.attempts
        return [Group(trajectories=tuple(attempts[i : i + size])) for i in range(0, len(attempts), size)]

    def update(self, groups: Sequence[Group], index: int) -> Metrics:
        """One optimiser step on all groups; those whose rewards are all equal have no gradient."""
        advised = [list(zip(group.trajectories, group_advantages(group.rewards), strict=True)) for group in groups]
        telling = [pairs for pairs in advised if any(advantage for _, advantage in pairs)]
        trajectories = [t for group in groups for t in group.trajectories]
        denominator = float(sum(t.num_completion_tokens for t in trajectories))
        totals = _Totals()
        for micro_batch in self._micro_batches(telling):
            self._backward(micro_batch, denominator, totals)
        scale = warmup(index, self.config.warmup)
        norm = self.optimizers.step(scale=scale, max_grad_norm=self.config.max_grad_norm) if telling else 0.0
        return {
            **_about(trajectories),
            "groups_with_variance": len(telling) / len(groups),
            "grad_norm": norm,
            "learning_rate": self.config.learning_rate * scale,
            **totals.metrics(),
        }

    def _micro_batches(self, telling: Sequence[list[Advised]]) -> list[list[Advised]]:
        """Whole groups, so that they share their prompt; `pack_tokens` at most unless one alone has more."""
        batches: list[list[Advised]] = []
        size = 0
        for pairs in telling:
            tokens = sum(turn.num_tokens for t, _ in pairs for turn in t.turns)
            if not batches or size + tokens > self.config.pack_tokens:
                batches.append([])
                size = 0
            batches[-1] += pairs
            size += tokens
        return batches

    def _backward(self, batch: Sequence[Advised], denominator: float, totals: _Totals) -> None:
        trajectories = [t for t, _ in batch]
        model, temperature = self.policy.model, self.config.temperature
        if self.config.packed:
            logprobs_M, entropy_M = flat_logprobs(model, pack(trajectories), temperature=temperature, with_entropy=True)
        else:
            unpacked = completion_logprobs(model, trajectories, temperature=temperature, packed=False)
            logprobs_M, entropy_M = torch.cat([turn for turns in unpacked for turn in turns]), None
        old_M = torch.tensor([p for t in trajectories for turn in t.turns for p in turn.logprobs])
        advantages_M = torch.tensor([a for t, a in batch for _ in range(t.num_completion_tokens)])
        old_M, advantages_M = old_M.to(logprobs_M.device), advantages_M.to(logprobs_M.device)
        surrogate = clipped_surrogate(
            logprobs_M,
            old_M,
            advantages_M,
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
            denominator=denominator,
        )
        surrogate.loss.backward()
        totals.add(surrogate.loss, surrogate.clipped, entropy_M, (logprobs_M.detach() - old_M).abs())


@dataclass
class _Totals:
    """Sums over the micro-batches of a step."""

    loss: float = 0.0
    clipped: int = 0
    tokens: int = 0
    entropy: float | None = 0.0
    """None: not computed, because contexts are not packed."""
    difference: float = 0.0
    largest_difference: float = 0.0

    def add(self, loss: torch.Tensor, clipped: int, entropy_M: torch.Tensor | None, difference_M: torch.Tensor) -> None:
        self.loss += loss.item()
        self.clipped += clipped
        self.tokens += len(difference_M)
        self.entropy = None if entropy_M is None or self.entropy is None else self.entropy + float(entropy_M.sum())
        self.difference += float(difference_M.sum())
        self.largest_difference = max(self.largest_difference, float(difference_M.max()))

    def metrics(self) -> dict[str, float | None]:
        """Means over the trained tokens; None where no group had anything to teach."""
        some = self.tokens or None
        return {
            "loss": self.loss,
            "clip_fraction": some and self.clipped / some,
            "entropy": some and self.entropy and self.entropy / some,
            "sampler_trainer_mean": some and self.difference / some,
            "sampler_trainer_max": some and self.largest_difference,
        }


def _about(trajectories: Sequence[Trajectory]) -> dict[str, float | dict[str, float]]:
    """What the attempts of a step were like; means over trajectories."""
    count = len(trajectories)
    endings = Counter(str(t.ended) for t in trajectories)
    return {
        "reward": sum(t.reward or 0.0 for t in trajectories) / count,
        "em": sum(sum(t.em) / len(t.em) for t in trajectories) / count,
        "f1": sum(sum(t.f1) / len(t.f1) for t in trajectories) / count,
        "turns": sum(len(t.turns) for t in trajectories) / count,
        "peak_tokens": sum(max((turn.num_tokens for turn in t.turns), default=0) for t in trajectories) / count,
        "completion_tokens": sum(t.num_completion_tokens for t in trajectories) / count,
        "reencoded_share": reencoded_share(trajectories),
        "endings": {ending: float(number) for ending, number in sorted(endings.items())},
    }
