"""Attention over the rectangles and blocks of a token tree (`packing/blocks.py`), forward and backward.

Each part is softmax attention over its own keys; parts of one query are merged by their log-sums, as flash
attention merges tiles. With the merged log-sum the backward pass of each part stands alone, and its scores are
computed again rather than kept: one more product, and memory stays that of one part. Softmax is in fp32 (fp64
for fp64 inputs), as in transformers' own plain attention.

Letters: T tokens, D head size, J key-value heads, each shared by G query heads; u blocks of a chunk, padded to
L queries and K keys; B batch of a product, R rows of queries in it, N keys.

Source: the merge by log-sums, Dao et al. 2022 (FlashAttention, arXiv 2205.14135), section 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mem1.packing.blocks import Chunk, Rectangle

MASKED = -1e30
"""Added to the score of a hidden key; finite, as 0 * inf would be nan."""
LOG2E = math.log2(math.e)
"""Scores are taken in base 2: on CPU torch.exp is 10 to 100 times slower where it underflows, exp2 is not."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks:
    """Plan of the block back-end: made once per tree, used by every layer."""

    chunks: tuple[Chunk, ...]
    rectangles: tuple[Rectangle, ...]

    def attend(self, q_THD: Tensor, k_TJD: Tensor, v_TJD: Tensor, scaling: float) -> Tensor:
        """softmax(q k * scaling over the visible keys) v, (T, H, D); differentiable in q, k and v."""
        T, H, D = q_THD.shape
        q_JTGD = q_THD.view(T, k_TJD.shape[1], -1, D).transpose(0, 1)
        k_JTD, v_JTD = k_TJD.transpose(0, 1), v_TJD.transpose(0, 1)
        out_JTGD = _BlockAttention.apply(q_JTGD.contiguous(), k_JTD.contiguous(), v_JTD.contiguous(), self, scaling)
        return out_JTGD.transpose(0, 1).reshape(T, H, D)


