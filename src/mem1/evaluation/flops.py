"""Forward FLOPs of a trajectory: the cost of its model calls, with and without a prefix cache.

    shape = model_shape(load_policy("shipped").model)    ->  ModelShape(parameters=851968, output_parameters=68608, ...)
    forward_flops(trajectory, shape)                     ->  31_000_000

A call with n tokens, the first c of them cached and o sampled, needs this many multiplications and additions:

    2 * parameters * (n - c)                      each processed token times every matrix of the layers
    2 * output_parameters * o                     one row of logits per sampled token
    4 * layers * width * pairs                    scores and weighted sums, 2 each per (token, visible token) pair

    pairs = (c + 1) + (c + 2) + ... + n = n (n + 1) / 2 - c (c + 1) / 2

Norms, biases, rotations and softmax are left out, as usual; together they are below one per cent. The last sampled
token of a call counts as processed, as in `total_tokens`. Sources: Kaplan et al. 2020 (arXiv 2001.08361), section 2.1,
which counts only the scores of attention; Chowdhery et al. 2022 (arXiv 2204.02311), appendix B, for the weighted sums.
Here a token attends to itself and to earlier tokens only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mem1.records import Trajectory

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a dense transformer with full causal attention, as the formula needs them."""

    parameters: int
    """Weights in the matrices of all layers, without embeddings, output matrix, norms and biases."""
    output_parameters: int
    """Weights of the output matrix (vocabulary times width), even if it is shared with the embedding."""
    layers: int
    width: int
    """Query heads times the dimension of a head."""


def forward_flops(trajectory: Trajectory, shape: ModelShape, *, cached: Sequence[int] | None = None) -> int:
    """FLOPs of all model calls; `cached` are the tokens that each finds in a prefix cache; None: no cache."""
    return sum(
        _flops(shape, cached=c, tokens=turn.num_tokens, sampled=len(turn.completion_ids))
        for c, turn in zip(cached or [0] * len(trajectory.turns), trajectory.turns, strict=True)
    )


def _flops(shape: ModelShape, *, cached: int, tokens: int, sampled: int) -> int:
    pairs = (tokens * (tokens + 1) - cached * (cached + 1)) // 2
    matrices = shape.parameters * (tokens - cached) + shape.output_parameters * sampled
    return 2 * matrices + 4 * shape.layers * shape.width * pairs


def model_shape(model: PreTrainedModel) -> ModelShape | None:
    """The shape of a transformers model, from its actual matrices, so that no list of architectures is needed.

    None where the formula would be wrong: experts, convolutions, sliding windows, no output matrix.
    """
    from torch import nn

    head = model.get_output_embeddings()
    config = model.config.get_text_config()
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    layers = [p for p in model.parameters() if id(p) not in tables and (head is None or p is not head.weight)]
    experts = any("expert" in name for name, _ in model.named_modules())
    if head is None or experts or _windows(config) or any(p.ndim > 2 for p in layers):
        return None
    heads = config.num_attention_heads
    return ModelShape(
        parameters=sum(p.numel() for p in layers if p.ndim == 2),
        output_parameters=math.prod(head.weight.shape),
        layers=config.num_hidden_layers,
        width=heads * (getattr(config, "head_dim", None) or config.hidden_size // heads),
    )


def _windows(config: PretrainedConfig) -> bool:
    """Whether some layer attends only to a window, or not at all."""
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return getattr(config, "sliding_window", None) is not None
    return any(kind != "full_attention" for kind in kinds)


def config_shape(config: PretrainedConfig) -> ModelShape | None:
    """The shape of a model given only its configuration; no memory is allocated for weights."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return model_shape(AutoModelForCausalLM.from_config(config, trust_remote_code=False))
