"""What several commands share: evaluating a policy under a recipe, showing rows, writing the page of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from mem1.cli.display import EvaluationBar, stderr
from mem1.cli.mistakes import say
from mem1.engines.base import Engine
from mem1.engines.device import Computed, Device
from mem1.engines.workers import local_engine
from mem1.evaluation.flops import model_shape
from mem1.evaluation.metrics import Row
from mem1.evaluation.report.rows import ReportRow
from mem1.evaluation.report.tables import print_table, warnings
from mem1.evaluation.runner import Chunking, evaluate
from mem1.evaluation.store import made_with
from mem1.protocol import Tags, vocabulary
from mem1.records import Trajectory
from mem1.training.loop.recipe import TrainConfig
from mem1.training.loop.rl_metrics import nothing_to_learn
from mem1.training.loop.run_folder import METRICS, read_metrics
from mem1.training.loop.train import make_rollout, weight_sync
from mem1.training.rollout_config import ServerRollouts
from mem1.training.weights.policy import Policy


def evaluate_policy(
    config: TrainConfig, policy: Policy, *, name: str, folder: Path | None, bars: Progress, device: Device
) -> tuple[list[Row], dict[int, list[Trajectory]]]:
    """Rows and the trajectories by number of objectives, on the evaluation half of the tasks.

    Whoever samples for the recipe's [rl] samples here too: its servers, which get this policy's weights, or this
    process, with the policy on `device`.
    """
    tags = vocabulary(config.vocabulary)
    source = config.tasks.source("evaluation", tags)
    with _sampler(config, policy, tags, device) as (engine, chunking, computed):
        rows, trajectories = evaluate(
            make_rollout(config, policy, source, tags, engine=engine),
            source,
            config.evaluation,
            policy=name,
            folder=folder,
            settings=None if folder is None else made_with(policy.fingerprint(), config.tasks, computed),
            overwrite=True,  # the folder belongs to a run, whose evaluation may be asked for anew with other settings
            chunking=chunking,
            on_progress=EvaluationBar(bars, name),
            shape=model_shape(policy.model),
        )
    say_fewer(rows, config.evaluation.tasks)
    return rows, trajectories


def say_fewer(rows: Sequence[Row], asked: int) -> None:
    """Name the sizes of which there are fewer different tasks than were asked for."""
    for row in rows:
        if row.tasks < asked:
            stderr().print(
                f"{row.policy}, N = {row.objectives}: {row.tasks} tasks, not {asked}: no more different ones "
                "were drawn from these questions (a task is asked once)",
                markup=False,
                soft_wrap=True,
            )


def warn_of_nothing_learnt(config: TrainConfig, training: Path) -> None:
    """Say so where no step of reinforcement learning had anything to compare."""
    if config.rl is None or not config.rl.algorithm.compares_attempts:
        return
    reason = nothing_to_learn(read_metrics(training / METRICS))
    if reason is not None:
        say(reason, "warning")


@contextmanager
def _sampler(
    config: TrainConfig, policy: Policy, tags: Tags, device: Device
) -> Iterator[tuple[Engine, Chunking, Mapping[str, str] | None]]:
    """Who samples, how many tasks at a time, and with what; the last is None where servers do."""
    with weight_sync(config, policy) as sync:
        if sync is None or config.rl is None or not isinstance(config.rollout, ServerRollouts):
            workers = device.workers(config.workers)
            engine = local_engine(policy.model, policy.codec, tags.stop_strings, workers=workers)
            yield engine, Chunking(), policy.computed(device).record()
            return
        sync.push_weights(policy.model, config.rl.version_at(config.rl.steps))
        yield sync.engine, Chunking(tasks=1, at_a_time=config.rollout.concurrency), None


def show(rows: Sequence[Row], *, as_json: bool, computed: Computed | None = None) -> None:
    """The result on stdout: one JSON object, with what computed it, or a table."""
    if as_json:
        record = {"rows": [row.as_dict() for row in rows], **({} if computed is None else computed.record())}
        print(json.dumps(record))
        for warning in warnings([ReportRow.of(row) for row in rows]):
            stderr().print(warning, style="yellow", markup=False, soft_wrap=True)
    else:
        print_table([ReportRow.of(row) for row in rows], Console())
