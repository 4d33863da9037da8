"""Tree attention in blocks: plain matrix products over short runs of queries and exactly the keys they may see.

Any run [s, e) of the depth-first layout needs as keys only the ancestors of s and the run itself: a token k < s
that is visible to some q in the run has s inside its subtree too. So the layout is cut into runs, at branches
where that is cheap, and each run is one small attention problem:

    index   0 1 2 3 4 5 6 | 7 8 9 10      block [7, 11): queries 7 8 9 10
    parent -1 0 1 2 3 4 5 | 1 7 8 9                      keys    0 1 | 7 8 9 10     (0 1: ancestors of 7)

Blocks of similar size are padded to one shape and computed together as a *chunk* small enough for the cache.
The scores are computed again in the backward pass instead of being kept: it costs one product, and memory stays
that of one chunk. Softmax is in fp32 (fp64 for fp64 inputs), as in transformers' own plain attention.

Letters: T tokens, u blocks of a chunk, L queries and K keys of its largest block, H query heads in J groups that
share keys and values (J key-value heads), D head size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mem1.packing.tree import TokenTree

MAX_QUERIES = 128
"""Longest block. Longer ones waste products on the masked half, shorter ones gather more keys a query."""
KEY_OVERHEAD = 24
"""What gathering one key costs, in products of that key with a query."""
CHUNK_PAIRS = 1 << 17
"""Query-key pairs computed at once, unless a single block has more."""
MASKED = -1e30
"""Added to the score of a hidden key; finite, as 0 * inf would be nan."""
LOG2E = math.log2(math.e)
"""Scores are taken in base 2: on CPU torch.exp is 10 to 100 times slower where it underflows, exp2 is not."""

Run = tuple[int, int, int]
"""(start, stop, segment that holds `start`): a block's queries."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunk:
    """Blocks that are computed together, padded to L queries and K keys."""

    query_nodes: Tensor
    """(n,) nodes of the queries of all its blocks."""
    query_slots: Tensor
    """(n,) where each of them is in the padded (u * L)."""
    key_nodes: Tensor
    """(u, K) nodes of the keys; padding is node 0 and hidden."""
    hidden: Tensor
    """Bool (u, 1, L, 1, K): this key is hidden from this query. Rows of padding queries hide nothing."""


def chunks(tree: TokenTree) -> tuple[Chunk, ...]:
    """Cut the layout into blocks and blocks into chunks; every node is a query exactly once."""
    end = tree.end.numpy()
    blocks = [(np.arange(start, stop), _keys_of(tree.segments, (start, stop, s))) for start, stop, s in runs(tree)]
    blocks.sort(key=lambda block: (len(block[1]), len(block[0])))
    return tuple(_chunk(batch, end) for batch in _batches(blocks))


def runs(tree: TokenTree) -> list[Run]:
    """Consecutive query runs that cover the layout: long segments cut evenly, small neighbours joined if cheaper."""
    joined: list[Run] = []
    depth = tree.position_ids.tolist()
    for start, stop, segment in _pieces(tree.segments):
        if joined:
            first, _, owner = joined[-1]
            together = _cost(stop - first, depth[first])
            apart = _cost(start - first, depth[first]) + _cost(stop - start, depth[start])
            if stop - first <= MAX_QUERIES and together <= apart:
                joined[-1] = (first, stop, owner)
                continue
        joined.append((start, stop, segment))
    return joined


def _cost(queries: int, ancestors: int) -> int:
    return (queries + KEY_OVERHEAD) * (ancestors + queries)


