"""Optimisers and learning-rate schedules of the stages.

Muon works on matrices whose rows may lie on several ranks. Its update is a function of the whole matrix: Newton-Schulz
iterations. On rows alone the update would be a different one, and with products of shards it would be rounded
differently on each number of ranks. So the update's input is gathered, one matrix at a time, and every rank keeps its
rows of the result; momentum stays sharded.

The iterations run in bf16 on a GPU. On a CPU they run in fp32: most CPUs have no units for products in bf16, which then
take far longer than all else in a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, optim
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import AdamW, Optimizer
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
    return Optimizers((_adamw(parameters, rate, weight_decay, (BETAS[0], beta2)),), (rate,), parameters)


def _adamw(
    parameters: Sequence[torch.nn.Parameter], rate: float, weight_decay: float, betas: tuple[float, float]
) -> AdamW:
    """In one kernel, which reads and writes each number once."""
    fused = True if parameters and all(p.device.type in ("cuda", "cpu") for p in parameters) else None
    return AdamW(_decaying(parameters, weight_decay), lr=rate, betas=betas, fused=fused)


def _decaying(parameters: Sequence[torch.nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Groups of parameters: matrices, which decay, and biases, norms and scalars; one group where nothing decays."""
    if not weight_decay:
        return [{"params": list(parameters), "weight_decay": 0.0}]
    matrices = [p for p in parameters if p.ndim >= 2]
    others = [p for p in parameters if p.ndim < 2]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def muon(model: PreTrainedModel, rate: float, adam_rate: float, weight_decay: float = 0.0) -> Optimizers:
    """Muon (Jordan et al. 2024) for the matrices of the layers, AdamW for embeddings, norms and biases."""
    outer = [m for m in (model.get_input_embeddings(), model.get_output_embeddings()) if m is not None]
    embeddings = {id(p) for module in outer for p in module.parameters()}
    matrices = [p for p in model.parameters() if p.ndim == 2 and id(p) not in embeddings]
    others = [p for p in model.parameters() if p.ndim != 2 or id(p) in embeddings]
    members = (
        Muon(matrices, lr=rate, weight_decay=weight_decay),
        _adamw(others, adam_rate, weight_decay, BETAS),
    )
    return Optimizers(members, (rate, adam_rate), (*matrices, *others))


def warmup(step: int, steps: int) -> float:
    """Linear from 1/steps to 1; step counted from 0."""
    return min(1.0, (step + 1) / steps) if steps else 1.0


def warmup_decay(step: int, *, steps: int, warmup_steps: int, decay: float) -> float:
    """Warm-up, then constant, then over the last `decay` share of the steps linearly towards 0, at most to a twentieth.

    The last step has 1 / (decay * steps) of the rate: a quarter after 10 steps with decay 0.4.
    """
    left = (steps - step) / (decay * steps) if decay else 1.0
    return warmup(step, warmup_steps) * min(1.0, max(0.05, left))


class Muon(optim.Muon):
    """`torch.optim.Muon` with its default settings; sharded parameters get the same updates, and a CPU uses fp32.

    It uses a private method of torch.optim.Muon, so pyproject.toml limits torch's version.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            parameters, gradients, momenta = [], [], []
            self._init_group(group, parameters, gradients, momenta)
            for p, gradient, momentum in zip(parameters, gradients, momenta, strict=True):
                momentum.lerp_(gradient, 1 - group["momentum"])
                found = orthogonal(whole(gradient.lerp(momentum, group["momentum"]))).to(p.dtype)
                if isinstance(p, DTensor):
                    found = DTensor.from_local(found, p.device_mesh, [Replicate()], run_check=False)
                    found = found.redistribute(p.device_mesh, p.placements)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(found, alpha=-group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the polynomial (Jordan et al. 2024)."""


def orthogonal(matrix: Tensor, *, steps: int = 5) -> Tensor:
    """The matrix with all singular values near 1 (0.5 to 1.5), by Newton-Schulz iterations (Jordan et al. 2024)."""
    a, b, c = NEWTON_SCHULZ
    tall = matrix.shape[0] > matrix.shape[1]
    dtype = torch.bfloat16 if matrix.is_cuda else torch.promote_types(matrix.dtype, torch.float32)
    x = (matrix.T if tall else matrix).to(dtype)
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
