"""What an update learns from a trajectory: its tokens' advantages, and what to compare the new policy with.

    groups of trajectories  +  what was computed of them before the first update  ->  groups of lessons

Everything in a lesson is fixed before the first update on a rollout and the same in all of them.

Letters: K sampled tokens of one trajectory, in the order in which they were generated; M of several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mem1.algorithms.importance import truncated_weights
from mem1.algorithms.kl import kl_estimate
from mem1.records import Group, Trajectory
from mem1.training.advantages import spread, token_advantages, trajectory_advantages
from mem1.training.critic import Critic
from mem1.training.rl_config import (
    Algorithm,
    Dapo,
    Importance,
    Ppo,
    ReinforcePlusPlus,
    Rejection,
    Rl,
    fewest_attempts,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Before:
    """One trajectory before the first update; all on the CPU and without gradient."""

    sampler_K: Tensor
    """Log-probs that the sampler recorded."""
    old_K: Tensor
    """Log-probs of the old policy: the trainer's, where they were recomputed, else the sampler's."""
    reference_K: Tensor | None = None
    """Log-probs of the reference policy; None: no KL penalty."""
    values_K: Tensor | None = None
    """The critic's values; None: no critic."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lesson:
    """One trajectory with all that its updates need."""

    trajectory: Trajectory
    before: Before
    advantages_K: Tensor
    teaches: bool = True
    """False: it has no gradient, and counts in the denominator only."""
    returns_K: Tensor | None = None
    """Targets of the critic; None: no critic."""
    weights_K: Tensor | None = None
    """Importance weights; None: 1."""
    capped: int = 0
    """Tokens whose importance weight is the cap."""


def has_variance(group: Group) -> bool:
    """Whether the attempts can be told apart by their rewards; those whose tool failed have none."""
    return len({t.reward for t in group.trajectories if t.ended.scorable}) > 1


def judged_groups(config: Rl, groups: Sequence[Group]) -> list[Group]:
    """The groups without the attempts whose tool failed, which say nothing about the policy.

    A group that has too few others for the algorithm is left out; all are where the whole step has too few.
    """
    judged = [[t for t in group.trajectories if t.ended.scorable] for group in groups]
    enough = [Group(trajectories=tuple(rest)) for rest in judged if len(rest) >= config.fewest_attempts]
    return enough if sum(len(group.trajectories) for group in enough) >= config.fewest_of_a_step else []


def groups_to_train(config: Rl, groups: Sequence[Group]) -> list[Group]:
    """The judged groups; for dapo those of them with variance."""
    judged = judged_groups(config, groups)
    return [g for g in judged if has_variance(g)] if isinstance(config.algorithm, Dapo) else judged


def make_lessons(
    config: Rl,
    groups: Sequence[Group],
    before: Sequence[Sequence[Before]],
    *,
    kl_coefficient: float = 0.0,
) -> list[list[Lesson]]:
    """Lessons per group; for rejection the kept attempts only, so a group may be empty.

    `before` has one entry an attempt.
    """
    penalties = [[_penalty(config, b, kl_coefficient) for b in group] for group in before]
    rewards = [
        [_shaped(config, t, r) for t, r in zip(group.trajectories, group.rewards, strict=True)] for group in groups
    ]
    if isinstance(config.algorithm, Ppo):
        lessons = _with_critic(config.algorithm, groups, before, rewards, penalties)
    else:
        lessons = _of_the_group_family(config, groups, before, rewards, penalties)
    always = isinstance(config.algorithm, Ppo) or config.entropy > 0 or (config.kl and config.kl.where == "loss")
    return [list(_finish(config.importance, group, bool(always))) for group in lessons]


def _shaped(config: Rl, trajectory: Trajectory, reward: float) -> float:
    overlong = config.algorithm.overlong if isinstance(config.algorithm, Dapo) else None
    return reward if overlong is None else reward + overlong.penalty(trajectory.num_completion_tokens)


def _penalty(config: Rl, before: Before, coefficient: float) -> Tensor | None:
    """(K,) what the KL takes from the reward of each token; None: nothing. Always k1: see algorithms/kl.py."""
    if config.kl is None or config.kl.where != "reward":
        return None
    assert before.reference_K is not None
    return coefficient * kl_estimate(before.old_K, before.reference_K, "k1")


