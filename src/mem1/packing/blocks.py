"""How a token tree's attention is cut into plain matrix products: rectangles and blocks.

In the depth-first layout the subtree of a token is contiguous. So a segment that many later tokens see, such as
a prompt, is a *rectangle*: the queries of everything below it times its keys, both slices, without any mask.

    prompt 0..99, three branches 100..179, 180..259, 260..339:  one rectangle, queries 100..339 x keys 0..99

A segment longer than MAX_QUERIES is halved until its pieces are not, each second half a rectangle on the first.
What is left are *blocks*, runs of queries with the few keys that no rectangle covers: the run itself, causally,
and those ancestors of its first token that are in no rectangle (a key k < s that is visible to some q in a run
[s, e) has s inside its subtree too, so it is an ancestor of s). Blocks of similar size are padded to one shape
and computed together as a *chunk*. Every visible pair is in exactly one rectangle or block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from mem1.packing.tree import TokenTree

MAX_QUERIES = 128
"""Longest block; longer ones waste products on the masked half."""
MIN_SHARED = 64
"""Least keys, and least queries, for which a rectangle is cheaper than gathering the keys into each block."""
KEY_OVERHEAD = 24
"""What gathering one key into a block costs, in products of that key with a query."""
PAIRS_AT_ONCE = 1 << 17
"""Query-key pairs computed at once, so that the scores of a few heads stay in the cache."""

Range = tuple[int, int]
"""Nodes [start, stop)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle:
    """Every query of one range sees every key of the other."""

    queries: Range
    keys: Range


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunk:
    """u blocks that are computed together, padded to L queries and K keys."""

    query_nodes: Tensor
    """(n,) nodes of the queries of all its blocks."""
    query_slots: Tensor
    """(n,) where each of them is in the padded (u * L)."""
    key_nodes: Tensor
    """(u, K) nodes of the keys; padding is node 0 and hidden."""
    hidden: Tensor
    """Bool (u, L, 1, K): this key is not for this query. Rows of padding queries hide nothing."""

    def to(self, device: torch.device | str) -> Chunk:
        return Chunk(**{field.name: getattr(self, field.name).to(device) for field in dataclasses.fields(self)})


def plan_blocks(tree: TokenTree) -> tuple[tuple[Chunk, ...], tuple[Rectangle, ...]]:
    """All visible pairs of the tree, once each. Every node is a query of exactly one chunk."""
    end = tree.end.numpy()
    block_end = end.copy()
    rectangles: list[Rectangle] = []
    pieces: list[tuple[int, int, int]] = []
    shared = [_is_shared(start, stop, int(end[start])) for start, stop, _ in tree.segments]
    for number, (start, stop, _) in enumerate(tree.segments):
        cuts = [start, *_halve(start, stop, rectangles), stop]
        pieces += [(a, b, number) for a, b in pairwise(cuts)]
        if shared[number]:
            rectangles.append(Rectangle(queries=(stop, int(end[start])), keys=(start, stop)))
            for a, b in pairwise(cuts):
                block_end[a:b] = b
    ancestors = _ancestors_outside_rectangles(tree, shared)
    blocks = [
        (np.arange(start, stop), np.concatenate([ancestors[number], np.arange(start, stop)]))
        for start, stop, number in _join(pieces, [len(nodes) for nodes in ancestors])
    ]
    blocks.sort(key=lambda block: (len(block[1]), len(block[0])))
    chunks = tuple(_chunk(batch, block_end) for batch in _batches(blocks))
    return chunks, tuple(tile for rectangle in rectangles if _area(rectangle) for tile in _tiles(rectangle))


def _is_shared(start: int, stop: int, end: int) -> bool:
    """Are a segment's keys for rectangles? Always if it is longer than a block, as it is then cut itself."""
    return stop - start > MAX_QUERIES or (stop - start >= MIN_SHARED and end - stop >= MIN_SHARED)


