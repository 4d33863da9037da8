"""Does the trainer see what the sampler saw? All checks of `mem1 verify`, on fresh trajectories of a model.

    trainer, unpacked turns    ---- log-probs and gradients ----    trainer, packed (the token tree)
            |                                                              |
    recorded by the sampler                       causality, separate branches, every token once

    verify(model, groups)  ->  [Check(name="sampler and trainer, largest", measured=4e-7, limit=1e-4, ...), ...]

The reference is always the simplest computation: one turn per row, unpadded, with the model's own attention. Packed and
unpacked are also compared on a float64 copy of the model, where no rounding hides or adds a difference. `checks.py`
defines what each check compares and its limit.

Whole optimiser steps, advantages included, must have the same gradient (in float64) on the attempts as they are and on

    small packs       the same attempts, in micro-batches of a quarter of the largest group's tree
    other order       the same attempts, in reversed order
    more contexts     the same tokens after the same contexts, in twice as many calls:  p | a b c  ->  p | a   p a | b c

The attempts get made-up rewards and scores of their questions, so that there is something to learn however good the
model is. Of attempts on a task that sampled the same tokens only one is kept: opposite advantages on the same tokens
cancel. PPO's critic reads the policy's states and starts from random weights. Channels credit turns, so a call cut in
two is another one to them.

So that any model reaches a second turn, `Forced` forces the tags and lets the model draw the tokens between them:

    <IS> ~ ~ ~ </IS> <query> ~ ~ ~ </query>        ~ a drawn token

Forced tokens get the log-probabilities that the sampler assigns to them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mem1.algorithms.base import Algorithm
from mem1.algorithms.channels import Channel, Channels, MemoryLength, Objectives, Outcome
from mem1.algorithms.group import Grpo
from mem1.algorithms.ppo import Ppo
from mem1.dialogue import Dialogue
from mem1.engines.device import Device, dtype_name
from mem1.errors import UserError
from mem1.packing import pack, split_into_packs
from mem1.packing.attention import Backend, check_packable
from mem1.protocol import SUMMARY
from mem1.recipe.rl import Phase, Rl
from mem1.records import Group, Trajectory, Turn
from mem1.training.checks import (
    EXACT_LIMIT,
    ROUNDING_LIMIT,
    Check,
    causality_checks,
    gradient_check,
    half_check,
    micro_batch_check,
    once_check,
    packed_check,
    reencoding_check,
    relative_difference,
    rounding_limit,
    sampler_checks,
)
from mem1.training.gradients.actor_critic import ActorCritic
from mem1.training.gradients.samples import make_samples
from mem1.training.gradients.update import PassStats, accumulate
from mem1.training.logprobs import completion_logprobs, flat_logprobs
from mem1.training.ranks.placement import Placement
from mem1.training.ranks.processes import Ranks

NO_GRADIENTS = "FlexAttention has no backward pass on a CPU: its log-probs were checked, gradients and steps were not."


def has_gradients(attention: Backend, model: PreTrainedModel) -> bool:
    """Whether this attention has a backward pass on the model's device."""
    return attention != "flex" or model.device.type == "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """Results of one way of computing."""

    logprobs_M: Tensor
    gradient: tuple[Tensor, ...]
    """Gradient of the loss in `compute`, one tensor per parameter."""


def verify(
    model: PreTrainedModel,
    groups: Sequence[Group],
    *,
    temperature: float = 1.0,
    attention: Backend = "blocks",
    half: bool = False,
    progress: Callable[[str], None] | None = None,
) -> list[Check]:
    """All checks on trajectories that this model has just sampled at this temperature.

    attention   back-end over the token trees; flex on a CPU has no gradients, so they are not checked
    half        also check training whose passes are in bf16, where a bf16 copy samples

    Clears the model's gradients. `progress` receives the name of each computation before it starts. Raises UserError
    if the model cannot be packed exactly or no token was sampled, ValueError if the sampler recorded no log-probs.
    """
    report = progress or (lambda _: None)
    attempts = [called for g in groups if (called := [t for t in g.trajectories if t.turns])]
    trajectories = list(chain.from_iterable(attempts))
    if not any(t.num_completion_tokens for t in trajectories):
        raise UserError("there is nothing to verify: no token was sampled, as no context left room for a completion")
    check_packable(model)
    own = dtype_name(model.dtype)
    gradients = has_gradients(attention, model)

    def both_ways(model: PreTrainedModel) -> tuple[Computed, Computed]:
        """One turn per row, and each group as one tree."""
        report(f"one turn per row, {dtype_name(model.dtype)}")
        alone = compute(model, [[t] for t in trajectories], temperature=temperature, packed=False)
        report(f"packed, {dtype_name(model.dtype)}")
        return alone, compute(model, attempts, temperature=temperature, packed=True, attention=attention)

    with torch.set_grad_enabled(gradients):
        alone, packed = both_ways(model)
        exact = copy.deepcopy(model).double()
        exact_alone, exact_packed = both_ways(exact)
    of_gradients: list[Check] = []
    if gradients:
        report("packed, in micro-batches")
        cut = halves(attempts)
        parts = compute(model, cut, temperature=temperature, packed=True, attention=attention)
        report("whole optimiser steps")
        rounding = rounding_limit(alone.gradient, exact_alone.gradient)
        of_gradients = [
            gradient_check(exact_packed.gradient, exact_alone.gradient, precision="float64", limit=EXACT_LIMIT),
            gradient_check(packed.gradient, alone.gradient, precision=own, limit=rounding),
            micro_batch_check(parts.gradient, packed.gradient, batches=len(cut) - len(attempts), limit=rounding),
            *step_checks(exact, groups, temperature=temperature, attention=attention),
        ]
    of_half = []
    if half:
        report("one turn per row and packed, bfloat16")
        of_half = [_half_check(model, attempts, temperature=temperature, attention=attention)]
    trees = [pack(group) for group in attempts]
    report("tokens changed")
    return [
        *sampler_checks(trajectories, packed.logprobs_M),
        *of_half,
        packed_check(exact_packed.logprobs_M, exact_alone.logprobs_M, precision="float64", limit=EXACT_LIMIT),
        packed_check(packed.logprobs_M, alone.logprobs_M, precision=own, limit=ROUNDING_LIMIT),
        *of_gradients,
        once_check(zip(trees, attempts, strict=True)),
        reencoding_check(trajectories),
        *causality_checks(
            lambda tree: flat_logprobs(model, tree, temperature=temperature, backend=attention),
            trees,
            vocabulary=model.config.vocab_size,
        ),
    ]


@torch.no_grad()
def _half_check(
    model: PreTrainedModel, attempts: Sequence[Sequence[Trajectory]], *, temperature: float, attention: Backend
) -> Check:
    copied = copy.deepcopy(model).bfloat16()
    alone = [[t] for t in chain.from_iterable(attempts)]
    sampled = compute(copied, alone, temperature=temperature, packed=False)
    with replace(_placed(model, attention), half=True).passes(model):
        trained = compute(model, attempts, temperature=temperature, packed=True, attention=attention)
    return half_check(trained.logprobs_M, sampled.logprobs_M)


def compute(
    model: PreTrainedModel,
    batches: Sequence[Sequence[Trajectory]],
    *,
    temperature: float,
    packed: bool,
    attention: Backend = "blocks",
) -> Computed:
    """Log-probs of all sampled tokens, and the gradient of a weighted sum of them, batch after batch.

    Token i of a trajectory has the weight cos(i) / number of tokens in all batches. Weights differ and have both signs,
    like advantages, so that a token counted twice or in the wrong place changes the gradient. Every trajectory needs a
    turn. Clears the model's gradients; under `torch.no_grad` there is none.
    """
    model.zero_grad(set_to_none=True)
    denominator = sum(t.num_completion_tokens for batch in batches for t in batch)
    logprobs: list[Tensor] = []
    for batch in batches:
        nested = completion_logprobs(model, batch, temperature=temperature, packed=packed, backend=attention)
        per_trajectory = [torch.cat(turns) for turns in nested]
        weighted = [x @ torch.arange(len(x), device=x.device).to(x.dtype).cos() for x in per_trajectory]
        if torch.is_grad_enabled():
            (torch.stack(weighted).sum() / denominator).backward()
        logprobs += [x.detach() for x in per_trajectory]
    gradient = tuple(torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())
    model.zero_grad(set_to_none=True)
    return Computed(logprobs_M=torch.cat(logprobs), gradient=gradient)


def halves(groups: Sequence[Sequence[Trajectory]]) -> list[Sequence[Trajectory]]:
    """Each group in two, where it has two trajectories or more.   [[a, b, c]]  ->  [[a], [b, c]]"""
    return [part for g in groups for part in (g[: len(g) // 2], g[len(g) // 2 :]) if part]


def algorithms(groups: Sequence[Group]) -> list[Algorithm]:
    """One with statistics over groups, one with values that GAE carries across every rewritten context, and one with
    every channel that these attempts have."""
    channels: list[Channel] = [Outcome()]
    if all(t.task is not None for g in groups for t in g.trajectories):
        channels += [Objectives(), MemoryLength(least=0.0)]
    return [Grpo(), Ppo(lam=0.95, critic="head"), Channels(channels=tuple(channels))]


@dataclass(frozen=True, slots=True)
class Change:
    """One change that must not matter."""

    name: str
    explanation: str
    groups: Sequence[Group]
    pack_tokens: int
    made: int
    """Number of packs, attempts or turns that it changed."""


def step_checks(
    model: PreTrainedModel,
    groups: Sequence[Group],
    *,
    temperature: float = 1.0,
    attention: Backend = "blocks",
) -> list[Check]:
    """For GRPO and channels, where a task has two different attempts, and for PPO with GAE across the contexts.

    `model` should be in float64; its gradients are cleared. Some attempt needs a sampled token. Exact
    only for a model that passes `check_packable`.
    """
    groups = list(_rewarded(groups))
    largest = max(64, *(len(pack(g.trajectories)) for g in groups))
    checks: list[Check] = []
    for algorithm in algorithms(groups):
        chosen = [g for g in groups if len(g.trajectories) >= algorithm.min_attempts_per_task]
        if not chosen:
            continue
        config = Rl(curriculum=(Phase(steps=1),), algorithm=algorithm, temperature=temperature, pack_tokens=largest)
        wanted = _gradient(model, chosen, config, attention)
        for change in _changes(chosen, largest, cuts=not isinstance(algorithm, Channels)):
            config = config.model_copy(update={"pack_tokens": change.pack_tokens})
            measured = relative_difference(_gradient(model, change.groups, config, attention), wanted)
            explanation = f"gradient of an optimiser step {change.explanation}"
            name = f"{algorithm.name}: {change.name}"
            checks.append(Check(name, measured, EXACT_LIMIT, "relative", change.made, explanation))
    return checks


def _changes(groups: Sequence[Group], pack_tokens: int, *, cuts: bool) -> Iterator[Change]:
    """`cuts`: calls are cut in two as well."""
    trajectories = [t for g in groups for t in g.trajectories]
    small = max(64, pack_tokens // 4)
    few, many = (len(split_into_packs(trajectories, max_tokens=tokens)) for tokens in (pack_tokens, small))
    explanation = "in many small packs, trajectories cut at their branches"
    yield Change("small packs", explanation, groups, small, many - few)
    turned = [replace(g, trajectories=g.trajectories[::-1]) for g in groups[::-1]]
    explanation = "with its attempts in the opposite order"
    yield Change("other order", explanation, turned, pack_tokens, len(trajectories) - 1)
    if not cuts:
        return
    longer = [
        replace(t, turns=tuple(part for turn in t.turns for part in _halved(turn)))
        for g in groups
        for t in g.trajectories
    ]
    parts = iter(longer)
    more = [replace(g, trajectories=tuple(next(parts) for _ in g.trajectories)) for g in groups]
    made = sum(len(t.turns) for t in longer) - sum(len(t.turns) for t in trajectories)
    explanation = "with the same tokens sampled in twice as many contexts"
    yield Change("more contexts", explanation, more, pack_tokens, made)


def _placed(model: PreTrainedModel, attention: Backend) -> Placement:
    """One process, on the model's device."""
    return Placement(ranks=Ranks(device=Device(name=str(model.device), at=model.device)), attention=attention)


