"""Exact attention over a token tree, through transformers' attention interface: no model code is copied.

    check_packable(model)                                        UserError: why its packed numbers would be others
    tree = pack(trajectories)
    plan = plan_attention(tree)                                  once per tree, not per layer
    with tree_attention(model):                                  model.generate is unchanged outside
        hidden = model.get_decoder()(tree.input_ids[None], position_ids=tree.position_ids[None],
                                     use_cache=False, tree_plan=plan).last_hidden_state

A packed forward pass computes each token once for all contexts that share it. That is exact only if a token's hidden
state depends on nothing but the tokens that it may see and its position. Three back-ends share one plan: "blocks"
(`packing/blocks.py`), "dense", one product with a T x T mask, which is the reference in tests, and "flex" for CUDA:
FlexAttention, whose mask of a tree is one line, k <= q < end[k]. It evaluates it inside its kernel, for blocks of
128 x 128 pairs, and needs to know beforehand which blocks hide everything (skipped) and which hide nothing (no mask).
Both follow from the smallest and largest `end` of 128 keys, without ever looking at all T x T pairs:

    block of queries i after block of keys j:   some pair is visible  iff  128 i < max end of j
                                                every pair is         iff  128 (i + 1) <= min end of j
    a block of queries on its own keys:         some pairs always, all never

The length is padded to a multiple of 128 with tokens that see only themselves: FlexAttention has had wrong gradients
at other lengths (pytorch #153799), and a row that sees nothing would be 0 / 0. One kernel is compiled for all lengths.
FlexAttention has no backward pass on CPU (torch 2.13). There `attend` runs it forward only, uncompiled, for tests and
`mem1 verify --attention flex`. In float64, which its kernels do not know, it runs uncompiled on CUDA too.

Source: Dong et al. 2024 (FlexAttention, arXiv 2412.05496), sections 3 and 4.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad
from transformers import AttentionInterface, PreTrainedModel

from mem1.engines.alike import STATES
from mem1.errors import UserError
from mem1.packing.blocks import Blocks, cut
from mem1.packing.tree import TokenTree, visible

BLOCK = 128
"""Queries, and keys, of a block of the mask."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flex:
    """Plan of the FlexAttention back-end."""

    mask: BlockMask
    """Over the padded length."""

    def attend(self, q_THD: Tensor, k_TJD: Tensor, v_TJD: Tensor, scaling: float) -> Tensor:
        """Attention output, (T, H, D). Raises UserError where a gradient is needed on a device other than CUDA."""
        device = q_THD.device.type
        if device != "cuda" and torch.is_grad_enabled() and any(x.requires_grad for x in (q_THD, k_TJD, v_TJD)):
            raise UserError(
                f"FlexAttention has no backward pass on {device}: train with attention = 'blocks' there, or on CUDA"
            )
        length = len(q_THD)
        padding = (0, 0, 0, 0, 0, self.mask.seq_lengths[0] - length)
        q, k, v = (pad(x, padding).transpose(0, 1)[None] for x in (q_THD, k_TJD, v_TJD))
        kernel = _uncompiled
        if torch.compiler.is_compiling():  # with the rest of the layer
            kernel = flex_attention
        elif device == "cuda" and q_THD.dtype is not torch.float64:
            kernel = _compiled()
        out_1HTD = kernel(q, k, v, block_mask=self.mask, scale=scaling, enable_gqa=True)
        return out_1HTD[0, :, :length].transpose(0, 1)


def _uncompiled(*arguments: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        # torch would tell the user to compile what is uncompiled on purpose
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        return flex_attention(*arguments, **options)


@cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=True)


