"""Does the trainer see what the sampler saw? All checks on fresh trajectories of a model.

    trainer, one turn a row    ---- log-probs and gradients ----    trainer, packed (the token tree)
            |                                                              |
    recorded by the sampler                       causality, separate branches, every token once

    verify(model, groups)  ->  [Check(name="sampler and trainer, largest", measured=4e-7, limit=1e-4, ...), ...]

The reference is always the plain way: one turn a row, unpadded, with the model's own attention. Packed and unpacked
are compared on a copy of the model in float64 too, where no rounding hides or adds a difference. What each check
compares, and with which limit, is in `comparisons.py`; whole optimiser steps are in `step_checks.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mem1.errors import UserError
from mem1.packing import pack
from mem1.packing.attention import Backend
from mem1.packing.exactness import check_packable
from mem1.records import Group, Trajectory
from mem1.training.logprobs import completion_logprobs, flat_logprobs
from mem1.training.verify.checks import (
    EXACT_LIMIT,
    ROUNDING_LIMIT,
    Check,
    causality_checks,
    gradient_check,
    micro_batch_check,
    once_check,
    packed_check,
    reencoding_check,
    sampler_checks,
)
from mem1.training.verify.steps import step_checks

NO_GRADIENTS = "FlexAttention has no backward pass on a CPU: its log-probs were checked, gradients and steps were not."


def has_gradients(attention: Backend, model: PreTrainedModel) -> bool:
    """Whether this attention has a backward pass where the model is."""
    return attention != "flex" or model.device.type == "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What one way of computing gave."""

    logprobs_M: Tensor
    gradient: tuple[Tensor, ...]
    """One tensor a parameter, of the loss in `compute`."""


def verify(
    model: PreTrainedModel,
    groups: Sequence[Group],
    *,
    temperature: float = 1.0,
    attention: Backend = "blocks",
    progress: Callable[[str], None] | None = None,
) -> list[Check]:
    """All checks on trajectories that this model has just sampled at this temperature.

    attention   over the token trees; by flex on a CPU the gradients cannot be had, and are not checked

    Clears the model's gradients. `progress` is told what is computed next. Raises UserError if the model cannot be
    packed exactly or no token was sampled, ValueError if the sampler recorded no log-probs.
    """
    tell = progress or (lambda _: None)
    attempts = [called for g in groups if (called := [t for t in g.trajectories if t.turns])]
    trajectories = list(chain.from_iterable(attempts))
    if not any(t.num_completion_tokens for t in trajectories):
        raise UserError("there is nothing to verify: no token was sampled, as no context left room for a completion")
    check_packable(model)
    own = str(model.dtype).removeprefix("torch.")
    gradients = has_gradients(attention, model)
    with torch.set_grad_enabled(gradients):
        alone, packed = _both_ways(model, attempts, temperature, attention, own, tell)
        exact = copy.deepcopy(model).double()
        exact_alone, exact_packed = _both_ways(exact, attempts, temperature, attention, "float64", tell)
    of_gradients: list[Check] = []
    if gradients:
        tell("packed, in micro-batches")
        parts = compute(model, halves(attempts), temperature=temperature, packed=True, attention=attention)
        tell("whole optimiser steps")
        of_gradients = [
            gradient_check(exact_packed.gradient, exact_alone.gradient, precision="float64", limit=EXACT_LIMIT),
            gradient_check(packed.gradient, alone.gradient, precision=own, limit=ROUNDING_LIMIT),
            micro_batch_check(parts.gradient, packed.gradient, batches=len(halves(attempts)) - len(attempts)),
            *step_checks(exact, groups, temperature=temperature, attention=attention),
        ]
    trees = [pack(group) for group in attempts]
    tell("tokens changed")
    return [
        *sampler_checks(trajectories, packed.logprobs_M),
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


def _both_ways(
    model: PreTrainedModel,
    attempts: Sequence[Sequence[Trajectory]],
    temperature: float,
    attention: Backend,
    precision: str,
    tell: Callable[[str], None],
) -> tuple[Computed, Computed]:
    """One turn a row, and each group as one tree."""
    tell(f"one turn a row, {precision}")
    alone = compute(model, [[t] for t in chain.from_iterable(attempts)], temperature=temperature, packed=False)
    tell(f"packed, {precision}")
    return alone, compute(model, attempts, temperature=temperature, packed=True, attention=attention)


def compute(
    model: PreTrainedModel,
    batches: Sequence[Sequence[Trajectory]],
    *,
    temperature: float,
    packed: bool,
    attention: Backend = "blocks",
) -> Computed:
    """Log-probs of all sampled tokens, and the gradient of a weighted sum of them, batch after batch.

    Token i of a trajectory weighs cos(i) / tokens of all batches: each has a weight of its own, and of both signs, as
    advantages have, so that a token counted twice or in another's place moves the gradient. Every trajectory needs
    a turn. Clears the model's gradients; under `torch.no_grad` there is none.
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
