"""Attention over a token tree with FlexAttention: the back-end for CUDA.

The mask of a tree is one line, k <= q < end[k]. FlexAttention evaluates it inside its kernel, for blocks of 128 x 128
pairs, and needs to know beforehand which blocks hide everything (skipped) and which hide nothing (no mask). Both follow
from the smallest and largest `end` of 128 keys, without ever looking at all T x T pairs:

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
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad

from mem1.errors import UserError
from mem1.packing.tree import TokenTree

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
        kernel = _compiled() if device == "cuda" and q_THD.dtype is not torch.float64 else flex_attention
        with warnings.catch_warnings():
            # torch would tell the user to compile what is uncompiled on purpose
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            out_1HTD = kernel(q, k, v, block_mask=self.mask, scale=scaling, enable_gqa=True)
        return out_1HTD[0, :, :length].transpose(0, 1)


@cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=True)


def plan_flex(tree: TokenTree, device: torch.device | str) -> Flex:
    """The tree's mask by blocks."""
    length = -(-len(tree) // BLOCK) * BLOCK
    end_T = torch.cat([tree.end, torch.arange(len(tree) + 1, length + 1)])
    end_jB = end_T.view(-1, BLOCK)
    number_i = torch.arange(len(end_jB))[:, None]
    before_ij = number_i > number_i.T
    full_ij = before_ij & (BLOCK * (number_i + 1) <= end_jB.amin(1))
    some_ij = (before_ij & (BLOCK * number_i < end_jB.amax(1))) | (number_i == number_i.T)
    end_on_device = end_T.to(device)

    def visible(_batch: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q < end_on_device[k])

    mask = BlockMask.from_kv_blocks(*_listed(some_ij & ~full_ij), *_listed(full_ij), BLOCK_SIZE=BLOCK, mask_mod=visible)
    return Flex(mask=mask.to(device))


def _listed(blocks_ij: Tensor) -> tuple[Tensor, Tensor]:
    """Per block of queries the number of key blocks (1, 1, I), and which they are, those first (1, 1, I, J)."""
    order = blocks_ij.to(torch.int32).argsort(dim=1, descending=True, stable=True)
    return blocks_ij.sum(1, dtype=torch.int32)[None, None], order.to(torch.int32)[None, None]
