"""The token tree: all contexts of one or more trajectories, each distinct prefix stored once.

Every turn is a path, context then completion. Two paths share a token only if it and all its ancestors are
equal, so that each token of the tree sees exactly the tokens that its sampler saw. The tree is laid out
depth-first:

    turn 1: p q | a b       turn 2: p q a b i | c d       turn 3: p q c d j | e          (p q the prompt)

    index         0  1  2  3  4  5  6  7  8  9 10
    input_ids     p  q  a  b  i  c  d  c  d  j  e
    position_ids  0  1  2  3  4  5  6  2  3  4  5     depth, hence the position in the sampler's context
    parent       -1  0  1  2  3  4  5  1  7  8  9     the logit at `parent` predicts the token
    end          11 11  7  7  7  7  7 11 11 11 11     one past the last index of the token's subtree

Token k is visible to token q iff `k <= q < end[k]`: the whole mask, for every context policy. Here the sampled
"a b" and its copy in the second context are one pair of nodes, as nothing older stood before either; the copy
of "c d" in the third context has other ancestors than the sampled one and is a pair of its own.
`target_node` lists the sampled tokens: a b, c d, e -> 2 3 5 6 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from mem1.packing.trie import Segment, depth_first, insert
from mem1.records import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenTree:
    """T tokens laid out depth-first, and where the M sampled tokens are among them. All tensors int64."""

    input_ids: Tensor
    """(T,) the tokens."""
    position_ids: Tensor
    """(T,) number of ancestors."""
    parent: Tensor
    """(T,) index of the predecessor; -1: the first token of a path, which nothing predicts."""
    end: Tensor
    """(T,) one past the last index of the token's subtree."""
    target_node: Tensor
    """(M,) node of each sampled token, in the order of trajectories, turns, positions; the logit at
    `parent[target_node]` predicts it. Attempts that sampled the same tokens from the same context share nodes,
    so a node may occur more than once: each sampled token has its own entry."""
    counts: tuple[tuple[int, ...], ...]
    """Sampled tokens per turn, per trajectory; they sum to M."""
    segments: tuple[tuple[int, int, int], ...]
    """Unbranched runs in layout order: (start, stop, index of the segment before it; -1: none)."""

    def __len__(self) -> int:
        """T, the number of tokens."""
        return len(self.input_ids)

    def split(self, values_M: Tensor) -> list[list[Tensor]]:
        """Regroup one value per sampled token: per trajectory, per turn, a 1-D tensor over `completion_ids`."""
        turns = iter(values_M.split([n for turns in self.counts for n in turns]))
        return [[next(turns) for _ in turns_of_one] for turns_of_one in self.counts]


def visible(tree: TokenTree) -> Tensor:
    """Dense mask, bool (T, T): may query q (row) see key k (column)? Quadratic; for tests and small trees."""
    index_T = torch.arange(len(tree))
    q, k = index_T[:, None], index_T[None, :]
    return (k <= q) & (q < tree.end[None, :])


def pack(trajectories: Sequence[Trajectory]) -> TokenTree:
    """Lay all turns of all trajectories out as one token tree.

    Raises ValueError if there is no turn at all.
    """
    paths = [
        (turn.context_ids + turn.completion_ids, len(turn.context_ids))
        for trajectory in trajectories
        for turn in trajectory.turns
    ]
    if not paths:
        raise ValueError("nothing to pack: the trajectories have no turns")
    root = Segment(path=(), start=0, stop=0, parent=None)
    last_segments = [insert(root, path)[0] for path, _ in paths]
    segments = depth_first(root)
    targets = [_nodes(last, start, len(path)) for last, (path, start) in zip(last_segments, paths, strict=True)]
    counts = tuple(tuple(len(turn.completion_ids) for turn in t.turns) for t in trajectories)
    return _lay_out(segments, np.concatenate(targets), counts)


def _nodes(last: Segment, start: int, stop: int) -> np.ndarray:
    """Nodes of the positions [start, stop) of the path that runs through `last`."""
    nodes = np.empty(stop - start, dtype=np.int64)
    segment: Segment | None = last
    while segment is not None and segment.stop > start:
        low, high = max(segment.start, start), min(segment.stop, stop)
        if low < high:
            first = segment.index + low - segment.start
            nodes[low - start : high - start] = np.arange(first, first + high - low)
        segment = segment.parent
    return nodes


def _lay_out(segments: list[Segment], targets: np.ndarray, counts: tuple[tuple[int, ...], ...]) -> TokenTree:
    number = {id(segment): n for n, segment in enumerate(segments)}
    before = [number.get(id(segment.parent), -1) for segment in segments]
    starts = [segment.index for segment in segments]
    stops = [segment.index + segment.stop - segment.start for segment in segments]
    ends = list(stops)
    for n in range(len(segments) - 1, -1, -1):
        if before[n] >= 0:
            ends[before[n]] = max(ends[before[n]], ends[n])
    lengths = [stop - start for start, stop in zip(starts, stops, strict=True)]
    parent = np.arange(-1, stops[-1] - 1)
    parent[starts] = [stops[b] - 1 if b >= 0 else -1 for b in before]
    tokens = chain.from_iterable(segment.path[segment.start : segment.stop] for segment in segments)
    shift = [segment.start - segment.index for segment in segments]
    return TokenTree(
        input_ids=torch.from_numpy(np.fromiter(tokens, dtype=np.int64, count=stops[-1])),
        position_ids=torch.from_numpy(np.arange(stops[-1]) + np.repeat(shift, lengths)),
        parent=torch.from_numpy(parent),
        end=torch.from_numpy(np.repeat(ends, lengths)),
        target_node=torch.from_numpy(targets),
        counts=counts,
        segments=tuple(zip(starts, stops, before, strict=True)),
    )
