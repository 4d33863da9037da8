"""The checks of `mem1 verify` on whole optimiser steps: changes that must not matter do not matter.

    step_checks(model, groups)  ->  [Check(name="grpo: small packs", ...), Check(name="grpo: other order", ...), ...]

Each compares the gradient of one optimiser step, advantages included, on the attempts as they are and on

    small packs       the same attempts, in micro-batches of a quarter of the largest group's tree
    other order       the same attempts, in reversed order
    more contexts     the same tokens after the same contexts, in twice as many calls:  p | a b c  ->  p | a   p a | b c

in float64, where no rounding hides or adds a difference. The attempts get made-up rewards, so that there is something
to learn however good the model is. Of attempts on a task that sampled the same tokens only one is kept: opposite
advantages on the same tokens cancel. PPO's critic reads the policy's states and starts from random weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mem1.algorithms.base import Algorithm
from mem1.algorithms.group import Grpo
from mem1.algorithms.ppo import Ppo
from mem1.engines.device import Device
from mem1.packing import pack, split_into_packs
from mem1.packing.attention import Backend
from mem1.records import Group, Trajectory, Turn
from mem1.training.gradients.actor_critic import ActorCritic
from mem1.training.gradients.samples import make_samples
from mem1.training.gradients.update import PassStats, accumulate
from mem1.training.loop.rl_config import Phase, Rl
from mem1.training.ranks.placement import Placement
from mem1.training.ranks.processes import Ranks
from mem1.training.verify.checks import EXACT_LIMIT, Check, relative_difference

ALGORITHMS: tuple[Algorithm, ...] = (Grpo(), Ppo(lam=0.95, critic="head"))
"""One with statistics over groups, one with values that GAE carries across every rewritten context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change that must not matter."""

    name: str
    explanation: str
    groups: Sequence[Group]
    pack_tokens: int
    made: int
    """Number of packs, attempts or turns that it changed."""


def step_checks(
    model: PreTrainedModel, groups: Sequence[Group], *, temperature: float = 1.0, attention: Backend = "blocks"
) -> list[Check]:
    """For GRPO, where a task has two different attempts, and for PPO with GAE across the contexts.

    `model` should be in float64; its gradients are cleared. Some attempt needs a sampled token. Exact
    only for a model that passes `check_packable`.
    """
    groups = list(_rewarded(groups))
    largest = max(len(pack(g.trajectories)) for g in groups)
    checks: list[Check] = []
    for algorithm in ALGORITHMS:
        chosen = [g for g in groups if len(g.trajectories) >= algorithm.min_attempts_per_task]

        def gradient(groups: Sequence[Group], pack_tokens: int, algorithm: Algorithm = algorithm) -> list[Tensor]:
            return _gradient(model, groups, _config(algorithm, temperature, pack_tokens), attention)

        if chosen:
            checks += _compare(algorithm.name, gradient, chosen, max(64, largest))
    return checks


def _compare(
    name: str, gradient: Callable[[Sequence[Group], int], list[Tensor]], groups: Sequence[Group], pack_tokens: int
) -> Iterator[Check]:
    wanted = gradient(groups, pack_tokens)
    for change in _changes(groups, pack_tokens):
        yield Check(
            name=f"{name}: {change.name}",
            measured=relative_difference(gradient(change.groups, change.pack_tokens), wanted),
            limit=EXACT_LIMIT,
            unit="relative",
            compared=change.made,
            explanation=f"gradient of an optimiser step {change.explanation}",
        )


def _changes(groups: Sequence[Group], pack_tokens: int) -> Iterator[Change]:
    trajectories = [t for g in groups for t in g.trajectories]
    small = max(64, pack_tokens // 4)
    packs = [len(split_into_packs(trajectories, max_tokens=tokens)) for tokens in (pack_tokens, small)]
    yield Change(
        name="small packs",
        explanation="in many small packs, trajectories cut at their branches",
        groups=groups,
        pack_tokens=small,
        made=packs[1] - packs[0],
    )
    yield Change(
        name="other order",
        explanation="with its attempts in the opposite order",
        groups=[replace(g, trajectories=g.trajectories[::-1]) for g in groups[::-1]],
        pack_tokens=pack_tokens,
        made=len(trajectories) - 1,
    )
    more = [replace(g, trajectories=tuple(map(_in_more_contexts, g.trajectories))) for g in groups]
    turns = [sum(len(t.turns) for g in some for t in g.trajectories) for some in (groups, more)]
    yield Change(
        name="more contexts",
        explanation="with the same tokens sampled in twice as many contexts",
        groups=more,
        pack_tokens=pack_tokens,
        made=turns[1] - turns[0],
    )


def _config(algorithm: Algorithm, temperature: float, pack_tokens: int) -> Rl:
    return Rl(curriculum=(Phase(steps=1),), algorithm=algorithm, temperature=temperature, pack_tokens=pack_tokens)


def _gradient(model: PreTrainedModel, groups: Sequence[Group], config: Rl, attention: Backend) -> list[Tensor]:
    """The gradient of one optimiser step, for all networks."""
    model.zero_grad(set_to_none=True)
    placement = Placement(ranks=Ranks(device=Device(name=str(model.device), at=model.device)), attention=attention)
    networks = ActorCritic.make(config, model, placement=placement)
    if networks.critic is not None:
        networks.critic.to(model.dtype)
        weight = networks.critic.head.weight
        weight.data.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)) / weight.shape[1])
    samples = make_samples(config, groups, networks.old_policy_stats([g.trajectories for g in groups]))
    accumulate(networks, samples, PassStats())
    modules: list[nn.Module] = [model, *networks.modules.values()]
    found = [p.grad.clone() for module in modules for p in module.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    return found


def _rewarded(groups: Sequence[Group]) -> Iterator[Group]:
    """Attempts with sampled tokens, each only once; rewards 0, 1, 2, 0, ... that begin elsewhere in each group."""
    for number, group in enumerate(groups):
        different = {
            tuple((turn.context_ids, turn.completion_ids) for turn in t.turns): t
            for t in group.trajectories
            if t.num_completion_tokens
        }
        rewarded = [replace(t, reward=float((i + number) % 3)) for i, t in enumerate(different.values())]
        if rewarded:
            yield Group(trajectories=tuple(rewarded))


def _in_more_contexts(trajectory: Trajectory) -> Trajectory:
    return replace(trajectory, turns=tuple(part for turn in trajectory.turns for part in _halved(turn)))


def _halved(turn: Turn) -> list[Turn]:
    half = len(turn.completion_ids) // 2
    if not half:
        return [turn]
    first, second = slice(0, half), slice(half, None)
    bare = replace(turn, completion_ids=(), logprobs=(), completion_spans={}, weights_versions=())
    return [
        replace(bare, completion_ids=turn.completion_ids[first], logprobs=turn.logprobs[first]),
        replace(
            bare,
            context_ids=turn.context_ids + turn.completion_ids[first],
            completion_ids=turn.completion_ids[second],
            logprobs=turn.logprobs[second],
            context_spans={},
        ),
    ]
