"""Training samples: a trajectory with its tokens' advantages, and what the new policy is compared with.

    groups of trajectories  +  statistics of the old policy  ->  groups of samples  ->  mini-batches of them

Everything in a sample is fixed before the first update on a rollout and the same in all of them. A trajectory's *raw*
reward is the environment's; the *shaped* reward, of which advantages are made, may hold penalties on top.

Letters: K sampled tokens of one trajectory, in the order in which they were generated.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

from torch import Tensor

from mem1.algorithms.base import Advantages, Algorithm, Attempt, one_for_each
from mem1.algorithms.losses import Importance, kl_estimate, truncated_weights
from mem1.errors import UserError
from mem1.recipe.rl import Rl
from mem1.records import Group, Span, Trajectory, Turn, VersionRun

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OldPolicyStats:
    """Statistics of one trajectory before the first update; all on the CPU and without gradient."""

    sampler_K: Tensor
    """Log-probs that the sampler recorded."""
    old_K: Tensor
    """Log-probs of the old policy: the trainer's, where they were recomputed, else the sampler's."""
    reference_K: Tensor | None = None
    """Log-probs of the reference policy; None: no KL penalty."""
    values_K: Tensor | None = None
    """The critic's values; None: no critic."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingSample:
    """One trajectory with everything that its updates need."""

    trajectory: Trajectory
    old: OldPolicyStats
    advantages_K: Tensor
    trained_throughout: bool = True
    """Every token has a gradient, of a critic, the entropy or the KL; False: those with an advantage."""
    returns_K: Tensor | None = None
    """Targets of the critic; None: no critic."""
    weights_K: Tensor | None = None
    """Importance weights; None: 1."""
    capped: int = 0
    """Number of tokens whose importance weight is the cap."""

    def has_gradient(self, tokens: Span) -> bool:
        """Whether any of these sampled tokens has; the others only count in the denominator."""
        start, stop = tokens
        return start < stop and (self.trained_throughout or bool(self.advantages_K[start:stop].any()))


def scorable_groups(algorithm: Algorithm, groups: Sequence[Group]) -> list[Group]:
    """The groups without attempts whose tool failed, which say nothing about the policy.

    A group left with too few attempts for the algorithm is dropped; so are all groups of a step with too few in total.
    """
    scorable = (tuple(t for t in group.trajectories if t.ended.scorable) for group in groups)
    enough = [Group(trajectories=left) for left in scorable if len(left) >= algorithm.min_attempts_per_task]
    return enough if sum(len(group.trajectories) for group in enough) >= algorithm.min_attempts_per_step else []


def make_samples(
    config: Rl, groups: Sequence[Group], old: Sequence[Sequence[OldPolicyStats]], *, kl_coefficient: float = 0.0
) -> list[list[TrainingSample]]:
    """Samples by group, of the attempts that the algorithm keeps; `old` has one entry per attempt.

    Raises UserError where its advantages, or the critic's targets, are not one finite number per sampled token.
    """
    algorithm = config.algorithm
    attempts = [
        [
            Attempt(
                trajectory=t,
                shaped_reward=algorithm.shaped_reward(reward, t),
                kl_penalty_K=_kl_penalty(config, stats, kl_coefficient),
                values_K=stats.values_K,
            )
            for t, reward, stats in zip(group.trajectories, group.rewards, of_group, strict=True)
        ]
        for group, of_group in zip(groups, old, strict=True)
    ]
    samples = [
        [
            TrainingSample(trajectory=t, old=stats, advantages_K=found.advantages_K, returns_K=found.returns_K)
            for t, stats, found in zip(group.trajectories, of_group, advantages, strict=True)
            if found is not None
        ]
        for group, of_group, advantages in zip(groups, old, _advantages(algorithm, attempts), strict=True)
    ]
    in_loss = config.kl is not None and config.kl.where == "loss"
    always = algorithm.critic_config is not None or config.entropy > 0 or in_loss
    return [[_finished(config.importance, sample, always) for sample in group] for group in samples]