def _pieces(segments: Sequence[Run]) -> Iterator[Run]:
    for number, (start, stop, _) in enumerate(segments):
        parts = -(-(stop - start) // MAX_QUERIES)
        cuts = [start + (stop - start) * p // parts for p in range(parts + 1)]
        yield from ((a, b, number) for a, b in pairwise(cuts))


def _keys_of(segments: Sequence[Run], run: Run) -> np.ndarray:
    """Ancestors of the run's first token, from the root down, then the run itself."""
    _, stop, number = run
    parts = [np.arange(segments[number][0], stop)]
    before = segments[number][2]
    while before >= 0:
        parts.append(np.arange(segments[before][0], segments[before][1]))
        before = segments[before][2]
    return np.concatenate(parts[::-1])


def _batches(blocks: list[tuple[np.ndarray, np.ndarray]]) -> Iterator[list[tuple[np.ndarray, np.ndarray]]]:
    batch: list[tuple[np.ndarray, np.ndarray]] = []
    longest = 0
    for queries, keys in blocks:
        longest = max(longest, len(queries))
        if batch and (len(batch) + 1) * longest * len(keys) > CHUNK_PAIRS:
            yield batch
            batch, longest = [], len(queries)
        batch.append((queries, keys))
    yield batch


def _chunk(batch: list[tuple[np.ndarray, np.ndarray]], end: np.ndarray) -> Chunk:
    L, K = max(len(q) for q, _ in batch), max(len(k) for _, k in batch)
    queries = np.full((len(batch), L), -1)
    keys = np.full((len(batch), K), -1)
    for row, (q, k) in enumerate(batch):
        queries[row, : len(q)] = q
        keys[row, : len(k)] = k
    q, k = queries[:, :, None], keys[:, None, :]
    seen = (k >= 0) & (k <= q) & (q < end[k])
    slots = np.flatnonzero(queries >= 0)
    return Chunk(
        query_nodes=torch.from_numpy(queries.reshape(-1)[slots]),
        query_slots=torch.from_numpy(slots),
        key_nodes=torch.from_numpy(np.maximum(keys, 0)),
        hidden=torch.from_numpy(~seen & (q >= 0))[:, None, :, None, :],
    )


def block_attention(q_THD: Tensor, k_TJD: Tensor, v_TJD: Tensor, plan: Sequence[Chunk], scaling: float) -> Tensor:
    """softmax(q k * scaling over the visible keys) v, (T, H, D); differentiable in q, k and v."""
    return _BlockAttention.apply(q_THD, k_TJD, v_TJD, plan, scaling)


class _BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Sequence[Chunk], scaling: float) -> Tensor:
        out, groups = torch.empty_like(q), k.shape[1]
        log2sumexp_TH1 = q.new_empty(*q.shape[:2], 1, dtype=_wide(q))
        for chunk in plan:
            scores = _scores(_queries(q, chunk, groups).mul_(scaling * LOG2E), _keys(k, chunk), chunk)
            largest = scores.amax(-1, keepdim=True)
            weights = scores.sub_(largest).exp2_()
            total = weights.sum(-1, keepdim=True)
            values = torch.bmm(weights.to(v.dtype), _keys(v, chunk)).div_(total)
            out.index_copy_(0, chunk.query_nodes, _from_queries(values, chunk, groups))
            log2sumexp_TH1.index_copy_(0, chunk.query_nodes, _from_queries(largest + total.log2(), chunk, groups))
        ctx.save_for_backward(q, k, v, out, log2sumexp_TH1)
        ctx.plan, ctx.scaling = plan, scaling
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, v, out, log2sumexp_TH1 = ctx.saved_tensors
        groups, wide = k.shape[1], _wide(q)
        # A key's gradient sums over all branches that see it, so it is summed in fp32.
        d_q, d_k, d_v = torch.empty_like(q), torch.zeros_like(k, dtype=wide), torch.zeros_like(v, dtype=wide)
        # The softmax's own term, the sum over keys of weight * d_weight, is d_out . out.
        delta_TH1 = (d_out * out).sum(-1, keepdim=True, dtype=wide)
        for chunk in ctx.plan:
            queries, keys = _queries(q, chunk, groups).mul_(ctx.scaling * LOG2E), _keys(k, chunk)
            weights = _scores(queries, keys, chunk).sub_(_queries(log2sumexp_TH1, chunk, groups)).exp2_()
            d_values = _queries(d_out, chunk, groups)
            d_scores = torch.bmm(d_values, _keys(v, chunk).transpose(1, 2)).to(wide)
            d_scores = d_scores.sub_(_queries(delta_TH1, chunk, groups)).mul_(weights).to(q.dtype)
            _add_to_keys(d_v, torch.bmm(weights.to(q.dtype).transpose(1, 2), d_values), chunk)
            _add_to_keys(d_k, torch.bmm(d_scores.transpose(1, 2), queries), chunk)
            d_queries = torch.bmm(d_scores, keys).mul_(ctx.scaling)
            d_q.index_copy_(0, chunk.query_nodes, _from_queries(d_queries, chunk, groups))
        return d_q, d_k.div_(LOG2E).to(k.dtype), d_v.to(v.dtype), None, None


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _scores(queries: Tensor, keys: Tensor, chunk: Chunk) -> Tensor:
    """Masked scores (u*J, L*H/J, K) in fp32 or fp64; a new tensor."""
    scores = torch.bmm(queries, keys.transpose(1, 2)).to(_wide(queries))
    u, _, L, _, K = chunk.hidden.shape
    # Adding a bias is several times faster than masked_fill_ on CPU; exp turns it into exactly 0.
    scores.view(u, -1, L, queries.shape[1] // L, K).add_(chunk.hidden.to(scores.dtype).mul_(MASKED))
    return scores


def _queries(x_THD: Tensor, chunk: Chunk, groups: int) -> Tensor:
    """Rows of a chunk's queries, by group of heads: (u*J, L*H/J, D); padding is 0."""
    u, _, L, _, _ = chunk.hidden.shape
    _, H, D = x_THD.shape
    rows = x_THD.new_zeros(u * L, H, D).index_copy_(0, chunk.query_slots, x_THD.index_select(0, chunk.query_nodes))
    return rows.view(u, L, groups, -1, D).transpose(1, 2).reshape(u * groups, -1, D)


def _from_queries(x: Tensor, chunk: Chunk, groups: int) -> Tensor:
    """Inverse of `_queries` without the padding: (n, H, D)."""
    u, _, L, _, _ = chunk.hidden.shape
    D = x.shape[-1]
    rows = x.view(u, groups, L, -1, D).transpose(1, 2).reshape(u * L, -1, D)
    return rows.index_select(0, chunk.query_slots)


def _keys(x_TJD: Tensor, chunk: Chunk) -> Tensor:
    """Rows of a chunk's keys or values, by key-value head: (u*J, K, D)."""
    u, K = chunk.key_nodes.shape
    _, J, D = x_TJD.shape
    rows = x_TJD.index_select(0, chunk.key_nodes.view(-1))
    return rows.view(u, K, J, D).transpose(1, 2).reshape(u * J, K, D)


def _add_to_keys(total_TJD: Tensor, x: Tensor, chunk: Chunk) -> None:
    u, K = chunk.key_nodes.shape
    _, J, D = total_TJD.shape
    rows = x.view(u, J, K, D).transpose(1, 2).reshape(u * K, J, D)
    total_TJD.index_add_(0, chunk.key_nodes.view(-1), rows.to(total_TJD.dtype))
