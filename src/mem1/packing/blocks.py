"""A token tree's attention as plain attention: slices of queries with the keys that all of them see.

In the depth-first layout the subtree of a token is contiguous. So what many later tokens see, such as a prompt, is
one part: the queries of everything below it, a slice, with its keys, and no mask.

    prompt 0..99, three branches 100..179, 180..259, 260..339:

    first parts     0..99, 100..179, 180..259, 260..339, each with itself, causally
    later parts     queries 100..339 with keys 0..99

Every query is in one *first* part, which holds the query itself; later parts add the keys above. Small subtrees are
computed together, under a mask that keeps them apart. Segments too short to be worth a part of their own are handed
down: their keys are gathered by the parts below. Every visible pair is in exactly one part.

Parts of one query are merged by their log-sums, as flash attention merges tiles. With the merged log-sum each part has
its own backward pass, and its weights are computed again rather than kept. On a CPU a part is one call of PyTorch's
fused kernel, which returns log-sums and takes the merged ones; elsewhere it is a few plain products. Softmax is in fp32
(fp64 for fp64 inputs).

Letters: T tokens, D head size, H query heads, J key-value heads, each shared by H/J query heads; L queries and K keys
of a part. Source of the merge: Dao et al. 2022 (FlashAttention, arXiv 2205.14135), section 3.1.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mem1.packing.tree import TokenTree

TOGETHER = 96
"""Tokens up to which neighbouring subtrees are one part: pairs that are masked cost less than another call."""
MIN_SHARED = 48
"""Least keys for which everything below them is a part, whose results must be merged."""

Range = tuple[int, int]
"""Nodes [start, stop)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """L queries and K keys."""

    queries: Range
    keys: Range | Tensor
    """A slice of the nodes, or which nodes, (K,)."""
    causal: bool = False
    """Query i sees the keys up to i."""
    hidden: Tensor | None = None
    """Bool (L, K): this key is not for this query; None: all are, but for `causal`."""

    def to(self, device: torch.device | str) -> Part:
        tensors = {
            name: x.to(device, non_blocking=True)
            for name in ("keys", "hidden")
            if isinstance(x := getattr(self, name), Tensor)
        }
        return dataclasses.replace(self, **tensors)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks:
    """Plan of the block back-end: a tree's attention in parts, made once per tree and used by every layer."""

    first: tuple[Part, ...]
    """Every node is a query of exactly one."""
    later: tuple[Part, ...]
    products: bool = False
    """Whether parts are plain products on a CPU too."""

    def to(self, device: torch.device | str) -> Blocks:
        first, later = (tuple(part.to(device) for part in parts) for parts in (self.first, self.later))
        return dataclasses.replace(self, first=first, later=later)

    def fused(self, x: Tensor) -> bool:
        """Whether PyTorch has a kernel for the device of `x` that takes and returns log-sums, and it is to be used."""
        return x.device.type == "cpu" and not self.products

    def attend(self, q_THD: Tensor, k_TJD: Tensor, v_TJD: Tensor, scaling: float) -> Tensor:
        """softmax(q k * scaling over the visible keys) v, (T, H, D); differentiable in q, k and v."""
        share = q_THD.shape[1] // k_TJD.shape[1]
        if share > 1:
            k_TJD, v_TJD = (x.repeat_interleave(share, dim=1) for x in (k_TJD, v_TJD))
        q, k, v = (x.transpose(0, 1)[None] for x in (q_THD, k_TJD, v_TJD))
        return _BlockAttention.apply(q, k, v, self, scaling)[0].transpose(0, 1)


@dataclass(slots=True, kw_only=True, eq=False)
class _Run:
    """Neighbouring subtrees under the same nodes."""

    start: int
    stop: int
    above: tuple[int, ...]
    unbranched: bool


def cut(tree: TokenTree) -> Blocks:
    """All visible pairs of the tree, once each."""
    first: list[Part] = []
    later: list[Part] = []
    for run in _runs(tree, later):
        nodes = (run.start, run.stop)
        if run.unbranched:
            first.append(Part(queries=nodes, keys=nodes, causal=True))
            later += _seen(nodes, run.above)
        else:
            first.append(_masked(tree, nodes, run.above))
    return Blocks(first=tuple(first), later=tuple(later))


def _runs(tree: TokenTree, later: list[Part]) -> Iterator[_Run]:
    """What each first part is about, in layout order; parts of whole subtrees are added to `later`."""
    starts = [start for start, _, _ in tree.segments]
    ends = tree.end[starts].tolist() if starts else []
    handed: list[tuple[int, ...]] = [()] * len(starts)
    """Per segment, the nodes that parts below it must gather."""
    run: _Run | None = None
    number = 0
    while number < len(starts):
        start, stop, before = tree.segments[number]
        end = ends[number]
        above = handed[before] if before >= 0 else ()
        whole = end - start <= TOGETHER
        if whole and run is not None and run.above == above and end - run.start <= TOGETHER:
            run.stop, run.unbranched = end, False
        else:
            if run is not None:
                yield run
            run = _Run(start=start, stop=end if whole else stop, above=above, unbranched=not whole or stop == end)
        if whole:
            number = bisect_left(starts, end)
            continue
        yield run
        run = None
        keys = (*above, *range(start, stop))
        if end > stop and len(keys) >= MIN_SHARED:
            later += _seen((stop, end), keys)
        else:
            handed[number] = keys
        number += 1
    if run is not None:
        yield run


def _seen(queries: Range, keys: tuple[int, ...]) -> list[Part]:
    """All of these queries see all of these keys; no keys, no part."""
    return [Part(queries=queries, keys=_listed(keys))] if keys else []


