"""How old the weights were that sampled what is trained.

a turn of 5 tokens, 3 by version 6 and 2 by version 7, trained by version 8   ->   staleness 2 2 2 1 1
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from mem1.records import Trajectory, Turn, VersionRun


def staleness(trajectories: Sequence[Trajectory], version: int) -> Counter[int]:
    """Optimiser steps between the weights that sampled a token and those of `version` -> tokens."""
    found: Counter[int] = Counter()
    for turn in (turn for t in trajectories for turn in t.turns):
        for sampled, tokens in _versions(turn):
            found[version - sampled] += tokens
    return found


def sampled_by(trajectory: Trajectory, version: int) -> Iterator[bool]:
    """Of each sampled token, in order, whether the weights of `version` sampled it."""
    for turn in trajectory.turns:
        for sampled, tokens in _versions(turn):
            yield from (sampled == version for _ in range(tokens))


def mixed(trajectory: Trajectory) -> bool:
    """Whether more than one policy has written it."""
    return len({version for turn in trajectory.turns for version, _ in _versions(turn)}) > 1


def _versions(turn: Turn) -> Sequence[VersionRun]:
    """Weights that nobody has numbered are those before the first optimiser step. Runs of no tokens do not count."""
    runs = turn.weights_versions or ((0, len(turn.completion_ids)),)
    return [(version, tokens) for version, tokens in runs if tokens]
