"""Exact attention over a token tree, through transformers' attention interface: no model code is copied.

    tree = pack(trajectories)
    plan = plan_attention(tree)                                  once per tree, not per layer
    with tree_attention(model):                                  model.generate is unchanged outside
        hidden = model.get_decoder()(tree.input_ids[None], position_ids=tree.position_ids[None],
                                     use_cache=False, tree_plan=plan).last_hidden_state

Three back-ends share one plan: "blocks" (`packing/blocks.py`), "flex" (FlexAttention, `packing/flex.py`) and "dense",
one product with a T x T mask, which is the reference in tests. `choose_attention` chooses one for a recipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from mem1.errors import UserError
from mem1.packing.blocks import Blocks, cut
from mem1.packing.flex import Flex, plan_flex
from mem1.packing.tree import TokenTree, visible

IMPLEMENTATION = "mem1_tree"
"""Name under which tree attention is registered in transformers."""

Backend = Literal["blocks", "dense", "flex"]


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
    """What attention needs to know of a tree, computed once and used by every layer."""
    if backend == "dense":
        return Dense(visible=visible(tree).to(device))
    if backend == "flex":
        return plan_flex(tree, device)
    return Blocks(cut=cut(tree).to(device))


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
