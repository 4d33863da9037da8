"""Weights, gradients and optimiser states sharded over the ranks by FSDP2 (`fully_shard`).

    shard(model, Distributed())
    log-probs = as_forward(model, lambda: score(model, ...))        inside, weights are gathered layer by layer

The loss of a rank is its share of a sum whose denominator is that of the whole step, so gradients are summed over the
ranks and never averaged. Layers are gathered one at a time; everything else (embeddings, last norm, head) is one group,
gathered from the beginning of `as_forward` to its end, and again in the backward pass.

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

Output = TypeVar("Output", Tensor, tuple[Tensor, ...])
_FORWARD = "_mem1_forward"


def shard(module: nn.Module, config: Distributed, *, offload: bool = False, full_precision: bool = False) -> None:
    """Shard the module over all ranks, in place; every rank must hold the same weights.

    offload             keep its weights in the computer's memory
    full_precision      ignore `mixed_precision`, as for a critic's head
    """
    mixed = config.mixed_precision is not None and not full_precision
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    away = torch.cuda.is_available() and (offload or config.cpu_offload)  # without a GPU they are there anyway
    frozen = {p for p in module.parameters() if not p.is_floating_point()}  # 4-bit weights: whole on every rank
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
    # the outermost group always reshards after forward: gathered weights must not outlive an optimiser step
    fully_shard(module, reshard_after_forward=True, **options)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
    setattr(module, _FORWARD, MethodType(_call, module))
    register_fsdp_forward_method(module, _FORWARD)


def layers(module: nn.Module) -> list[nn.Module]:
    """The layers of each transformer inside: the modules that transformers says must not be split."""
    names = {name for part in module.modules() for name in (getattr(part, "_no_split_modules", None) or ())}
    return [part for part in module.modules() if class_name(part) in names]


def class_name(module: nn.Module) -> str:
    """Name of the module's class, without the prefix that FSDP adds."""
    return type(module).__name__.removeprefix("FSDP" if isinstance(module, FSDPModule) else "")


def _call(_module: nn.Module, function: Callable[[], Output]) -> Output:
    """FSDP hooks the backward pass to the returned tensors, which must not be views."""
    output = function()
    return output.clone() if isinstance(output, Tensor) else tuple(tensor.clone() for tensor in output)  # type: ignore[return-value]


def as_forward(module: nn.Module, function: Callable[[], Output]) -> Output:
    """Call `function` as if it were the module's forward pass; it returns a tensor, or a tuple of tensors.

    All code that reads a sharded module's weights must go through here; for other modules it is a plain call.
    """
    if not isinstance(module, FSDPModule):
        return function()
    output = getattr(module, _FORWARD)(function)
    if not torch.is_grad_enabled():
        reshard(module)  # no backward pass will do it
    return output


def reshard(module: nn.Module) -> None:
    """Free gathered weights, which the next optimiser step would make stale."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def whole(tensor: Tensor) -> Tensor:
    """The tensor with the shards of all ranks; every rank must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
