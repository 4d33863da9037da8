"""Does the trainer see what the sampler saw? All checks, on fresh trajectories of a model.

    trainer, unpacked turns    ---- log-probs and gradients ----    trainer, packed (the token tree)
            |                                                              |
    recorded by the sampler                       causality, separate branches, every token once

    verify(model, groups)  ->  [Check(name="sampler and trainer, largest", measured=4e-7, limit=1e-4, ...), ...]

The reference is always the simplest computation: one turn per row, unpadded, with the model's own attention. Packed and
unpacked are also compared on a float64 copy of the model, where no rounding hides or adds a difference. `checks.py`
defines what each check compares and its limit; whole optimiser steps are in `steps.py`.
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
from mem1.packing.attention import Backend, check_packable
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
    progress: Callable[[str], None] | None = None,
) -> list[Check]:
    """All checks on trajectories that this model has just sampled at this temperature.

    attention   back-end over the token trees; flex on a CPU has no gradients, so they are not checked

    Clears the model's gradients. `progress` receives the name of each computation before it starts. Raises UserError
    if the model cannot be packed exactly or no token was sampled, ValueError if the sampler recorded no log-probs.
    """
    report = progress or (lambda _: None)
    attempts = [called for g in groups if (called := [t for t in g.trajectories if t.turns])]
    trajectories = list(chain.from_iterable(attempts))
    if not any(t.num_completion_tokens for t in trajectories):
        raise UserError("there is nothing to verify: no token was sampled, as no context left room for a completion")
    check_packable(model)
    own = str(model.dtype).removeprefix("torch.")
    gradients = has_gradients(attention, model)
    with torch.set_grad_enabled(gradients):
        alone, packed = _both_ways(model, attempts, temperature, attention, own, report)
        exact = copy.deepcopy(model).double()
        exact_alone, exact_packed = _both_ways(exact, attempts, temperature, attention, "float64", report)
    of_gradients: list[Check] = []
    if gradients:
        report("packed, in micro-batches")
        parts = compute(model, halves(attempts), temperature=temperature, packed=True, attention=attention)
        report("whole optimiser steps")
        of_gradients = [
            gradient_check(exact_packed.gradient, exact_alone.gradient, precision="float64", limit=EXACT_LIMIT),
            gradient_check(packed.gradient, alone.gradient, precision=own, limit=ROUNDING_LIMIT),
            micro_batch_check(parts.gradient, packed.gradient, batches=len(halves(attempts)) - len(attempts)),
            *step_checks(exact, groups, temperature=temperature, attention=attention),
        ]
    trees = [pack(group) for group in attempts]
    report("tokens changed")
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
    report: Callable[[str], None],
) -> tuple[Computed, Computed]:
    """One turn per row, and each group as one tree."""
    report(f"one turn per row, {precision}")
    alone = compute(model, [[t] for t in chain.from_iterable(attempts)], temperature=temperature, packed=False)
    report(f"packed, {precision}")
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
