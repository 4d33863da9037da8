"""Muon on matrices whose rows may lie on several ranks.

Its update is a function of the whole matrix: Newton-Schulz iterations, in bf16. On rows alone it would be another
one, and with products of shards it would be rounded otherwise on each number of ranks. So the update's input is
gathered, one matrix at a time, and every rank keeps its rows of the result; momentum stays spread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import optim
from torch.distributed.tensor import DTensor, Replicate
from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz

from mem1.training.sharding import whole


class Muon(optim.Muon):
    """`torch.optim.Muon` where nothing is spread."""

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
        """As torch's, but for where the update is computed."""
        momentum.lerp_(gradient, 1 - group["momentum"])
        update = gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
        found = _zeropower_via_newtonschulz(whole(update), group["ns_coefficients"], group["ns_steps"], group["eps"])
        replicated = DTensor.from_local(found.to(p.dtype), p.device_mesh, [Replicate()], run_check=False)
        p.mul_(1 - group["lr"] * group["weight_decay"])
        rate = _adjust_lr(group["lr"], group["adjust_lr_fn"], p.shape)
        p.add_(replicated.redistribute(p.device_mesh, p.placements), alpha=-rate)
