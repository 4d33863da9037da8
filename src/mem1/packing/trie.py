"""Paths of tokens, each distinct prefix stored once, in segments that do not branch.

insert p q a b, then p q x:   segment "p q" with the children "a b" and "x"
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import compress, count
from operator import ne


@dataclass(slots=True, eq=False)
class Segment:
    """An unbranched run of tokens: `path[start:stop]`, preceded by the segments of `path[:start]`."""

    path: tuple[int, ...]
    start: int
    stop: int
    parent: Segment | None
    children: dict[int, Segment] = field(default_factory=dict)
    """By first token, in the order in which they were first seen."""
    index: int = 0
    """Node of its first token, set by `depth_first`."""


def insert(root: Segment, path: tuple[int, ...]) -> tuple[Segment, int]:
    """Add `path`, and say how many of its tokens are new.

    The segment returned holds the path's last token; after later splits one before it may hold it.
    """
    segment = root
    while segment.stop < len(path):
        child = segment.children.get(path[segment.stop])
        if child is None:
            new = len(path) - segment.stop
            if segment is not root and not segment.children:
                segment.path, segment.stop = path, len(path)
                return segment, new
            child = Segment(path=path, start=segment.stop, stop=len(path), parent=segment)
            segment.children[path[segment.stop]] = child
            return child, new
        shared = _common_prefix(child.path, path, child.start, min(child.stop, len(path)))
        if shared == len(path):
            return child, 0
        segment = child if shared == child.stop else _split(child, shared)
    return segment, 0


def depth_first(root: Segment) -> list[Segment]:
    """The segments in layout order, numbered: `index` is set on each."""
    segments: list[Segment] = []
    stack, index = list(reversed(root.children.values())), 0
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


def _split(child: Segment, depth: int) -> Segment:
    """Cut a segment in two at `depth` and return the upper part; the lower one stays the same object."""
    assert child.parent is not None
    upper = Segment(path=child.path, start=child.start, stop=depth, parent=child.parent)
    child.parent.children[child.path[child.start]] = upper
    upper.children[child.path[depth]] = child
    child.start, child.parent = depth, upper
    return upper