def _gradient(model: PreTrainedModel, groups: Sequence[Group], config: Rl, attention: Backend) -> list[Tensor]:
    """The gradient of one optimiser step, for all networks."""
    model.zero_grad(set_to_none=True)
    networks = ActorCritic.make(config, model, placement=_placed(model, attention))
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
    """Attempts with sampled tokens, each only once; rewards 0, 1, 2, 0, ... that begin elsewhere in each group, and
    every other question right."""
    for number, group in enumerate(groups):
        different = {
            tuple((turn.context_ids, turn.completion_ids) for turn in t.turns): t
            for t in group.trajectories
            if t.num_completion_tokens
        }
        rewarded = [
            replace(
                t,
                reward=float((i + number) % 3),
                metrics={
                    "em": tuple(float((i + number + j) % 2) for j in range(0 if t.task is None else t.task.objectives))
                },
            )
            for i, t in enumerate(different.values())
        ]
        if rewarded:
            yield Group(trajectories=tuple(rewarded))


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


_FREE = 8
"""Most sampled tokens between a pair of tags."""

Plan = Sequence[int | None]
"""The forced tokens of a completion; None: the sampled one is kept."""


class Forced:
    """Steers `LocalEngine` through turns that can be read: a state and a call, or the action that the context opens."""

    def __init__(self, dialogue: Dialogue) -> None:
        self.codec, self.dialogue = dialogue.codec, dialogue
        self._plans: dict[tuple[str | None, int], Plan] = {}
        kinds = dialogue.tags.action_tags if dialogue.forces_answers else (SUMMARY,)
        self._openings = {kind: dialogue.opening(kind) for kind in kinds}

    def __call__(self, context: Sequence[int], sampled: Sequence[int], drawn: int, budget: int) -> int:
        """The next token of the completion, given the tokens before it and the one drawn."""
        opened = next((kind for kind, ids in self._openings.items() if tuple(context[-len(ids) :]) == ids), None)
        if (opened, budget) not in self._plans:
            self._plans[opened, budget] = self._plan(opened, budget)
        plan, position = self._plans[opened, budget], len(sampled)
        forced = plan[position] if position < len(plan) else drawn
        return self._plain(drawn) if forced is None else forced

    def _plan(self, opened: str | None, budget: int) -> Plan:
        """`opened`: the action that the end of the context opens. Empty where the budget has no room."""
        forced = self.dialogue.forced(opened)
        free = min(_FREE, (budget - sum(map(len, forced))) // (len(forced) - 1))
        if free < 1:
            return ()
        plan: list[int | None] = [*forced[0]]
        for ids in forced[1:]:
            plan += [self._word, *[None] * (free - 1), *ids]
        return plan

    def _plain(self, token: int) -> int:
        """The token, or a word instead where it could open or close a tag."""
        return self._word if token in self._marks or "<" in self.codec.decode((token,)) else token

    @cached_property
    def _marks(self) -> frozenset[int]:
        return frozenset(self.codec.tokenizer.get_added_tokens_decoder())

    @cached_property
    def _word(self) -> int:
        """A token of letters, so that the text between tags is never empty."""
        ids = range(self.codec.vocab_size)
        return next(i for i in ids if i not in self._marks and self.codec.decode((i,)).strip().isalpha())