def _listed(keys: tuple[int, ...]) -> Range | Tensor:
    contiguous = keys[-1] - keys[0] == len(keys) - 1
    return (keys[0], keys[-1] + 1) if contiguous else torch.tensor(keys)


def _masked(tree: TokenTree, nodes: Range, above: tuple[int, ...]) -> Part:
    nodes_of_keys = (*above, *range(*nodes))
    query, key = torch.arange(*nodes)[:, None], torch.tensor(nodes_of_keys)[None]
    seen = (key <= query) & (query < tree.end[key])
    return Part(queries=nodes, keys=_listed(nodes_of_keys), hidden=~seen)


_fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_fused_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _BlockAttention(torch.autograd.Function):
    """On (1, H, T, D), with the tokens before the heads in memory."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, cut: Blocks, scaling: float) -> Tensor:
        fused = cut.fused(q)
        out, log_sum = _like(q, torch.empty), q.new_empty(q.shape[:3], dtype=_wide(q))
        for part in cut.first:
            rows = slice(*part.queries)
            out[:, :, rows], log_sum[:, :, rows] = _part(q, k, v, part, scaling, fused)
        for part in cut.later:
            rows = slice(*part.queries)
            _merge(out[:, :, rows], log_sum[:, :, rows], *_part(q, k, v, part, scaling, fused))
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, log_sum)
        ctx.cut, ctx.scaling = cut, scaling
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, log_sum = ctx.saved_tensors
        dtype, fused = q.dtype, ctx.cut.fused(q)
        if fused:  # its backward pass takes twice as long in bf16 as in fp32, even on a CPU with units for bf16
            d_out, q, k, v, out = (x.to(_wide(x)) for x in (d_out, q, k, v, out))
        # Gradients sum over parts, those of a key over all branches that see it, hence in fp32.
        d_q, d_k, d_v = (_like(x, torch.zeros) for x in (q, k, v))
        for part in (*ctx.cut.first, *ctx.cut.later):
            rows = slice(*part.queries)
            of_queries = (x[:, :, rows] for x in (d_out, q, out, log_sum))
            d_queries, *d_keys = _part_backward((*of_queries, _of(k, part), _of(v, part)), part, ctx.scaling, fused)
            d_q[:, :, rows] += d_queries
            for total, found in zip((d_k, d_v), d_keys, strict=True):
                if isinstance(part.keys, Tensor):
                    total.index_add_(2, part.keys, found.to(total.dtype))
                else:
                    total[:, :, slice(*part.keys)] += found
        return d_q.to(dtype), d_k.to(dtype), d_v.to(dtype), None, None


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _like(x: Tensor, make: Any) -> Tensor:
    _, H, T, D = x.shape
    return make(1, T, H, D, dtype=_wide(x), device=x.device).transpose(1, 2)


def _of(x: Tensor, part: Part) -> Tensor:
    """Keys or values of a part, (1, H, K, D)."""
    return x.index_select(2, part.keys) if isinstance(part.keys, Tensor) else x[:, :, slice(*part.keys)]


def _part(q: Tensor, k: Tensor, v: Tensor, part: Part, scaling: float, fused: bool) -> tuple[Tensor, Tensor]:
    """Attention of one part's queries over its keys: output (1, H, L, D) and log-sum of scores (1, H, L)."""
    q, k, v = q[:, :, slice(*part.queries)], _of(k, part), _of(v, part)
    if fused:
        return _fused(q, k, v, 0.0, part.causal, attn_mask=_bias(part, q), scale=scaling)
    scores = _scores(q, k, part, scaling)
    log_sum = scores.logsumexp(-1)
    return (scores - log_sum[..., None]).exp().to(v.dtype) @ v, log_sum


def _part_backward(saved: tuple[Tensor, ...], part: Part, scaling: float, fused: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values from one part.

    `saved`: of its queries, the gradient of their output, they themselves, output and log-sum over all their keys;
    then keys and values.
    """
    d_out, q, out, log_sum, k, v = saved
    if fused:
        return _fused_backward(d_out, q, k, v, out, log_sum, 0.0, part.causal, attn_mask=_bias(part, q), scale=scaling)
    weights = (_scores(q, k, part, scaling) - log_sum[..., None]).exp()
    # The softmax's own term, the sum over keys of weight * d_weight, is d_out . out.
    delta = (d_out * out).sum(-1, keepdim=True, dtype=weights.dtype)
    d_scores = ((d_out @ v.transpose(-1, -2) - delta) * weights * scaling).to(q.dtype)
    return d_scores @ k, d_scores.transpose(-1, -2) @ q, weights.to(q.dtype).transpose(-1, -2) @ d_out


def _scores(q: Tensor, k: Tensor, part: Part, scaling: float) -> Tensor:
    """Masked scores (1, H, L, K) in fp32 or fp64."""
    scores = (q @ k.transpose(-1, -2)).to(_wide(q)) * scaling
    bias = _bias(part, scores)
    if bias is not None:
        scores = scores + bias
    if part.causal:
        scores = scores.masked_fill(scores.new_ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
    return scores


def _bias(part: Part, like: Tensor) -> Tensor | None:
    """What is added to the scores of a part, (1, 1, L, K): minus infinity where a key is hidden."""
    if part.hidden is None:
        return None
    return torch.zeros_like(part.hidden, dtype=like.dtype).masked_fill_(part.hidden, -torch.inf)[None, None]


def _merge(out: Tensor, log_sum: Tensor, part: Tensor, part_sum: Tensor) -> None:
    """Add a part to what its queries have seen so far, in place."""
    both = torch.logaddexp(log_sum, part_sum)
    out.mul_((log_sum - both).exp_()[..., None]).addcmul_(part.to(out.dtype), (part_sum - both).exp_()[..., None])
    log_sum.copy_(both)