class _BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_JTGD: Tensor, k_JTD: Tensor, v_JTD: Tensor, plan: Blocks, scaling: float) -> Tensor:
        out = torch.empty_like(q_JTGD, dtype=_wide(q_JTGD))
        log_sum = out.new_empty(*q_JTGD.shape[:3], 1)
        for chunk in plan.chunks:
            part, part_sum = _part(
                _queries(q_JTGD, chunk), _keys(k_JTD, chunk), _keys(v_JTD, chunk), scaling, chunk.hidden
            )
            out.index_copy_(1, chunk.query_nodes, _from_queries(part, chunk, out))
            log_sum.index_copy_(1, chunk.query_nodes, _from_queries(part_sum, chunk, log_sum))
        for rectangle in plan.rectangles:
            rows, keys = slice(*rectangle.queries), slice(*rectangle.keys)
            part, part_sum = _part(q_JTGD[:, rows].flatten(1, 2), k_JTD[:, keys], v_JTD[:, keys], scaling)
            _merge(out[:, rows], log_sum[:, rows], part, part_sum)
        out = out.to(q_JTGD.dtype)
        ctx.save_for_backward(q_JTGD, k_JTD, v_JTD, out, log_sum)
        ctx.plan, ctx.scaling = plan, scaling
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, v, out, log_sum = ctx.saved_tensors
        # Gradients sum over parts, those of a key over all branches that see it, hence in fp32.
        d_q, d_k, d_v = (torch.zeros_like(x, dtype=_wide(x)) for x in (q, k, v))
        # The softmax's own term, the sum over keys of weight * d_weight, is d_out . out.
        delta = (d_out * out).sum(-1, keepdim=True, dtype=_wide(q))
        d_out = d_out.contiguous()
        for chunk in ctx.plan.chunks:
            queries = [_queries(x, chunk) for x in (q, d_out, log_sum, delta)]
            parts = _part_backward(queries, _keys(k, chunk), _keys(v, chunk), ctx.scaling, chunk.hidden)
            d_q.index_copy_(1, chunk.query_nodes, _from_queries(parts[0], chunk, d_q))
            for total, part in zip((d_k, d_v), parts[1:], strict=True):
                total.index_add_(1, chunk.key_nodes.view(-1), part.view(len(total), -1, part.shape[-1]))
        for rectangle in ctx.plan.rectangles:
            rows, keys = slice(*rectangle.queries), slice(*rectangle.keys)
            queries = [x[:, rows].flatten(1, 2) for x in (q, d_out, log_sum, delta)]
            parts = _part_backward(queries, k[:, keys], v[:, keys], ctx.scaling)
            for total, part in zip((d_q[:, rows], d_k[:, keys], d_v[:, keys]), parts, strict=True):
                total.add_(part.view(total.shape))
        return d_q.mul_(ctx.scaling).to(q.dtype), d_k.mul_(ctx.scaling).to(k.dtype), d_v.to(v.dtype), None, None


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _part(
    q_BRD: Tensor, k_BND: Tensor, v_BND: Tensor, scaling: float, hidden: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention over the keys of one part: output (B, R, D) and base-2 log-sum of scores (B, R, 1)."""
    scores = _scores(q_BRD, k_BND, scaling, hidden)
    largest = scores.amax(-1, keepdim=True)
    weights = scores.sub_(largest).exp2_()
    total = weights.sum(-1, keepdim=True)
    return torch.bmm(weights.to(v_BND.dtype), v_BND).to(weights.dtype).div_(total), largest.add_(total.log2())


def _part_backward(
    queries: Sequence[Tensor], k_BND: Tensor, v_BND: Tensor, scaling: float, hidden: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values from one part, in fp32 or fp64; the first two still without `scaling`.

    `queries`: queries and output gradients (B, R, D), log-sums and deltas (B, R, 1).
    """
    q_BRD, d_out_BRD, log_sum_BR1, delta_BR1 = queries
    weights = _scores(q_BRD, k_BND, scaling, hidden).sub_(log_sum_BR1).exp2_()
    d_scores = torch.bmm(d_out_BRD, v_BND.transpose(1, 2)).to(weights.dtype).sub_(delta_BR1).mul_(weights)
    d_scores, weights = d_scores.to(q_BRD.dtype), weights.to(q_BRD.dtype)
    d_q = torch.bmm(d_scores, k_BND)
    d_k = torch.bmm(d_scores.transpose(1, 2), q_BRD)
    d_v = torch.bmm(weights.transpose(1, 2), d_out_BRD)
    return d_q.to(_wide(d_q)), d_k.to(_wide(d_k)), d_v.to(_wide(d_v))


def _scores(q_BRD: Tensor, k_BND: Tensor, scaling: float, hidden: Tensor | None) -> Tensor:
    """Masked scores (B, R, N) in base 2, in fp32 or fp64; a new tensor."""
    # scaling the product rather than the queries rounds as transformers' own attention does
    nothing = q_BRD.new_empty(1, 1, 1)
    scores = torch.baddbmm(nothing, q_BRD, k_BND.transpose(1, 2), beta=0, alpha=scaling * LOG2E).to(_wide(q_BRD))
    if hidden is not None:
        u, L, _, K = hidden.shape
        # Adding a bias is several times faster than masked_fill_ on CPU; exp2 turns it into exactly 0.
        scores.view(-1, u, L, q_BRD.shape[1] // L, K).add_(hidden.to(scores.dtype).mul_(MASKED))
    return scores


def _merge(out_JnGD: Tensor, log_sum_JnG1: Tensor, part: Tensor, part_sum: Tensor) -> None:
    """Add a part to what its queries have seen so far, in place."""
    part_sum = part_sum.view(log_sum_JnG1.shape)
    both = torch.logaddexp2(log_sum_JnG1, part_sum)
    out_JnGD.mul_(log_sum_JnG1.sub_(both).exp2_())
    out_JnGD.addcmul_(part.view(out_JnGD.shape), part_sum.sub_(both).exp2_())
    log_sum_JnG1.copy_(both)


def _queries(x_JTGX: Tensor, chunk: Chunk) -> Tensor:
    """Rows of a chunk's queries, (J*u, L*G, X); padding is 0."""
    u, L, _, _ = chunk.hidden.shape
    J, _, G, X = x_JTGX.shape
    rows = x_JTGX.new_zeros(J, u * L, G, X)
    rows.index_copy_(1, chunk.query_slots, x_JTGX.index_select(1, chunk.query_nodes))
    return rows.view(J * u, L * G, X)


def _from_queries(x: Tensor, chunk: Chunk, like_JTGX: Tensor) -> Tensor:
    """Inverse of `_queries` without the padding: (J, n, G, X)."""
    J, _, G, X = like_JTGX.shape
    return x.view(J, -1, G, X).index_select(1, chunk.query_slots)


def _keys(x_JTD: Tensor, chunk: Chunk) -> Tensor:
    """Rows of a chunk's keys or values, (J*u, K, D)."""
    u, K = chunk.key_nodes.shape
    J, _, D = x_JTD.shape
    return x_JTD.index_select(1, chunk.key_nodes.view(-1)).view(J * u, K, D)
