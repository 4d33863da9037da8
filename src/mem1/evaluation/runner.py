"""Run a policy on tasks of several sizes and summarise: one row a number of objectives.

Tasks are cut into chunks, and each chunk is on the disk as soon as it is done:

    tasks 0 1 2 3 4 5 6    ->    chunks (0 1 2) (3 4 5) (6)    ->    killed in the second: it is run again, whole

Which tasks are a chunk depends on the list of tasks alone. So an evaluation that was killed and started again gives
every task to the engine in the same company, and ends with the same bytes as an unbroken one, timings aside. Tasks that
were added later are chunks of their own:

    7 tasks, then 10       ->    chunks (0 1 2) (3 4 5) (6) (7 8 9)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from mem1.configuration import plain
from mem1.engines.base import Sampling
from mem1.envs.base import TaskSource
from mem1.errors import UserError
from mem1.evaluation.flops import ModelShape
from mem1.evaluation.metrics import Row, summarize
from mem1.evaluation.store import append_trajectories, read_attempts, write_row, write_trajectories
from mem1.lock import alone_in
from mem1.net.threads import run_jobs
from mem1.records import Task, Trajectory
from mem1.rollout import Rollout
from mem1.tasks.compose import different
from mem1.training.loop.interrupt import Stop, interruptible
from mem1.training.loop.recipe import Evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunking:
    """How the tasks of an evaluation are cut up.

    The engine gets a whole chunk as one batch, so chunks of many tasks suit a model in this process. A server forms
    batches itself: give it chunks of one task, and many at a time, so that a slow task holds nothing up.
    """

    tasks: int = 64
    """In a chunk."""
    at_a_time: int = 1
    """Chunks in work, each in a thread of its own where there are several; engine and environment must bear it."""


class Interrupted(KeyboardInterrupt):
    """The user stopped an evaluation; the text says what is saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the tasks of one size are, those included that earlier runs of the same evaluation did."""

    objectives: int
    done: int
    of: int
    tokens_in: int
    """Context tokens of all calls of the model, in finished chunks."""
    tokens_out: int
    """Sampled tokens, likewise."""


OnProgress = Callable[[Progress], None]


def evaluate(
    rollout: Rollout,
    source: TaskSource,
    config: Evaluation,
    *,
    policy: str,
    folder: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    chunking: Chunking | None = None,
    on_progress: OnProgress | None = None,
    shape: ModelShape | None = None,
) -> tuple[list[Row], dict[int, list[Trajectory]]]:
    """Rows, with FLOPs where the model's `shape` is given, and the trajectories by number of objectives.

    A task that asks the same questions as an earlier one is left out, so where the source has fewer different tasks
    than `config.tasks`, a row has fewer.

    With a `folder`, the trajectories of each size stand in `<policy>-<N>.jsonl`, chunk by chunk while the evaluation
    runs and in the order of the tasks at the end. An evaluation that was killed goes on with the chunks that are
    missing, and one of the first of the tasks with the others; attempts in which the tool failed are made again.
    `settings` is what identifies model and tasks (`header.made_with`): a file that was made with others, or other
    tasks, context policy, tags, budget or sampling, is an error unless `overwrite`, which begins it anew.

    Raises UserError for such a file, for one that cannot be written and while another command is at work in the
    folder, and Interrupted after Ctrl-C: the first one lets the chunks in work finish, the second does not. Whatever
    the engine raises ends the evaluation likewise.
    """
    with nullcontext() if folder is None else alone_in(folder):
        chunking = chunking or Chunking()
        sampling = Sampling(temperature=config.temperature, seed=config.seed)
        sizes: list[_Size] = []
        for objectives in dict.fromkeys(config.objectives):
            tasks = different(source.tasks(objectives=objectives, count=config.tasks, seed=config.seed))
            size = _Size(objectives, tasks, None if folder is None else folder / f"{policy}-{objectives}.jsonl")
            size.read({**(settings or {}), **_settings(rollout, config)}, chunk=chunking.tasks, overwrite=overwrite)
            sizes.append(size)

        def tell(size: _Size, running: int = 0) -> None:
            if on_progress is not None:
                on_progress(size.progress(running))

        def attempt(job: tuple[_Size, list[int]]) -> list[Trajectory]:
            size, places = job
            return rollout(
                [size.tasks[i] for i in places],
                sampling=sampling,
                # with several chunks at a time, finished ones say enough
                progress=None if chunking.at_a_time > 1 else lambda done, _: tell(size, done),
            )

        for size in sizes:
            tell(size)
        jobs = [(size, places) for size in sizes for places in size.missing(chunking.tasks)]
        with _saying_what_is_saved(sizes, folder) as stop:
            for (size, places), trajectories in run_jobs(
                jobs, attempt, at_a_time=chunking.at_a_time, stopped=lambda: stop.requested
            ):
                size.add(places, trajectories)
                tell(size)
        rows = [size.finish(policy=policy, context=rollout.context.name, shape=shape) for size in sizes]
        return rows, {size.objectives: size.trajectories for size in sizes}


@dataclass
class _Size:
    """The tasks of one number of objectives and the attempts at them so far."""

    objectives: int
    tasks: list[Task]
    path: Path | None
    """None: nothing is kept on the disk."""
    found: dict[int, Trajectory] = field(default_factory=dict)
    """Place in `tasks` -> the newest attempt."""
    tokens_in: int = 0
    tokens_out: int = 0
    on_disk: list[int] = field(default_factory=list)
    """The place of each line of the file."""
    added_at: Sequence[int] = ()
    """Places before which an earlier evaluation ended that had fewer tasks."""

    def __post_init__(self) -> None:
        for task_id, times in Counter(task.id for task in self.tasks).items():
            if times > 1:
                raise ValueError(f"{times} different tasks are called {task_id!r}; a source names each task once")

    def read(self, settings: Mapping[str, Any], *, chunk: int, overwrite: bool) -> None:
        """Take over the whole chunks that the file holds. Raises UserError where it belongs to something else."""
        if self.path is None:
            return
        places = {task.id: i for i, task in enumerate(self.tasks)}
        recorded = read_attempts(self.path, settings, self.tasks, overwrite=overwrite)
        self.added_at = recorded.added_at
        for trajectory in recorded.trajectories:
            name = "" if trajectory.task is None else trajectory.task.id
            if name not in places:
                raise UserError(f"{self.path} holds an attempt at a task {name!r}, which is not one of its tasks")
            self._take(places[name], trajectory)
        for members in self._chunks(chunk):
            if not all(i in self.found for i in members):  # killed while it was written
                for i in members:
                    self.found.pop(i, None)

    def missing(self, chunk: int) -> Iterator[list[int]]:
        """The places still to attempt, by chunk; those are among them whose tool failed."""
        for members in self._chunks(chunk):
            if places := [i for i in members if i not in self.found or not self.found[i].ended.scorable]:
                yield places

    def _chunks(self, chunk: int) -> Iterator[range]:
        for start, stop in pairwise([0, *self.added_at, len(self.tasks)]):
            for first in range(start, stop, chunk):
                yield range(first, min(first + chunk, stop))

    def _take(self, place: int, trajectory: Trajectory) -> None:
        self.found[place] = trajectory
        self.on_disk.append(place)
        self.tokens_in += sum(len(turn.context_ids) for turn in trajectory.turns)
        self.tokens_out += sum(len(turn.completion_ids) for turn in trajectory.turns)

    def add(self, places: Sequence[int], trajectories: Sequence[Trajectory]) -> None:
        """Attempts that were just made, on the disk when this returns."""
        if self.path is not None:
            append_trajectories(self.path, trajectories, drop_cut_line=True)
        for place, trajectory in zip(places, trajectories, strict=True):
            self._take(place, trajectory)

    def progress(self, running: int) -> Progress:
        """`running`: attempts that are finished in a chunk that is not."""
        return Progress(
            objectives=self.objectives,
            done=min(len(self.found) + running, len(self.tasks)),
            of=len(self.tasks),
            tokens_in=self.tokens_in,
            tokens_out=self.tokens_out,
        )

    @property
    def trajectories(self) -> list[Trajectory]:
        """One a task, in their order, once all are there."""
        return [self.found[i] for i in range(len(self.tasks))]

    def finish(self, *, policy: str, context: str, shape: ModelShape | None) -> Row:
        """The row; on disk the attempts are put in the order of the tasks, each once, with the row beside them."""
        row = summarize(self.trajectories, policy=policy, context=context, objectives=self.objectives, shape=shape)
        if self.path is not None:
            if self.on_disk != list(range(len(self.tasks))):
                write_trajectories(self.path, self.trajectories)
            write_row(self.path, row)
        return row


def _settings(rollout: Rollout, config: Evaluation) -> dict[str, Any]:
    return {
        "context": rollout.context.name,
        "vocabulary": rollout.tags.name,
        "budget": plain(rollout.budget),
        "temperature": config.temperature,
        "seed": config.seed,
    }


@contextmanager
def _saying_what_is_saved(sizes: Sequence[_Size], folder: Path | None) -> Iterator[Stop]:
    """Turn Ctrl-C into `Interrupted`, and add to a user's error what is not lost."""
    if folder is None:
        yield Stop()
        return

    def saved() -> str:
        done, of = sum(len(size.found) for size in sizes), sum(len(size.tasks) for size in sizes)
        return f"{done} of {of} tasks are done and saved in {folder}; the same command (a training: --resume) goes on"

    try:
        with interruptible("finishing the tasks in work; press again to stop at once") as stop:
            yield stop
    except UserError as error:
        raise UserError(f"{error}\n{saved()}") from error
    except KeyboardInterrupt as interrupt:
        raise Interrupted(saved()) from interrupt
    if stop.requested:
        raise Interrupted(saved())
