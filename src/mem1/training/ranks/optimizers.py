"""Optimisers and learning-rate schedules of the stages.

Muon works on matrices whose rows may lie on several ranks. Its update is a function of the whole matrix: Newton-Schulz
iterations, in bf16. On rows alone the update would be a different one, and with products of shards it would be rounded
differently on each number of ranks. So the update's input is gathered, one matrix at a time, and every rank keeps its
rows of the result; momentum stays sharded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import optim
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import AdamW, Optimizer
from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz
from transformers import PreTrainedModel

from mem1.training.ranks.processes import whole


@dataclass(frozen=True)
class Optimizers:
    """One or more optimisers that step together."""

    members: tuple[Optimizer, ...]
    rates: tuple[float, ...]
    """Full learning rate of each member."""
    parameters: tuple[torch.nn.Parameter, ...]

    def step(self, *, scale: float, max_grad_norm: float = 1.0) -> float:
        """Clip, step at `scale` times the full rates, clear gradients; returns the norm before clipping."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = whole(torch.nn.utils.get_total_norm(gradients))
        torch.nn.utils.clip_grads_with_norm_(self.parameters, max_grad_norm, norm)
        for optimizer, rate in zip(self.members, self.rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * scale
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return float(norm)


def together(*parts: Optimizers) -> Optimizers:
    """All members in one, to be saved and loaded together."""
    return Optimizers(
        tuple(member for part in parts for member in part.members),
        tuple(rate for part in parts for rate in part.rates),
        tuple(parameter for part in parts for parameter in part.parameters),
    )


BETAS = (0.9, 0.95)
"""AdamW's decay rates of the running means of gradients and of their squares."""


def adamw(model: torch.nn.Module, rate: float, weight_decay: float = 0.0, *, beta2: float = BETAS[1]) -> Optimizers:
    """AdamW for all parameters that are not frozen; only matrices decay."""
    parameters = tuple(p for p in model.parameters() if p.requires_grad)
    return Optimizers(
        (AdamW(_decaying(parameters, weight_decay), lr=rate, betas=(BETAS[0], beta2)),), (rate,), parameters
    )


def _decaying(parameters: Sequence[torch.nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Groups of parameters: matrices, which decay, and biases and norms; one group where nothing decays."""
    if not weight_decay:
        return [{"params": list(parameters), "weight_decay": 0.0}]
    groups = ((2, weight_decay), (1, 0.0))
    return [{"params": [p for p in parameters if min(p.ndim, 2) == n], "weight_decay": decay} for n, decay in groups]


def muon(model: PreTrainedModel, rate: float, adam_rate: float, weight_decay: float = 0.0) -> Optimizers:
    """Muon (Jordan et al. 2024) for the matrices of the layers, AdamW for embeddings, norms and biases."""
    outer = [m for m in (model.get_input_embeddings(), model.get_output_embeddings()) if m is not None]
    embeddings = {id(p) for module in outer for p in module.parameters()}
    matrices = [p for p in model.parameters() if p.ndim == 2 and id(p) not in embeddings]
    others = [p for p in model.parameters() if p.ndim != 2 or id(p) in embeddings]
    members = (
        Muon(matrices, lr=rate, weight_decay=weight_decay),
        AdamW(_decaying(others, weight_decay), lr=adam_rate, betas=BETAS),
    )
    return Optimizers(members, (rate, adam_rate), (*matrices, *others))


def warmup(step: int, steps: int) -> float:
    """Linear from 1/steps to 1; step counted from 0."""
    return min(1.0, (step + 1) / steps) if steps else 1.0


def warmup_decay(step: int, *, steps: int, warmup_steps: int, decay: float) -> float:
    """Warm-up, then constant, then over the last `decay` share of the steps linearly down to a twentieth."""
    left = (steps - step) / (decay * steps) if decay else 1.0
    return warmup(step, warmup_steps) * min(1.0, max(0.05, left))


class Muon(optim.Muon):
    """`torch.optim.Muon`; the same updates when parameters are sharded.

    It uses private functions of torch.optim._muon, so pyproject.toml limits torch's version.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        if not any(isinstance(p, DTensor) for group in self.param_groups for p in group["params"]):
            return super().step(closure)
        for group in self.param_groups:
            parameters, gradients, momenta = [], [], []
            self._init_group(group, parameters, gradients, momenta)
            for p, gradient, momentum in zip(parameters, gradients, momenta, strict=True):
                self._move(group, p, gradient, momentum)
        return None

    def _move(self, group: dict[str, Any], p: DTensor, gradient: DTensor, momentum: DTensor) -> None:
        """torch's update, except that Newton-Schulz runs on the whole matrix."""
        momentum.lerp_(gradient, 1 - group["momentum"])
        update = gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
        found = _zeropower_via_newtonschulz(whole(update), group["ns_coefficients"], group["ns_steps"], group["eps"])
        replicated = DTensor.from_local(found.to(p.dtype), p.device_mesh, [Replicate()], run_check=False)
        p.mul_(1 - group["lr"] * group["weight_decay"])
        rate = _adjust_lr(group["lr"], group["adjust_lr_fn"], p.shape)
        p.add_(replicated.redistribute(p.device_mesh, p.placements), alpha=-rate)
