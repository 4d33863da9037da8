"""How a token tree's attention is cut into plain attention: slices of queries with the keys that all of them see.

In the depth-first layout the subtree of a token is contiguous. So what many later tokens see, such as a prompt, is
one part: the queries of everything below it, a slice, with its keys, and no mask.

    prompt 0..99, three branches 100..179, 180..259, 260..339:

    first parts     0..99, 100..179, 180..259, 260..339, each with itself, causally
    later parts     queries 100..339 with keys 0..99

Every query is in one *first* part, which holds the query itself; later parts add the keys above. Small subtrees are
computed together, under a mask that keeps them apart. Segments too short to be worth a part of their own are handed
down: their keys are gathered by the parts below. Every visible pair is in exactly one part.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

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
        tensors = {name: x.to(device) for name in ("keys", "hidden") if isinstance(x := getattr(self, name), Tensor)}
        return dataclasses.replace(self, **tensors)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """A tree's attention."""

    first: tuple[Part, ...]
    """Every node is a query of exactly one."""
    later: tuple[Part, ...]

    def to(self, device: torch.device | str) -> Cut:
        return Cut(first=tuple(p.to(device) for p in self.first), later=tuple(p.to(device) for p in self.later))


@dataclass(slots=True, kw_only=True, eq=False)
class _Run:
    """Neighbouring subtrees under the same nodes."""

    start: int
    stop: int
    above: tuple[int, ...]
    unbranched: bool


def cut(tree: TokenTree) -> Cut:
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
    return Cut(first=tuple(first), later=tuple(later))


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
