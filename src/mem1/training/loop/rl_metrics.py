"""Metrics of a step of reinforcement learning; every key has its line in docs/metrics.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mem1.algorithms.kl import kl_estimate
from mem1.algorithms.ppo import explained_variance
from mem1.records import Trajectory
from mem1.training.gradients.samples import TrainingSample, versions
from mem1.training.gradients.update import PassStats
from mem1.training.verify.checks import reencoded_share


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float | dict[str, float] | None]:
    """Metrics of the attempts of a step; means over those whose tool did not fail, None where all did."""
    scorable = [t for t in trajectories if t.ended.scorable]
    measured = dict.fromkeys(name for t in scorable for name in t.metrics)
    endings = Counter(str(t.ended) for t in trajectories)
    return {
        "reward": _mean([t.reward or 0.0 for t in scorable]),
        **{name: _mean([_share(t.per_objective(name)) for t in scorable]) for name in measured or ("em", "f1")},
        "turns": _mean([len(t.turns) for t in scorable]),
        "peak_tokens": _mean([max((turn.num_tokens for turn in t.turns), default=0) for t in scorable]),
        "completion_tokens": _mean([t.num_completion_tokens for t in scorable]),
        "reencoded_share": reencoded_share(trajectories),
        "mixed_weights_share": _mean([float(_mixed(t)) for t in scorable]),
        "endings": {ending: float(number) for ending, number in sorted(endings.items())},
    }


def _share(values: Sequence[float]) -> float:
    """The mean over the objectives of an attempt."""
    return sum(values) / (len(values) or 1)


def _mixed(trajectory: Trajectory) -> bool:
    """Whether more than one version of the weights sampled it."""
    return len({version for turn in trajectory.turns for version, _ in versions(turn)}) > 1


def nothing_to_learn(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Why an algorithm that compares attempts learnt nothing in these steps (rows of metrics.jsonl); None: it did."""
    of_rl = [row for row in rows if "groups_with_variance" in row]
    if not of_rl or any(row["groups_with_variance"] for row in of_rl):
        return None
    rewards = [row["reward"] for row in of_rl if row["reward"] is not None]
    average = f"{sum(rewards) / len(rewards):.2f}" if rewards else "unknown, as every attempt's tool failed"
    return (
        f"in none of {len(of_rl)} steps did the rewards of a group differ, so there was nothing to learn from; the "
        f"mean reward was {average}. Where every attempt fails, begin with a better policy or with fewer objectives "
        "(rl.curriculum); where every attempt succeeds, take more; otherwise raise rl.group_size or rl.temperature"
    )


def sample_metrics(samples: Sequence[TrainingSample]) -> dict[str, float | None]:
    """Metrics from before the first update: KL, importance weights, the critic; only those that the recipe has."""
    metrics: dict[str, float | None] = {}
    tokens = sum(len(sample.advantages_K) for sample in samples) or None
    if any(sample.old.reference_K is not None for sample in samples):
        metrics["kl"] = tokens and _mean_kl(samples)
    if any(sample.weights_K is not None for sample in samples):
        metrics["capped_share"] = tokens and sum(sample.capped for sample in samples) / tokens
    if any(sample.returns_K is not None for sample in samples):
        values_M = _concat([sample.old.values_K for sample in samples])
        returns_M = _concat([sample.returns_K for sample in samples])
        metrics["explained_variance"] = tokens and explained_variance(values_M, returns_M)
    return metrics


def _mean_kl(samples: Sequence[TrainingSample]) -> float:
    """KL from the reference in nats per sampled token, estimated by k3."""
    old_M = _concat([sample.old.old_K for sample in samples])
    reference_M = _concat([sample.old.reference_K for sample in samples])
    return float(kl_estimate(old_M, reference_M, "k3").mean())


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
            "grad_norm": _mean(self.norms) or 0.0,
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
            "critic_grad_norm": _mean(self.critic_norms),
        }


def _mean(numbers: Sequence[float]) -> float | None:
    """None for no numbers."""
    return sum(numbers) / len(numbers) if numbers else None
