"""Frozen linear layers in 4 bits a weight: NF4 in blocks of 64 of a row, each with a scale of its own.

    quantize(model)                 in place: all linear layers but the head
    plain(layer.weight)             what it was rounded to, (rows, columns), as a plain tensor
    quantized_weights(model)        ("model.layers.0.mlp.up_proj.weight", ...)

A layer whose rows are not whole blocks stays as it is: bitsandbytes' kernels for CPUs round it wrongly (0.50.2).
The layers are bitsandbytes'. Source: Dettmers et al. 2023 (QLoRA, arXiv 2305.14314), section 3; its second
quantisation, of the scales, is left out.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from mem1.errors import UserError
from mem1.training.lora_config import BLOCK
from mem1.training.sharding import whole


def quantize(model: PreTrainedModel) -> None:
    """Put 4-bit layers in the place of the linear ones, the head aside.

    Raises UserError without bitsandbytes, and where no layer's rows are whole blocks.
    """
    try:
        from bitsandbytes.nn.modules import Linear4bit, Params4bit
    except ImportError as error:
        raise UserError(
            "lora.quantize needs bitsandbytes, which is not installed: pip install 'mem1[qlora]'"
        ) from error
    head = model.get_output_embeddings()
    options: dict[str, Any] = {"quant_type": "nf4", "compress_statistics": False}
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if type(layer) is nn.Linear and layer is not head and layer.in_features % BLOCK == 0
    }
    if not layers:
        raise UserError(f"lora.quantize: the model has no linear layer whose inputs are a multiple of {BLOCK}")
    for name, layer in layers.items():
        small = Linear4bit(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta", **options)
        rounded: Any = Params4bit(layer.weight.data, requires_grad=False, **options)
        rounded.module = small  # who is told of the scales when they are made
        small.weight = rounded
        small.bias = layer.bias
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, small.to(layer.weight.device))


def plain(parameter: Tensor) -> Tensor:
    """A weight as numbers: of a quantised one what it was rounded to, of one that is spread all ranks' rows."""
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return whole(parameter)
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(parameter.data, state)


def quantized_weights(module: nn.Module) -> tuple[str, ...]:
    """Names of the quantised weights; what they add to the state of a module begins with them."""
    return tuple(name for name, p in module.named_parameters() if getattr(p, "quant_state", None) is not None)
