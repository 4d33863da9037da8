"""Checks on trajectories that hold whatever the context policy: sampled tokens come back as they were sampled."""

from __future__ import annotations

from collections.abc import Sequence

from mem1.records import Trajectory, Turn


def reencoded_share(trajectories: Sequence[Trajectory]) -> float:
    """Share of the tokens carried from a turn into the next context that are not the sampled ones; must be 0.

    Every context policy keeps something of the newest turn: what lies there from its state to its query (where these
    were not recorded: the whole completion, before the result) is looked for, token by token and in order, among what
    was sampled; what is not found has been changed.
    """
    carried = changed = 0
    for trajectory in trajectories:
        for before, after in zip(trajectory.turns, trajectory.turns[1:], strict=False):
            copy = _copy(before, after)
            carried += len(copy)
            changed += _not_in_order(copy, before.opening_ids + before.completion_ids)
    return changed / carried if carried else 0.0


def _copy(before: Turn, after: Turn) -> tuple[int, ...]:
    """Where the newest completion stands in the next context."""
    spans = [after.context_spans[role] for role in ("state", "query") if role in after.context_spans]
    if spans:
        return after.context_ids[min(start for start, _ in spans) : max(stop for _, stop in spans)]
    stop = len(after.context_ids) - len(before.observation_ids)
    return after.context_ids[max(stop - len(before.completion_ids), 0) : stop]


def _not_in_order(copy: Sequence[int], sampled: Sequence[int]) -> int:
    """How many tokens of the copy are not found, one after the other, in what was sampled."""
    found = position = 0
    for token in copy:
        try:
            position = sampled.index(token, position) + 1
        except ValueError:
            continue
        found += 1
    return len(copy) - found