def _advantages(algorithm: Algorithm, attempts: Sequence[Sequence[Attempt]]) -> list[list[Advantages | None]]:
    whose = f"advantages of {type(algorithm).__name__}"
    found = one_for_each(algorithm.advantages(attempts), attempts, whose, "Advantages, or None, for each attempt")
    for attempt, of_one in zip(chain(*attempts), chain(*found), strict=True):
        tokens = attempt.trajectory.num_completion_tokens
        if not isinstance(of_one, Advantages | None):
            raise UserError(f"{whose} returned {of_one!r:.80} for an attempt; return Advantages, or None")
        for values in () if of_one is None else (of_one.advantages_K, of_one.returns_K):
            if not isinstance(values, Tensor | None):
                raise UserError(f"{whose} returned a {type(values).__name__} of numbers; return a tensor")
            if values is not None and values.shape != (tokens,):
                raise UserError(
                    f"{whose} returned a tensor of shape {tuple(values.shape)} for an attempt with {tokens} sampled "
                    "tokens; return one number for each of them, in their order"
                )
            if values is not None and not values.isfinite().all():
                raise UserError(
                    f"{whose} returned numbers that are not finite for an attempt with the reward "
                    f"{attempt.shaped_reward:g}; correct what computes them, or the values or KL that they are made of"
                )
    return found


def _kl_penalty(config: Rl, old: OldPolicyStats, coefficient: float) -> Tensor | None:
    """(K,) what the KL takes from the reward of each token; None: nothing. Always k1: see algorithms/losses.py."""
    if config.kl is None or config.kl.where != "reward":
        return None
    assert old.reference_K is not None
    estimate_K = kl_estimate(old.old_K, old.reference_K, "k1")
    return coefficient * (estimate_K if config.kl.negative else estimate_K.clamp(min=0))


def _finished(importance: Importance | None, sample: TrainingSample, always: bool) -> TrainingSample:
    """With importance weights, and whether all of it is trained."""
    finished = replace(sample, trained_throughout=always)
    if importance is None:
        return finished
    old = sample.old
    lengths = [len(old.old_K)] if importance.level == "sequence" else None
    weights_K, capped = truncated_weights(old.old_K, old.sampler_K, cap=importance.cap, lengths=lengths)
    return replace(finished, weights_K=weights_K, capped=capped)


def sampled_by(trajectory: Trajectory, version: int) -> Iterator[bool]:
    """For each sampled token, in order, whether the weights of `version` sampled it."""
    for turn in trajectory.turns:
        for sampled, tokens in versions(turn):
            yield from (sampled == version for _ in range(tokens))


def versions(turn: Turn) -> Sequence[VersionRun]:
    """Runs of tokens by the version of the weights that sampled them, without empty ones.

    Unnumbered weights are those before the first optimiser step, version 0.
    """
    runs = turn.weights_versions or ((0, len(turn.completion_ids)),)
    return [(version, tokens) for version, tokens in runs if tokens]


def minibatches(groups: Sequence[Sequence[T]], *, count: int, epochs: int, seed: str) -> Iterator[list[list[T]]]:
    """`epochs` times `count` parts of about equal size, each as groups; every attempt is in one part per epoch.

        attempts of 2 groups   a a a | b b b        2 mini-batches   a . a | . b .     . a . | b . b

    A part is whole trajectories, however many contexts they have, so the number of optimiser steps does not depend on
    their turns. Attempts of one group stay neighbours, since they share their prompt's tokens. One part keeps the
    order; several are drawn anew each epoch, as a function of `seed`.
    """
    places = [(g, i) for g, group in enumerate(groups) for i in range(len(group))]
    for epoch in range(epochs):
        order = random.Random(f"{seed}/{epoch}").sample(places, len(places)) if count > 1 else places
        for part in range(count):
            chosen = set(order[len(order) * part // count : len(order) * (part + 1) // count])
            parts = ([attempt for i, attempt in enumerate(group) if (g, i) in chosen] for g, group in enumerate(groups))
            yield [group for group in parts if group]
