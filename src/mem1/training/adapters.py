"""LoRA: what is trained is a product of two thin matrices beside each linear layer, W x + scale B A x.

    adapted = with_adapters(copy.deepcopy(model), Lora(rank=16))       in place; only A and B are to be moved
    with adapters_off(adapted): ...                                    the model as it was: the reference policy
    merged(adapted)["model.layers.0.mlp.up_proj.weight"]               W + scale B A: the weights of a plain model

The layers are peft's. Source: Hu et al. 2021 (LoRA, arXiv 2106.09685), section 4.1. With `quantize`, W itself is
held in 4 bits (`quantized.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mem1.errors import UserError
from mem1.training.lora_config import Lora
from mem1.training.quantized import plain, quantize
from mem1.training.sharding import whole

M = TypeVar("M", bound=PreTrainedModel)
_NAME = "default"
_SEED = 0
"""Of the drawn matrices A: the same on every rank and in a resumed run."""


def with_adapters(model: M, config: Lora) -> M:
    """The model with adapters, in place; its own weights are frozen, and it computes what it did.

    Quantised ones it computes with as what they were rounded to. Raises UserError where peft or bitsandbytes is not
    installed, or no layer has one of the names.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise UserError("[lora] needs peft, which is not installed: pip install 'mem1[lora]'") from error
    if config.quantize is not None:
        quantize(model)
    targets = "all-linear" if config.layers is None else list(config.layers)
    settings = LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,  # type: ignore[arg-type]  # a float will do
        lora_dropout=0.0,
        target_modules=targets,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        try:
            inject_adapter_in_model(settings, model, adapter_name=_NAME)
        except ValueError as error:
            raise UserError(f"lora.layers = {targets} does not fit the model: {error}") from error
    for layer in _adapted(model).values():
        # peft makes them in fp32 whatever the model is in
        layer.lora_A.to(model.dtype)
        layer.lora_B.to(model.dtype)
    return model


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Inside, the model computes what it did without them; for one thread at a time."""
    layers = _adapted(model).values()
    for layer in layers:
        layer.set_scale(_NAME, 0.0)
    try:
        yield
    finally:
        for layer in layers:
            layer.set_scale(_NAME, 1.0)


@torch.no_grad()
def merged(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Name and whole weight of each parameter of the plain model; on several ranks all must go through them."""
    layers = _adapted(model)
    for name, parameter in model.named_parameters():
        owner, inside = _split(name, layers)
        if owner is None:
            yield name, plain(parameter)
        elif inside.startswith("base_layer."):
            weight = plain(parameter)
            if inside == "base_layer.weight":
                layer = layers[owner]
                low, high = whole(layer.lora_A[_NAME].weight), whole(layer.lora_B[_NAME].weight)
                weight = weight + layer.scaling[_NAME] * (high @ low)
            yield f"{owner}.{inside.removeprefix('base_layer.')}", weight


def _split(name: str, layers: dict[str, Any]) -> tuple[str | None, str]:
    """(adapted layer that it is of, its name inside); none: (None, name)."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        owner = ".".join(parts[:end])
        if owner in layers:
            return owner, ".".join(parts[end:])
    return None, name


def _adapted(model: nn.Module) -> dict[str, Any]:
    """peft's layers by name; none where it is not even loaded."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}
