"""Which models can be packed exactly, and why the others cannot.

A packed forward pass computes each token once for all contexts that share it. That is exact only if a token's
hidden state depends on nothing but the tokens that it may see and its position.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from mem1.errors import UserError

PACKABLE = ("qwen2", "llama", "qwen3")
"""Architectures (`config.model_type`) whose packed log-probs and gradients are tested."""

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_STATES = ("state_size", "ssm_state_size", "mamba_d_state")
_SOFTCAPS = ("final_logit_softcapping", "attn_logit_softcapping", "logit_scale", "logits_scaling")
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


def check_packable(model: PreTrainedModel) -> None:
    """Raises UserError, with every reason by name, if packing would not be exact for `model`."""
    reasons = [*_config_reasons(model.config), *_module_reasons(model)]
    if model.config.model_type not in PACKABLE:
        reasons.append(f"architecture {model.config.model_type!r} is not among those tested: {', '.join(PACKABLE)}")
    if reasons:
        raise UserError(
            f"{type(model).__name__} cannot be packed exactly: {'; '.join(reasons)}. "
            "Set packed = false: it is then trained one context a row, with its own attention."
        )


def _config_reasons(config: Any) -> Iterator[str]:
    kinds = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
    if kinds:
        yield f"it has layers of type {', '.join(kinds)}, which do not see all earlier tokens"
    elif getattr(config, "layer_types", None) is None and getattr(config, "sliding_window", None):
        yield f"its attention has a sliding window (sliding_window = {config.sliding_window})"
    for name in _EXPERTS:
        if getattr(config, name, None):
            yield f"it is a mixture of experts ({name} = {getattr(config, name)}), whose routing may depend on the pack"
    for name in _STATES:
        if getattr(config, name, None):
            yield f"it has state-space layers ({name} = {getattr(config, name)}), whose state runs on over all branches"
    for name, value in sorted(config.to_dict().items()):
        if name.endswith(("dropout", "_pdrop")) and isinstance(value, float | int) and value > 0:
            yield f"{name} = {value} drops at random; set it to 0"
    for name in _SOFTCAPS:
        if getattr(config, name, None) is not None:
            yield f"{name} = {getattr(config, name)} changes scores or logits after the fact"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in _LENGTH_DEPENDENT_ROPE:
        yield f"rope_type {rope['rope_type']!r} depends on the longest context of the pack"
    if getattr(config, "position_embedding_type", None) == "absolute":
        yield "its positions are learned (position_embedding_type = 'absolute')"


def _module_reasons(model: nn.Module) -> Iterator[str]:
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout) and module.p > 0:
            yield f"{name} is a dropout of {module.p}; set it to 0"
            break
    for name, _ in model.named_parameters():
        if name.rsplit(".", 1)[-1] == "sinks":
            yield f"{name} is an attention sink"
            break
