"""LoRA: what is trained is the product of two thin matrices beside each linear layer, W x + scale B A x.

    adapted = with_adapters(copy.deepcopy(model), Lora(rank=16))       in place; only A and B are trained
    with adapters_off(adapted): ...                                    the model as it was: the reference policy
    merged(adapted)["model.layers.0.mlp.up_proj.weight"]               W + scale B A: the weights of a plain model
    merge_adapters(adapted)                                            in place: a plain model with these weights

With `quantize`, W is held in 4 bits per weight (QLoRA): NF4 in blocks of 64 weights of a row, each with its own scale.

    quantize(model)                 in place: all linear layers but the head
    plain(layer.weight)             the values it was rounded to, (rows, columns), as a plain tensor
    quantized_weights(model)        ("model.layers.0.mlp.up_proj.weight", ...)

A layer whose rows are not whole blocks is left alone: bitsandbytes' CPU kernels round it wrongly (0.50.2).

The layers are peft's and bitsandbytes'. Sources: Hu et al. 2021 (LoRA, arXiv 2106.09685), section 4.1; Dettmers et al.
2023 (QLoRA, arXiv 2305.14314), section 3, without its second quantisation, of the scales.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mem1.errors import UserError
from mem1.recipe.model import BLOCK, Lora
from mem1.training.ranks.processes import whole

M = TypeVar("M", bound=PreTrainedModel)
_NAME = "default"
_SEED = 0
"""Seed of the drawn matrices A, the same on every rank and in a resumed run."""


def with_adapters(model: M, config: Lora) -> M:
    """The model with adapters, in place; its own weights are frozen, and its outputs are unchanged.

    With quantised weights the outputs are those of the rounded weights. Raises UserError where peft or bitsandbytes
    is not installed, no layer has one of the names, or one that has is no linear layer, or the head.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise UserError("[lora] needs peft, which is not installed: pip install 'mem1-agents[lora]'") from error
    if config.quantize is not None:
        quantize(model)
    targets = _linear(model) if config.layers is None else list(config.layers)
    if not targets:
        raise UserError("[lora] is for linear layers (torch.nn.Linear), and the model has none but its head")
    settings = LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,  # type: ignore[arg-type]  # a float works
        lora_dropout=0.0,
        target_modules=targets,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        try:
            inject_adapter_in_model(settings, model, adapter_name=_NAME)
        except ValueError as error:
            raise UserError(f"lora.layers = {targets} does not fit the model: {error}") from error
    adapted = _adapted(model)
    for name, layer in adapted.items():
        if layer is model.get_output_embeddings() or not isinstance(layer.base_layer, nn.Linear):
            what = (
                "the head" if layer is model.get_output_embeddings() else f"of type {type(layer.base_layer).__name__}"
            )
            raise UserError(
                f"lora.layers = {targets}: {name} is {what}; adapters are for linear layers (torch.nn.Linear) but the "
                "head: name others, or leave lora.layers out for all of them"
            )
    for layer in adapted.values():
        # peft makes them in fp32, whatever the model's precision
        layer.lora_A.to(model.dtype)
        layer.lora_B.to(model.dtype)
    return model


def _linear(model: PreTrainedModel) -> list[str]:
    """Names of all linear layers but the head."""
    head = model.get_output_embeddings()
    return [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and layer is not head]


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Inside the block the model computes without its adapters; for one thread at a time."""
    layers = _adapted(model).values()
    for layer in layers:
        layer.set_scale(_NAME, 0.0)
    try:
        yield
    finally:
        for layer in layers:
            layer.set_scale(_NAME, 1.0)


@dataclass(frozen=True, slots=True)
class PlainWeight:
    """A weight of the plain model: without shards, 4 bits and adapters."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], Tensor]
    """Gathers and merges it; every rank must call it."""


