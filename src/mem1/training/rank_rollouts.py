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
from mem1.training.distributed import Ranks


def on_all_ranks(
    ranks: Ranks,
    tasks: Sequence[Task],
    attempts: int,
    rollout: Callable[[Sequence[Task], Sequence[int]], list[Trajectory]],
    *,
    first_alone: bool = False,
) -> list[Group]:
    """So many attempts at each task, a share of the tasks on each rank; an error of any is raised on all.

    rollout         called with each task as often as it is attempted, and the numbers of the attempts
    first_alone     rank 0 makes all of them: servers sample, and it is the one that knows them
    """

    def groups_of(share: slice) -> list[Group]:
        chosen = [t * attempts + n for t in range(len(tasks))[share] for n in range(attempts)]
        made = rollout([repeated[i] for i in chosen], [numbers[i] for i in chosen])
        return [Group(trajectories=tuple(made[i : i + attempts])) for i in range(0, len(made), attempts)]

    repeated = [task for task in tasks for _ in range(attempts)]
    numbers = attempt_numbers(repeated)
    if ranks.size == 1:
        return groups_of(slice(None))

    def own() -> list[list[dict[str, Any]]]:
        if first_alone:
            groups = groups_of(slice(None)) if ranks.rank == 0 else []
        else:
            groups = groups_of(slice(ranks.rank, None, ranks.size))
        return [[trajectory_to_json(t) for t in group.trajectories] for group in groups]

    shares = ranks.each(own)
    # Each has every ranks.size-th task, so taking one of each in turn gives their order again.
    rows = [row for row in chain.from_iterable(zip_longest(*shares)) if row is not None]
    return [Group(trajectories=tuple(map(trajectory_from_json, row))) for row in rows]
