"""Run a policy on tasks of several sizes and summarise: one row a number of objectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from mem1.engines.base import Sampling
from mem1.envs.source import TaskSource
from mem1.evaluation.flops import ModelShape
from mem1.evaluation.metrics import Row, summarize
from mem1.evaluation.store import read_trajectories, write_trajectories
from mem1.records import Task, Trajectory
from mem1.rollout import Rollout
from mem1.training.config import Evaluation

OnRound = Callable[[int, int, int], None]
"""(objectives, attempts finished, attempts)."""


def evaluate(
    rollout: Rollout,
    source: TaskSource,
    config: Evaluation,
    *,
    policy: str,
    folder: Path | None = None,
    on_round: OnRound | None = None,
    shape: ModelShape | None = None,
) -> tuple[list[Row], dict[int, list[Trajectory]]]:
    """Rows, with FLOPs where the model's `shape` is given, and the trajectories by number of objectives.

    With a `folder`, the trajectories of each size are written there (`<policy>-<N>.jsonl`) when they are done, and
    sizes that stand there already are read, not run again; so a killed evaluation goes on where it was. Only tasks in
    which the tool failed are attempted once more. A file of other tasks (another number, seed or source) or of another
    context policy is written anew.
    """
    rows: list[Row] = []
    by_size: dict[int, list[Trajectory]] = {}
    for objectives in config.objectives:
        path = None if folder is None else folder / f"{policy}-{objectives}.jsonl"
        tasks = source.tasks(objectives=objectives, count=config.tasks, seed=config.seed)
        trajectories = read_trajectories(path) if path is not None and path.is_file() else []
        if [(t.task, t.context) for t in trajectories] != [(task, rollout.context.name) for task in tasks]:
            trajectories = []
        done = {i: t for i, t in enumerate(trajectories) if t.ended.judged}
        missing = [i for i in range(len(tasks)) if i not in done]
        if missing:
            attempts = _run(rollout, [tasks[i] for i in missing], config, objectives, on_round)
            done |= dict(zip(missing, attempts, strict=True))
            trajectories = [done[i] for i in range(len(tasks))]
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_trajectories(path, trajectories)
        by_size[objectives] = trajectories
        context = rollout.context.name
        rows.append(summarize(trajectories, policy=policy, context=context, objectives=objectives, shape=shape))
    return rows, by_size


def _run(
    rollout: Rollout, tasks: Sequence[Task], config: Evaluation, objectives: int, on_round: OnRound | None
) -> list[Trajectory]:
    return rollout(
        tasks,
        sampling=Sampling(temperature=config.temperature, seed=config.seed),
        progress=None if on_round is None else lambda done, of: on_round(objectives, done, of),
    )