def _of_the_group_family(
    config: Rl,
    groups: Sequence[Group],
    before: Sequence[Sequence[Before]],
    rewards: Sequence[Sequence[float]],
    penalties: Sequence[Sequence[Tensor | None]],
) -> list[list[Lesson]]:
    """A trajectory's reward is less all its tokens' penalties, before it is compared with others.

    Attempts that earned the same and are compared with one another alone keep their rewards as they are: their
    penalties differ by the luck of sampling, which a division by the standard deviation would turn into advantages.
    """
    net = [
        [r - float(p.sum()) if p is not None and compared else r for r, p in zip(earned, of_group, strict=True)]
        for earned, of_group, compared in zip(rewards, penalties, _differ(config.algorithm, groups), strict=True)
    ]
    lessons: list[list[Lesson]] = []
    for group, advantages, old in zip(groups, trajectory_advantages(config.algorithm, net), before, strict=True):
        spread_out = spread(advantages, group.trajectories)
        rows = [
            Lesson(trajectory=t, before=b, advantages_K=a)
            for t, b, a in zip(group.trajectories, old, spread_out, strict=True)
        ]
        if isinstance(config.algorithm, Rejection):
            rows = [row for row, kept in zip(rows, advantages, strict=True) if kept]
        lessons.append(rows)
    return lessons


def _differ(algorithm: Algorithm, groups: Sequence[Group]) -> list[bool]:
    """Per group, whether its attempts are compared with others, or with a constant, that earned another reward."""
    if fewest_attempts(algorithm) > 1:
        return [has_variance(group) for group in groups]
    earned = {reward for group in groups for reward in group.rewards}
    return [len(earned) > 1 or not isinstance(algorithm, ReinforcePlusPlus)] * len(groups)


def _with_critic(
    config: Ppo,
    groups: Sequence[Group],
    before: Sequence[Sequence[Before]],
    rewards: Sequence[Sequence[float]],
    penalties: Sequence[Sequence[Tensor | None]],
) -> list[list[Lesson]]:
    trajectories = [t for g in groups for t in g.trajectories]
    counts = [t.num_completion_tokens for t in trajectories]
    flat = [p for group in penalties for p in group if p is not None]
    made = token_advantages(
        config,
        trajectories,
        [r for group in rewards for r in group],
        torch.cat([b.values_K for group in before for b in group if b.values_K is not None]),
        torch.cat(flat) if flat else None,
    )
    parts = zip(made.advantages_M.split(counts), made.returns_M.split(counts), strict=True)
    return [
        [
            Lesson(trajectory=t, before=b, advantages_K=advantages_K, returns_K=returns_K)
            for t, b, (advantages_K, returns_K) in zip(group.trajectories, old, parts, strict=False)
        ]
        for group, old in zip(groups, before, strict=True)
    ]


def centred(critic: Critic, lessons_by_group: Sequence[Sequence[Lesson]]) -> list[list[Lesson]]:
    """The lessons of a critic whose bias has been moved to where it fits their returns best.

    Their values move with it, so that value clipping counts from there; their advantages and returns stay.
    """
    errors = [
        lesson.returns_K - lesson.before.values_K
        for lessons in lessons_by_group
        for lesson in lessons
        if lesson.returns_K is not None and lesson.before.values_K is not None
    ]
    shift = critic.centre(torch.cat(errors)) if any(map(len, errors)) else 0.0
    return [[_shifted(lesson, shift) for lesson in lessons] for lessons in lessons_by_group]


def _shifted(lesson: Lesson, shift: float) -> Lesson:
    values_K = lesson.before.values_K
    return lesson if values_K is None else replace(lesson, before=replace(lesson.before, values_K=values_K + shift))


def _finish(importance: Importance | None, lessons: Sequence[Lesson], always: bool) -> Iterator[Lesson]:
    """Importance weights, and whether the group has anything to teach."""
    telling = always or any(bool(lesson.advantages_K.any()) for lesson in lessons)
    for lesson in lessons:
        finished = replace(lesson, teaches=telling and len(lesson.advantages_K) > 0)
        if importance is not None:
            b = lesson.before
            lengths = [len(b.old_K)] if importance.level == "sequence" else None
            made = truncated_weights(b.old_K, b.sampler_K, cap=importance.cap, lengths=lengths)
            finished = replace(finished, weights_K=made.weights_M, capped=made.capped)
        yield finished