def _halve(start: int, stop: int, rectangles: list[Rectangle]) -> list[int]:
    """Where a long segment is cut; adds its own rectangles, second half on first half."""
    if stop - start <= MAX_QUERIES:
        return []
    middle = (start + stop) // 2
    rectangles.append(Rectangle(queries=(middle, stop), keys=(start, middle)))
    return [*_halve(start, middle, rectangles), middle, *_halve(middle, stop, rectangles)]


def _ancestors_outside_rectangles(tree: TokenTree, shared: list[bool]) -> list[np.ndarray]:
    """Per segment, the nodes before it that its blocks must gather, from the root down."""
    ancestors: list[np.ndarray] = []
    for _, _, before in tree.segments:
        if before < 0 or shared[before]:
            ancestors.append(np.empty(0, dtype=np.int64) if before < 0 else ancestors[before])
        else:
            start, stop, _ = tree.segments[before]
            ancestors.append(np.concatenate([ancestors[before], np.arange(start, stop)]))
    return ancestors


def _join(pieces: list[tuple[int, int, int]], gathered: list[int]) -> list[tuple[int, int, int]]:
    """Blocks as (start, stop, segment of `start`): neighbouring pieces computed together where that is cheaper."""

    def cost(queries: int, ancestors: int) -> int:
        return (queries + KEY_OVERHEAD) * (queries + ancestors)

    joined: list[tuple[int, int, int]] = []
    for start, stop, number in pieces:
        if joined:
            first, _, owner = joined[-1]
            together = cost(stop - first, gathered[owner])
            apart = cost(start - first, gathered[owner]) + cost(stop - start, gathered[number])
            if stop - first <= MAX_QUERIES and together <= apart:
                joined[-1] = (first, stop, owner)
                continue
        joined.append((start, stop, number))
    return joined


Block = tuple[np.ndarray, np.ndarray]
"""(nodes of the queries, nodes of the keys)."""


def _batches(blocks: list[Block]) -> Iterator[list[Block]]:
    batch: list[Block] = []
    longest = 0
    for queries, keys in blocks:
        longest = max(longest, len(queries))
        if batch and (len(batch) + 1) * longest * len(keys) > PAIRS_AT_ONCE:
            yield batch
            batch, longest = [], len(queries)
        batch.append((queries, keys))
    yield batch


def _chunk(batch: list[Block], block_end: np.ndarray) -> Chunk:
    """`block_end`: one past the last query that sees a key outside rectangles."""
    L, K = max(len(q) for q, _ in batch), max(len(k) for _, k in batch)
    queries = np.full((len(batch), L), -1)
    keys = np.full((len(batch), K), -1)
    for row, (q, k) in enumerate(batch):
        queries[row, : len(q)] = q
        keys[row, : len(k)] = k
    q, k = queries[:, :, None], keys[:, None, :]
    seen = (k >= 0) & (k <= q) & (q < block_end[k])
    slots = np.flatnonzero(queries >= 0)
    return Chunk(
        query_nodes=torch.from_numpy(queries.reshape(-1)[slots]),
        query_slots=torch.from_numpy(slots),
        key_nodes=torch.from_numpy(np.maximum(keys, 0)),
        hidden=torch.from_numpy(~seen & (q >= 0))[:, :, None, :],
    )


def _area(rectangle: Rectangle) -> int:
    (q, q_stop), (k, k_stop) = rectangle.queries, rectangle.keys
    return (q_stop - q) * (k_stop - k)


def _tiles(rectangle: Rectangle) -> Iterator[Rectangle]:
    """The rectangle in parts of at most PAIRS_AT_ONCE pairs, long keys first cut to 8 blocks."""
    (q, q_stop), (k, k_stop) = rectangle.queries, rectangle.keys
    keys = min(k_stop - k, 8 * MAX_QUERIES)
    queries = PAIRS_AT_ONCE // keys
    for k_start in range(k, k_stop, keys):
        for q_start in range(q, q_stop, queries):
            yield Rectangle(
                queries=(q_start, min(q_start + queries, q_stop)), keys=(k_start, min(k_start + keys, k_stop))
            )
