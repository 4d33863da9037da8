"""Weights, gradients and optimiser states spread over the ranks: FSDP2 (`fully_shard`).

    shard(model, Distributed())
    log-probs = as_forward(model, lambda: score(model, ...))        the weights are whole inside, layer by layer

A rank's loss is its share of a sum whose denominator is the step's, so gradients are summed over the ranks and never
averaged. Layers are gathered one at a time; what is no layer (embeddings, last norm, head) is one group, whole from
the beginning of `as_forward` to its end, and again in the backward pass.

Source: Zhao et al. 2023 (PyTorch FSDP, arXiv 2304.11277); torch.distributed.fsdp.fully_shard.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from mem1.training.loop.recipe import Distributed

Said = TypeVar("Said", Tensor, tuple[Tensor, ...])
_FORWARD = "_mem1_forward"


def shard(module: nn.Module, config: Distributed, *, offload: bool = False, full_precision: bool = False) -> None:
    """Spread the module over all ranks, in place; every rank must hold the same weights.

    offload             its weights rest in the computer's memory
    full_precision      `mixed_precision` does not concern it: a critic's head
    """
    mixed = config.mixed_precision is not None and not full_precision
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    away = torch.cuda.is_available() and (offload or config.cpu_offload)  # a CPU's weights rest there anyway
    frozen = {p for p in module.parameters() if not p.is_floating_point()}  # in 4 bits: whole on every rank
    options = {
        "ignored_params": frozen,
        "mp_policy": precision if mixed else MixedPrecisionPolicy(),
        "offload_policy": CPUOffloadPolicy() if away else OffloadPolicy(),
    }
    for layer in layers(module):
        if isinstance(layer, FSDPModule):
            continue
        if config.activation_checkpointing:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
        fully_shard(layer, reshard_after_forward=config.reshard_after_forward, **options)
    # The outermost group lets go after forward in any case: it must not outlive an optimiser step.
    fully_shard(module, reshard_after_forward=True, **options)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
    setattr(module, _FORWARD, MethodType(_call, module))
    register_fsdp_forward_method(module, _FORWARD)


def layers(module: nn.Module) -> list[nn.Module]:
    """The layers of each transformer inside, by what transformers says must not be split; none: []."""
    names = {name for part in module.modules() for name in (getattr(part, "_no_split_modules", None) or ())}
    return [part for part in module.modules() if class_name(part) in names]


def class_name(module: nn.Module) -> str:
    """Without the prefix that FSDP gives the classes of its modules."""
    return type(module).__name__.removeprefix("FSDP" if isinstance(module, FSDPModule) else "")


def _call(_module: nn.Module, function: Callable[[], Said]) -> Said:
    """FSDP hangs the backward pass on what is returned, which must be no view."""
    said = function()
    return said.clone() if isinstance(said, Tensor) else tuple(tensor.clone() for tensor in said)  # type: ignore[return-value]


def as_forward(module: nn.Module, function: Callable[[], Said]) -> Said:
    """`function()`, as if it were the module's forward pass; it returns a tensor, or a tuple of them.

    Whatever reads a sharded module's weights goes through here; other modules are left as they are.
    """
    if not isinstance(module, FSDPModule):
        return function()
    said = getattr(module, _FORWARD)(function)
    if not torch.is_grad_enabled():
        reshard(module)  # no backward pass will
    return said


def reshard(module: nn.Module) -> None:
    """Let go of whole weights, which the next optimiser step would leave behind."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def whole(tensor: Tensor) -> Tensor:
    """The tensor with the shards of all ranks; every rank must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
