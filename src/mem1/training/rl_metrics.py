"""What is logged of a step of reinforcement learning; every key has its line in docs/metrics.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mem1.algorithms.kl import kl_estimate
from mem1.algorithms.values import explained_variance
from mem1.records import Trajectory
from mem1.training.lessons import Lesson
from mem1.training.staleness import mixed
from mem1.training.verify.checks import reencoded_share


def about_attempts(trajectories: Sequence[Trajectory]) -> dict[str, float | dict[str, float] | None]:
    """What the attempts of a step were like; means over those whose tool did not fail, None where all did."""
    judged = [t for t in trajectories if t.ended.scorable]
    measured = dict.fromkeys(name for t in judged for name in t.metrics)
    endings = Counter(str(t.ended) for t in trajectories)
    return {
        "reward": _mean([t.reward or 0.0 for t in judged]),
        **{name: _mean([_share(t.per_objective(name)) for t in judged]) for name in measured or ("em", "f1")},
        "turns": _mean([len(t.turns) for t in judged]),
        "peak_tokens": _mean([max((turn.num_tokens for turn in t.turns), default=0) for t in judged]),
        "completion_tokens": _mean([t.num_completion_tokens for t in judged]),
        "reencoded_share": reencoded_share(trajectories),
        "mixed_weights_share": _mean([float(mixed(t)) for t in judged]),
        "endings": {ending: float(number) for ending, number in sorted(endings.items())},
    }


def _share(values: Sequence[float]) -> float:
    """The mean over the objectives of an attempt."""
    return sum(values) / (len(values) or 1)


def nothing_to_learn(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Why an algorithm that compares attempts learnt nothing in these steps (rows of metrics.jsonl); None: it did."""
    of_rl = [row for row in rows if "groups_with_variance" in row]
    if not of_rl or any(row["groups_with_variance"] for row in of_rl):
        return None
    rewards = [row["reward"] for row in of_rl if row["reward"] is not None]
    mean = f"{sum(rewards) / len(rewards):.2f}" if rewards else "not known, as every attempt's tool failed"
    return (
        f"in none of {len(of_rl)} steps did the rewards of a group differ, so there was nothing to learn from; the "
        f"mean reward was {mean}. Where every attempt fails, begin with a better policy or with fewer objectives "
        "(rl.phases); where every attempt succeeds, take more; otherwise raise rl.attempts or rl.temperature"
    )


def about_lessons(lessons: Sequence[Lesson]) -> dict[str, float | None]:
    """What was known before the first update: KL, importance weights, the critic; only what the recipe has."""
    metrics: dict[str, float | None] = {}
    tokens = sum(len(lesson.advantages_K) for lesson in lessons) or None
    if any(lesson.before.reference_K is not None for lesson in lessons):
        metrics["kl"] = tokens and _mean_kl(lessons)
    if any(lesson.weights_K is not None for lesson in lessons):
        metrics["capped_share"] = tokens and sum(lesson.capped for lesson in lessons) / tokens
    if any(lesson.returns_K is not None for lesson in lessons):
        values = [lesson.before.values_K for lesson in lessons]
        returns = [lesson.returns_K for lesson in lessons]
        metrics["explained_variance"] = tokens and explained_variance(_joined(values), _joined(returns))
    return metrics


def _mean_kl(lessons: Sequence[Lesson]) -> float:
    """KL from the reference in nats a sampled token, estimated by k3."""
    old_M = _joined([lesson.before.old_K for lesson in lessons])
    reference_M = _joined([lesson.before.reference_K for lesson in lessons])
    return float(kl_estimate(old_M, reference_M, "k3").mean())


def _joined(parts: Sequence[Tensor | None]) -> Tensor:
    return torch.cat([part for part in parts if part is not None] or [torch.zeros(0)])


@dataclass
class Totals:
    """Sums over the forward and backward passes of a step, all updates together."""

    loss: float = 0.0
    clipped: int = 0
    tokens: int = 0
    entropy: float = 0.0
    compared: int = 0
    difference: float = 0.0
    largest_difference: float = 0.0
    value_loss: float = 0.0
    values_clipped: int = 0
    staleness: Counter[int] = field(default_factory=Counter)
    """Optimiser steps behind -> tokens, of all passes."""
    updates: int = 0
    """Optimiser steps that had something to learn from."""
    norms: list[float] = field(default_factory=list)
    critic_norms: list[float] = field(default_factory=list)

    def merge(self, other: Totals) -> None:
        """The passes of another."""
        self.loss += other.loss
        self.clipped += other.clipped
        self.tokens += other.tokens
        self.entropy += other.entropy
        self.compared += other.compared
        self.difference += other.difference
        self.largest_difference = max(self.largest_difference, other.largest_difference)
        self.value_loss += other.value_loss
        self.values_clipped += other.values_clipped

    def add(self, *, loss: Tensor, clipped: int, entropy_M: Tensor) -> None:
        """One pass of the policy."""
        self.loss += loss.item()
        self.clipped += clipped
        self.tokens += len(entropy_M)
        self.entropy += float(entropy_M.detach().sum())

    def compare(self, trainer_M: Tensor, sampler_M: Tensor, same_M: Tensor) -> None:
        """Log-probs of the same tokens; those count of which `same_M` says that the same weights gave both."""
        difference_M = (trainer_M.detach() - sampler_M).abs()[same_M]
        if not len(difference_M):
            return
        self.compared += len(difference_M)
        self.difference += float(difference_M.sum())
        self.largest_difference = max(self.largest_difference, float(difference_M.max()))

    def metrics(self) -> dict[str, float | None]:
        """Means over the trained tokens, losses and norms over the updates; None where nothing was trained."""
        some = self.tokens or None
        stale = sum(steps * tokens for steps, tokens in self.staleness.items())
        return {
            "grad_norm": _mean(self.norms) or 0.0,
            "loss": self.loss / max(self.updates, 1),
            "clip_fraction": some and self.clipped / some,
            "entropy": some and self.entropy / some,
            "sampler_trainer_mean": self.difference / self.compared if self.compared else None,
            "sampler_trainer_max": self.largest_difference if self.compared else None,
            "staleness_mean": stale / self.staleness.total() if self.staleness else None,
            "staleness_max": float(max(self.staleness)) if self.staleness else None,
        }

    def critic_metrics(self) -> dict[str, float | None]:
        """The same of the critic."""
        some = self.tokens or None
        return {
            "value_loss": self.value_loss / max(self.updates, 1),
            "value_clip_fraction": some and self.values_clipped / some,
            "critic_grad_norm": _mean(self.critic_norms),
        }


def _mean(numbers: Sequence[float]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None