def plan_flex(tree: TokenTree, device: torch.device | str) -> Flex:
    """The tree's mask by blocks, made on the device, which nothing waits for."""
    length = -(-len(tree) // BLOCK) * BLOCK
    end_T = torch.cat([tree.end, torch.arange(len(tree) + 1, length + 1)]).to(device, non_blocking=True)
    end_jB = end_T.view(-1, BLOCK)
    number_i = torch.arange(len(end_jB), device=device)[:, None]
    before_ij = number_i > number_i.T
    full_ij = before_ij & (BLOCK * (number_i + 1) <= end_jB.amin(1))
    some_ij = (before_ij & (BLOCK * number_i < end_jB.amax(1))) | (number_i == number_i.T)

    def visible(_batch: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q < end_T[k])

    mask = BlockMask.from_kv_blocks(*_listed(some_ij & ~full_ij), *_listed(full_ij), BLOCK_SIZE=BLOCK, mask_mod=visible)
    return Flex(mask=mask)


def _listed(blocks_ij: Tensor) -> tuple[Tensor, Tensor]:
    """Per block of queries the number of key blocks (1, 1, I), and which they are, those first (1, 1, I, J)."""
    order = blocks_ij.to(torch.int32).argsort(dim=1, descending=True, stable=True)
    return blocks_ij.sum(1, dtype=torch.int32)[None, None], order.to(torch.int32)[None, None]


IMPLEMENTATION = "mem1_tree"
"""Name under which tree attention is registered in transformers."""

Backend = Literal["blocks", "products", "dense", "flex"]
"""products: blocks as off the CPU, where parts are plain products."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dense:
    """Plan of the dense back-end: the whole mask. Time and memory are quadratic in the tree."""

    visible: Tensor
    """Bool (T, T)."""

    def attend(self, q_THD: Tensor, k_TJD: Tensor, v_TJD: Tensor, scaling: float) -> Tensor:
        """Attention output, (T, H, D)."""
        share = q_THD.shape[1] // k_TJD.shape[1]
        k, v = (x.repeat_interleave(share, dim=1) for x in (k_TJD, v_TJD))
        scores = torch.einsum("qhd,khd->hqk", q_THD, k) * scaling
        scores = scores.masked_fill(~self.visible, -torch.inf)
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
        return torch.einsum("hqk,khd->qhd", weights.to(v.dtype), v)


Plan = Blocks | Dense | Flex


def choose_attention(wanted: str, device: torch.device, *, gradients: bool = True) -> Backend:
    """The back-end that "auto", "blocks" or "flex" means for tensors on this device: auto is flex on CUDA, else blocks.

    Raises UserError for flex off CUDA where `gradients` are needed, as FlexAttention has no backward pass there.
    """
    if wanted == "flex" and gradients and device.type != "cuda":
        raise UserError(
            f"FlexAttention has no backward pass on {device.type}: set model.attention to auto or blocks there"
        )
    if wanted == "auto":
        return "flex" if device.type == "cuda" else "blocks"
    return "flex" if wanted == "flex" else "blocks"


def plan_attention(tree: TokenTree, *, backend: Backend = "blocks", device: torch.device | str = "cpu") -> Plan:
    """The layout of a tree for attention, computed once and used by every layer."""
    if backend == "dense":
        return Dense(visible=visible(tree).to(device, non_blocking=True))
    if backend == "flex":
        return plan_flex(tree, device)
    return replace(cut(tree), products=backend == "products").to(device)


@contextmanager
def tree_attention(model: PreTrainedModel) -> Iterator[None]:
    """Inside, `model` attends along a token tree and needs `tree_plan=` in its forward; restored afterwards.

    With gradient checkpointing the backward pass must run inside too, as it runs the layers again.
    """
    before = model.config._attn_implementation
    assert before is not None
    model.set_attn_implementation(IMPLEMENTATION)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    tree_plan: Plan | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: (1, heads, T, D) in, (1, T, heads, D) out."""
    if tree_plan is None or attention_mask is not None or len(query) != 1:
        raise ValueError("tree attention takes one tree: pass tree_plan=plan_attention(tree), and no attention_mask")
    kind = query.device.type
    if torch.is_autocast_enabled(kind):
        query, key, value = (x.to(torch.get_autocast_dtype(kind)) for x in (query, key, value))
    with torch.autocast(kind, enabled=False):
        q_THD, k_TJD, v_TJD = (x[0].transpose(0, 1) for x in (query, key, value))
        out_THD = tree_plan.attend(q_THD, k_TJD, v_TJD, scaling)
    return out_THD[None], None


AttentionInterface.register(IMPLEMENTATION, _attention)


PACKABLE = ("qwen2", "llama", "qwen3")
"""Architectures (`config.model_type`) whose packed log-probs and gradients are tested."""

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_SOFTCAPS = ("final_logit_softcapping", "attn_logit_softcapping", "logit_scale", "logits_scaling")
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


def check_packable(model: PreTrainedModel) -> None:
    """Raises UserError, with every reason by name, if packing would not be exact for `model`."""
    if why := unpackable(model):
        raise UserError(f"{why}. Set packed = false: it is then trained one context a row, with its own attention.")


def unpackable(model: PreTrainedModel) -> str:
    """Every reason, by name, why packing would not be exact for `model`; empty: it is.

    Such a model is trained one context a row, with its own attention.
    """
    reasons = [*_config_reasons(model.config), *_module_reasons(model)]
    if model.config.model_type not in PACKABLE:
        reasons.append(f"architecture {model.config.model_type!r} is not among those tested: {', '.join(PACKABLE)}")
    return f"{type(model).__name__} cannot be packed exactly: {'; '.join(reasons)}" if reasons else ""


def _config_reasons(config: Any) -> Iterator[str]:
    kinds = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
    if kinds:
        yield f"it has layers of type {', '.join(kinds)}, which do not see all earlier tokens"
    elif getattr(config, "layer_types", None) is None and getattr(config, "sliding_window", None):
        yield f"its attention has a sliding window (sliding_window = {config.sliding_window})"
    for name in _EXPERTS:
        if getattr(config, name, None):
            yield f"it is a mixture of experts ({name} = {getattr(config, name)}), whose routing may depend on the pack"
    for name in STATES:
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
