"""Rejection-sampling fine-tuning: which attempts to learn from as if they were demonstrations.

    rewards (0, 1, 0.5, 1), threshold 0.5   ->  (1, 2, 3);   best 2  ->  (1, 3)

Source: RFT (arXiv 2308.01825) keeps what is right; RAFT (arXiv 2304.06767) the best of each task. The kept attempts
go through the negative log-likelihood (likelihood.py). `best` keeps easy tasks, whose attempts all succeed, from
crowding out the hard ones.
"""

from __future__ import annotations

from collections.abc import Sequence


def accepted(rewards_G: Sequence[float], *, threshold: float, best: int | None = None) -> tuple[int, ...]:
    """Indices, ascending, of the attempts at one task with at least the threshold's reward.

    `best`: at most so many of them, those of the highest reward, the earlier of two equal ones; None: all.
    Raises ValueError for a `best` below 1.
    """
    if best is not None and best < 1:
        raise ValueError(f"best must be at least 1, not {best}")
    good = [i for i, reward in enumerate(rewards_G) if reward >= threshold]
    return tuple(sorted(sorted(good, key=lambda i: -rewards_G[i])[:best]))
