"""The shape of a transformers model, which its FLOPs follow from.

model_shape(load_policy("shipped").model)     ->  ModelShape(parameters=851968, output_parameters=68608, ...)
config_shape(AutoConfig.from_pretrained(...)) ->  the same without its weights
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from mem1.evaluation.flops import ModelShape

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


def model_shape(model: PreTrainedModel) -> ModelShape | None:
    """Counts the matrices that the model has, so that no list of architectures is needed.

    None where the formula would be wrong: experts, convolutions, windows in place of full attention, no output matrix.
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
    """Whether some layer sees the last tokens only, or none by attention."""
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return getattr(config, "sliding_window", None) is not None
    return any(kind != "full_attention" for kind in kinds)


def config_shape(config: PretrainedConfig) -> ModelShape | None:
    """As `model_shape`, from a configuration alone: the model is made without memory for its weights."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return model_shape(AutoModelForCausalLM.from_config(config, trust_remote_code=False))


def folder_shape(folder: Path) -> ModelShape | None:
    """As `model_shape`, from the config.json of a model's folder."""
    from mem1.training.models import load_config

    return config_shape(load_config(folder))