def plain_weights(model: nn.Module) -> dict[str, PlainWeight]:
    """The weights of the plain model by name; nothing is gathered yet."""
    layers = _adapted(model)
    found: dict[str, PlainWeight] = {}
    for name, parameter in model.named_parameters():
        owner = next((layer for layer in layers if name.startswith(f"{layer}.")), None)
        inside = name.removeprefix(f"{owner}.")
        if owner is not None and not inside.startswith("base_layer."):
            continue
        read = partial(plain, parameter)
        if owner is not None and inside == "base_layer.weight":
            read = partial(_merged, layers[owner], parameter)
        state = getattr(parameter, "quant_state", parameter)
        plain_name = name if owner is None else f"{owner}.{inside.removeprefix('base_layer.')}"
        found[plain_name] = PlainWeight(state.dtype, tuple(state.shape), read)
    return found


@torch.no_grad()
def merged(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Name and whole weight of each parameter of the plain model; every rank must iterate over all of them."""
    for name, weight in plain_weights(model).items():
        yield name, weight.read()


def gather_along(model: nn.Module) -> None:
    """Take part, without a use for the weights, where another rank iterates over `merged(model)`."""
    deque(merged(model), maxlen=0)


def _merged(layer: Any, parameter: Tensor) -> Tensor:
    """W + scale B A."""
    low, high = whole(layer.lora_A[_NAME].weight), whole(layer.lora_B[_NAME].weight)
    return plain(parameter) + layer.scaling[_NAME] * (high @ low)


@torch.no_grad()
def merge_adapters(model: nn.Module) -> None:
    """Make the model a plain one, in place: adapters merged, no layer in 4 bits, all weights trainable."""
    rounded = {name.removesuffix(".weight") for name in quantized_weights(model)}
    adapted = _adapted(model)
    for name in adapted.keys() | {own for own in rounded if own.removesuffix(".base_layer") not in adapted}:
        layer: Any = model.get_submodule(name)
        base = getattr(layer, "base_layer", layer)
        linear = nn.Linear(base.in_features, base.out_features, bias=base.bias is not None, device="meta")
        linear.weight = nn.Parameter(_merged(layer, base.weight) if name in adapted else plain(base.weight))
        linear.bias = base.bias
        _put(model, name, linear)
    if adapted:
        del model.peft_config  # peft's note that there are adapters
    model.requires_grad_(True)


def _put(model: nn.Module, name: str, layer: nn.Module) -> None:
    """Put the layer in the place of the one with this name."""
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, layer)


def _adapted(model: nn.Module) -> dict[str, Any]:
    """peft's layers by name."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}


def quantize(model: PreTrainedModel) -> None:
    """Replace the linear layers, except the head, by 4-bit ones.

    Raises UserError without bitsandbytes, and where no layer's rows are whole blocks.
    """
    try:
        from bitsandbytes.nn.modules import Linear4bit, Params4bit
    except ImportError as error:
        raise UserError(
            "lora.quantize needs bitsandbytes, which is not installed: pip install 'mem1-agents[qlora]'"
        ) from error
    options: dict[str, Any] = {"quant_type": "nf4", "compress_statistics": False}
    layers = quantizable(model)
    if not layers:
        raise UserError(f"lora.quantize: the model has no linear layer whose inputs are a multiple of {BLOCK}")
    for name, layer in layers.items():
        small = Linear4bit(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta", **options)
        rounded: Any = Params4bit(layer.weight.data, requires_grad=False, **options)
        rounded.module = small  # receives the scales when they are made
        small.weight = rounded
        small.bias = layer.bias
        # its packing for processors with AVX512-BF16 has no backward pass; evaluation mode would switch to it
        small.support_avx512bf16_for_cpu = False
        _put(model, name, small.to(layer.weight.device))


def quantizable(model: PreTrainedModel) -> dict[str, nn.Linear]:
    """The linear layers that `quantize` replaces, by name."""
    head = model.get_output_embeddings()
    return {
        name: layer
        for name, layer in model.named_modules()
        if type(layer) is nn.Linear and layer is not head and layer.in_features % BLOCK == 0
    }


def plain(parameter: Tensor) -> Tensor:
    """A weight as plain numbers: dequantised, and with the rows of all ranks."""
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return whole(parameter)
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(parameter.data, state)


def quantized_weights(module: nn.Module) -> tuple[str, ...]:
    """Names of the quantised weights, with which the names of their scales in a state dictionary begin."""
    return tuple(name for name, p in module.named_parameters() if getattr(p, "quant_state", None) is not None)
