"""A rollout shared out over the ranks, by whole groups.

    tasks a b c d e on 2 ranks  ->  rank 0 attempts a c e, rank 1 attempts b d;  all have the groups of a b c d e

What is sampled for a task depends on the seed, the task and the number of the attempt, not on who samples it. The
groups travel as the JSON of their trajectories.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from typing import Any

from mem1.records import Group, Task, Trajectory, trajectory_from_json, trajectory_to_json
from mem1.rollout import attempt_numbers
from mem1.training.ranks.processes import Ranks

Attempts = Callable[[Sequence[Task], Sequence[int]], list[Trajectory]]
"""Attempts at tasks, of which each comes as often as it is attempted, with the numbers of the attempts."""


def in_groups(tasks: Sequence[Task], attempts: int, rollout: Attempts, *, share: slice = slice(None)) -> list[Group]:
    """So many attempts at each task of a share; numbered as if all were attempted."""
    repeated = [task for task in tasks for _ in range(attempts)]
    numbers = attempt_numbers(repeated)
    chosen = [t * attempts + n for t in range(len(tasks))[share] for n in range(attempts)]
    made = rollout([repeated[i] for i in chosen], [numbers[i] for i in chosen])
    return [Group(trajectories=tuple(made[i : i + attempts])) for i in range(0, len(made), attempts)]


def on_all_ranks(ranks: Ranks, tasks: Sequence[Task], attempts: int, rollout: Attempts) -> list[Group]:
    """So many attempts at each task, a share of the tasks on each rank; an error of any is raised on all."""
    if ranks.size == 1:
        return in_groups(tasks, attempts, rollout)
    share = slice(ranks.rank, None, ranks.size)
    shares = ranks.on_each_rank(lambda: _to_json(in_groups(tasks, attempts, rollout, share=share)))
    # Each has every ranks.size-th task, so taking one of each in turn gives their order again.
    return _from_json([row for row in chain.from_iterable(zip_longest(*shares)) if row is not None])


def of_the_first(ranks: Ranks, make: Callable[[], Sequence[Group]]) -> list[Group]:
    """What rank 0 makes, on all of them; its error is raised on all."""
    if ranks.size == 1:
        return list(make())
    return _from_json(ranks.on_rank_zero(lambda: _to_json(make())))


def _to_json(groups: Sequence[Group]) -> list[list[dict[str, Any]]]:
    return [[trajectory_to_json(t) for t in group.trajectories] for group in groups]


def _from_json(rows: Sequence[Sequence[dict[str, Any]]]) -> list[Group]:
    return [Group(trajectories=tuple(map(trajectory_from_json, row))) for row in rows]
