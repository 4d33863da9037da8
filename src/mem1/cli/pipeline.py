"""What several commands share: evaluating a policy under a recipe, showing rows, writing the page of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from mem1.cli.display import EvaluationBar, stderr
from mem1.cli.mistakes import say
from mem1.evaluation.header import made_with
from mem1.evaluation.report.table import print_table, warnings
from mem1.evaluation.runner import evaluate
from mem1.evaluation.shapes import model_shape
from mem1.protocol import vocabulary
from mem1.records import Trajectory
from mem1.training.config import TrainConfig
from mem1.training.metrics_log import METRICS, read_metrics
from mem1.training.policy import Policy
from mem1.training.rl_metrics import nothing_to_learn
from mem1.training.train import make_rollout

Rows = list[dict[str, Any]]


def evaluate_policy(
    config: TrainConfig, policy: Policy, *, name: str, folder: Path | None, bars: Progress
) -> tuple[Rows, dict[int, list[Trajectory]]]:
    """Rows for `--json` and the trajectories by number of objectives, on the evaluation half of the tasks."""
    tags = vocabulary(config.vocabulary)
    source = config.tasks.source("evaluation", tags)
    rollout = make_rollout(config, policy, source, tags)
    rows, trajectories = evaluate(
        rollout,
        source,
        config.evaluation,
        policy=name,
        folder=folder,
        settings=None if folder is None else made_with(policy.fingerprint(), config.tasks),
        overwrite=True,  # the folder belongs to a run, whose evaluation may be asked for anew with other settings
        on_progress=EvaluationBar(bars, name),
        shape=model_shape(policy.model),
    )
    shown = [row.as_dict() for row in rows]
    say_fewer(shown, config.evaluation.tasks)
    return shown, trajectories


def say_fewer(rows: Sequence[Mapping[str, Any]], asked: int) -> None:
    """Name the sizes of which there are fewer different tasks than were asked for."""
    for row in rows:
        if row["tasks"] < asked:
            stderr().print(
                f"{row['policy']}, N = {row['objectives']}: {row['tasks']} tasks, not {asked}: no more different ones "
                "were drawn from these questions (a task is asked once)",
                markup=False,
                soft_wrap=True,
            )


def warn_of_nothing_learnt(config: TrainConfig, training: Path) -> None:
    """Say so where no step of reinforcement learning had anything to compare."""
    if config.rl is None or config.rl.fewest_attempts < 2:
        return
    reason = nothing_to_learn(read_metrics(training / METRICS))
    if reason is not None:
        say(reason, "warning")


def show(rows: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """The result on stdout: one JSON object, or a table."""
    if as_json:
        print(json.dumps({"rows": list(rows)}))
        for warning in warnings(rows):
            stderr().print(warning, style="yellow", markup=False, soft_wrap=True)
    else:
        print_table(rows, Console())
