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

Token k is visible to token q iff `k <= q < end[k]`: the whole mask, for every memory. Here the sampled
"a b" and its copy in the second context are one pair of nodes, as nothing older stood before either; the copy
of "c d" in the third context has other ancestors than the sampled one and is a pair of its own.
`target_node` lists the sampled tokens: a b, c d, e -> 2 3 5 6 10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress, count
from operator import ne

import numpy as np
import torch
from torch import Tensor

from mem1.records import Trajectory, Turn


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
    """Lay all turns of all trajectories out as one token tree. Raises ValueError if there is no turn at all."""
    trie = Trie()
    trie.add(turn for trajectory in trajectories for turn in trajectory.turns)
    return trie.lay_out(trajectories)


@dataclass(slots=True, eq=False)
class Segment:
    """An unbranched run of tokens: `path[start:stop]`, preceded by the segments of `path[:start]`."""

    path: tuple[int, ...]
    start: int
    stop: int
    parent: Segment | None
    children: dict[int, Segment] = field(default_factory=dict)
    """Following segments by first token, in the order in which they were added."""
    index: int = 0
    """Node of its first token, set by `Trie._depth_first`."""


class Trie:
    """Paths of tokens, each distinct prefix stored once, in segments that do not branch.

    add p q a b, then p q x:   segment "p q" with the children "a b" and "x"
    """

    def __init__(self) -> None:
        self.size = 0
        """Number of tokens stored."""
        self._root = Segment(path=(), start=0, stop=0, parent=None)
        self._turns: list[tuple[Turn, Segment]] = []
        """Each turn with the segment that held its last token when it was added; later splits may have moved the token
        to a segment before that one."""
        self._undo: list[Callable[[], None]] = []

    def add(self, turns: Iterable[Turn]) -> None:
        """Add the path of each turn, context then completion; `take_back` undoes it until the next `add`."""
        self._undo = []
        turns_before, size_before = len(self._turns), self.size
        for turn in turns:
            last, new = self._insert(turn.context_ids + turn.completion_ids)
            self._turns.append((turn, last))
            self.size += new

        def forget() -> None:
            del self._turns[turns_before:]
            self.size = size_before

        self._undo.append(forget)

    def take_back(self) -> None:
        """Undo the last `add`."""
        while self._undo:
            self._undo.pop()()

    def lay_out(self, trajectories: Sequence[Trajectory]) -> TokenTree:
        """The tree of the turns added, which must be those of these trajectories in order.

        Raises ValueError if there are none.
        """
        if not self._turns:
            raise ValueError("nothing to pack: the trajectories have no turns")
        segments = self._depth_first()
        targets = [
            _nodes(last, len(turn.context_ids), len(turn.context_ids) + len(turn.completion_ids))
            for turn, last in self._turns
        ]
        counts = tuple(tuple(len(turn.completion_ids) for turn in t.turns) for t in trajectories)
        return _lay_out(segments, np.concatenate(targets), counts)

    def _insert(self, path: tuple[int, ...]) -> tuple[Segment, int]:
        """Add `path`; return the segment with its last token, and how many of its tokens are new."""
        segment = self._root
        while segment.stop < len(path):
            child = segment.children.get(path[segment.stop])
            if child is None:
                new = len(path) - segment.stop
                return self._append(segment, path), new
            shared = _common_prefix(child.path, path, child.start, min(child.stop, len(path)))
            if shared == len(path):
                return child, 0
            segment = child if shared == child.stop else self._split(child, shared)
        return segment, 0

    def _append(self, segment: Segment, path: tuple[int, ...]) -> Segment:
        """Add the tokens of `path` after `segment`: to it, if it is a leaf, else as its child."""
        start = segment.stop
        if segment is not self._root and not segment.children:
            old = segment.path

            def shorten() -> None:
                segment.path, segment.stop = old, start

            self._undo.append(shorten)
            segment.path, segment.stop = path, len(path)
            return segment

        child = Segment(path=path, start=start, stop=len(path), parent=segment)
        segment.children[path[start]] = child

        def remove() -> None:
            del segment.children[path[start]]

        self._undo.append(remove)
        return child

    def _split(self, child: Segment, depth: int) -> Segment:
        """Cut a segment in two at `depth` and return the upper part; the lower one stays the same object."""
        start, parent = child.start, child.parent
        assert parent is not None
        upper = Segment(path=child.path, start=start, stop=depth, parent=parent)
        parent.children[child.path[start]] = upper
        upper.children[child.path[depth]] = child
        child.start, child.parent = depth, upper

        def join() -> None:
            child.start, child.parent = start, parent
            parent.children[child.path[start]] = child

        self._undo.append(join)
        return upper

    def _depth_first(self) -> list[Segment]:
        """The segments in layout order, numbered: `index` is set on each."""
        segments: list[Segment] = []
        stack, index = list(reversed(self._root.children.values())), 0
        while stack:
            segment = stack.pop()
            segment.index, index = index, index + segment.stop - segment.start
            segments.append(segment)
            stack.extend(reversed(segment.children.values()))
        return segments


def _common_prefix(a: tuple[int, ...], b: tuple[int, ...], start: int, stop: int) -> int:
    """Where `a` and `b`, equal before `start`, first differ; `stop` if nowhere before it."""
    left, right = a[start:stop], b[start:stop]
    return stop if left == right else start + next(compress(count(), map(ne, left, right)))


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
