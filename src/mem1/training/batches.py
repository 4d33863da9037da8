"""Which trajectories make one optimiser step, and which of them one forward pass.

    attempts of 2 groups   a a a | b b b        2 mini-batches   a . a | . b .     . a . | b . b

A mini-batch is whole trajectories, however many contexts they have, so the number of optimiser steps does not
depend on their turns. Attempts of one group stay neighbours, since they share their prompt's tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

from mem1.records import Trajectory

T = TypeVar("T")


def minibatches(groups: Sequence[Sequence[T]], *, count: int, epochs: int, seed: str) -> Iterator[list[list[T]]]:
    """`epochs` times `count` parts of about equal size, each as groups; every attempt is in one part an epoch.

    One part keeps the order; several are drawn anew each epoch, as a function of `seed`.
    """
    places = [(g, i) for g, group in enumerate(groups) for i in range(len(group))]
    for epoch in range(epochs):
        order = random.Random(f"{seed}/{epoch}").sample(places, len(places)) if count > 1 else places
        for part in range(count):
            chosen = set(order[len(order) * part // count : len(order) * (part + 1) // count])
            parts = ([attempt for i, attempt in enumerate(group) if (g, i) in chosen] for g, group in enumerate(groups))
            yield [group for group in parts if group]


def micro_batches(groups: Sequence[Sequence[Trajectory]], *, tokens: int) -> list[list[int]]:
    """Which groups share a forward pass: `tokens` tokens at most unless one group alone has more."""
    batches: list[list[int]] = []
    size = 0
    for number, group in enumerate(groups):
        length = sum(turn.num_tokens for t in group for turn in t.turns)
        if not batches or size + length > tokens:
            batches.append([])
            size = 0
        batches[-1].append(number)
        size += length
    return batches
