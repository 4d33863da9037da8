"""Checks on trajectories that hold whatever the context policy: sampled tokens come back as they were sampled."""

from __future__ import annotations

from collections.abc import Sequence

from mem1.records import Trajectory, Turn


def reencoded_share(trajectories: Sequence[Trajectory]) -> float:
    """Share of the tokens carried from a turn into the next context that are not the sampled ones; must be 0.

    Every context policy keeps the newest turn, so a context ends with that turn's completion and result (and
    an opened answer tag, where the answer is forced). Compared token for token.
    """
    carried = changed = 0
    for trajectory in trajectories:
        for before, after in zip(trajectory.turns, trajectory.turns[1:], strict=False):
            sampled = _kept(before)
            copy = _copy(before, after, len(sampled))
            carried += len(sampled)
            changed += (
                sum(a != b for a, b in zip(sampled, copy, strict=True)) if len(copy) == len(sampled) else len(sampled)
            )
    return changed / carried if carried else 0.0


def _kept(turn: Turn) -> tuple[int, ...]:
    """The completion without a thought that does not survive."""
    start, stop = turn.completion_spans.get("thought", (0, 0))
    return turn.completion_ids[:start] + turn.completion_ids[stop:]


def _copy(before: Turn, after: Turn, length: int) -> tuple[int, ...]:
    """Where the newest completion should stand in the next context."""
    result = after.context_spans.get("result")
    stop = result[0] if result else len(after.context_ids) - len(before.observation_ids)
    return after.context_ids[max(stop - length, 0) : stop]
