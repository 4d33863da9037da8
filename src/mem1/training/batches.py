"""Which trajectories make one optimiser step.

    attempts of 2 groups   a a a | b b b        2 mini-batches   a . a | . b .     . a . | b . b

A mini-batch is whole trajectories, however many contexts they have, so the number of optimiser steps does not
depend on their turns. Attempts of one group stay neighbours, since they share their prompt's tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

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
