"""Run a policy on tasks of several sizes and summarise: one row per number of objectives.

    rows, trajectories = evaluate(rollout, source, Evaluation(objectives=(1, 4)), policy="trained", folder=folder)

    N = 1   0 1 2 | 3 4 5 | 6       tasks of a size are divided into chunks (`store`); the chunks of all sizes that
    N = 8   0 1 2 | 3 4 5 | 6       stand below one another are sampled together, and written as soon as they are done

Few large tasks take many turns: sampled alone they would read all weights for each token of a handful of rows. Who is
killed between the writes of two sizes samples the rest in a smaller batch, which may round log-probabilities otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mem1.configuration import plain
from mem1.engines.base import Sampling, new_session
from mem1.envs.base import TaskSource
from mem1.envs.tasks import made_tasks, source_name
from mem1.errors import UserError
from mem1.evaluation.metrics import Row, check_names, summarize
from mem1.evaluation.store import Recorded, attempt_all, chunks, drop_row, missing, read_attempts, write_row
from mem1.evaluation.tokens import ModelShape
from mem1.lock import alone_in
from mem1.protocol import told_by_name
from mem1.recipe.evaluation import Evaluation
from mem1.records import Task, Trajectory
from mem1.rollout import RolloutPort
from mem1.tasks.compose import different
from mem1.trajectory_files import append_trajectories, write_trajectories


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunking:
    """How the tasks of an evaluation are divided.

    The engine gets a chunk of every size as one batch, so large chunks suit a model in this process. A server forms
    batches itself: use chunks of one task and many of them concurrently, so that a slow task delays no other.
    """

    tasks: int = 64
    """Tasks per chunk."""
    at_a_time: int = 1
    """Chunks run concurrently, each in its own thread; engine and environment must be thread-safe if more than one,
    and then each is sampled alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress on the tasks of one size, including those done by earlier runs of the same evaluation."""

    objectives: int
    done: int
    of: int
    tokens_in: int
    """Context tokens of all model calls in finished chunks."""
    tokens_out: int
    """Sampled tokens in finished chunks."""


OnProgress = Callable[[Progress], None]


_DRAWN = 8
"""Times as many tasks as are asked for, in which repetitions are made up for."""


def asked(source: TaskSource, config: Evaluation, objectives: int) -> list[Task]:
    """The tasks of one size, no two alike; fewer than the configuration says where the source has no more. Raises
    UserError where it has none."""
    count = drawn = config.count(objectives)
    tasks: list[Task] = []
    while len(tasks) < count and drawn <= _DRAWN * count:
        try:
            found = different(made_tasks(source, objectives=objectives, count=drawn, seed=config.seed, exactly=False))
        except UserError:
            if not tasks:
                raise
            break  # a file of composed tasks has no more
        if len(found) == len(tasks):
            break
        tasks, drawn = found, 2 * drawn
    if not tasks:
        raise UserError(
            f"{source_name(source)}.tasks returned no task of {objectives} objectives; {count} were asked for"
        )
    return tasks[:count]


def evaluate(
    rollout: RolloutPort,
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
    """Rows, with FLOPs if the model's `shape` is given, and the trajectories by number of objectives.

    A task with the same questions as an earlier one is left out, so a row has fewer tasks than `config.count` if the
    source has fewer distinct ones.

    With a `folder`, the trajectories of each size are written to `<policy>-<N>.jsonl`, chunk by chunk during the
    evaluation and in the order of the tasks at the end, with their row beside them. An evaluation that was killed, or
    that covered only the first tasks, continues with the missing chunks; attempts in which a tool failed are repeated.
    `settings` identifies model and tasks (`store.made_with`). A file made with other settings, tasks, memory,
    tags, budget or sampling is an error unless `overwrite`, which replaces it.

    Raises UserError for such a file, for one that cannot be written, and while another command uses the folder;
    Interrupted after Ctrl-C: running chunks have `GRACE_S` to finish, or until the second one. Errors of the engine end
    the evaluation likewise.
    """
    with nullcontext() if folder is None else alone_in(folder):
        chunking = chunking or Chunking()
        sampling = Sampling(temperature=config.temperature, seed=config.seed)
        sizes: list[_Size] = []
        for objectives in dict.fromkeys(config.objectives):
            tasks = asked(source, config, objectives)
            size = _Size(objectives, tasks, None if folder is None else folder / f"{policy}-{objectives}.jsonl")
            size.read({**(settings or {}), **_settings(rollout, config)}, chunk=chunking.tasks, overwrite=overwrite)
            sizes.append(size)

        def tell(size: _Size, running: int = 0) -> None:
            if on_progress is not None:
                on_progress(size.progress(running))

        def attempt(job: _Job, stopped: Callable[[], bool]) -> list[Trajectory]:
            ended: Counter[int] = Counter()

            def tell_ended(places: Sequence[int]) -> None:
                now = Counter(job[place][0].objectives for place in places)
                ended.update(now)
                for size in sizes:
                    if now[size.objectives]:
                        tell(size, ended[size.objectives])

            return rollout(
                [size.tasks[i] for size, i in job],
                sampling=replace(sampling, session=new_session()),
                # with several concurrent chunks, finished ones are progress enough
                progress=None if chunking.at_a_time > 1 else tell_ended,
            )

        def keep(job: _Job, trajectories: list[Trajectory]) -> None:
            for size in sizes:
                if found := {i: t for (of, i), t in zip(job, trajectories, strict=True) if of is size}:
                    size.add(list(found), list(found.values()))
                    tell(size)

        def saved() -> str:
            done, of = sum(len(size.found) for size in sizes), sum(len(size.tasks) for size in sizes)
            return f"{done} of {of} attempts are done and saved in {folder}"

        for size in sizes:
            tell(size)
        attempt_all(
            _jobs(sizes, together=chunking.at_a_time == 1),
            attempt,
            keep,
            at_a_time=chunking.at_a_time,
            doing="evaluating",
            saved=None if folder is None else saved,
            again="repeat the command to continue (a training run: --resume)",
        )
        rows = [size.finish(policy=policy, context=rollout.context_name, shape=shape) for size in sizes]
        return rows, {size.objectives: size.trajectories for size in sizes}


@dataclass
class _Size:
    """The tasks with one number of objectives, and the attempts at them so far."""

    objectives: int
    tasks: list[Task]
    path: Path | None
    """File of the trajectories; None: nothing is written."""
    found: dict[int, Trajectory] = field(default_factory=dict)
    """Index in `tasks` -> latest attempt."""
    tokens_in: int = 0
    tokens_out: int = 0
    on_disk: list[int] = field(default_factory=list)
    """Index in `tasks` of each line of the file."""
    missing: Sequence[list[int]] = ()
    """Indices still to attempt of each chunk."""

    def __post_init__(self) -> None:
        for task_id, times in Counter(task.id for task in self.tasks).items():
            if times > 1:
                raise UserError(f"{times} different tasks have the id {task_id!r}; a source must give each its own")

    def read(self, settings: Mapping[str, Any], *, chunk: int, overwrite: bool) -> None:
        """Take over the complete chunks in the file. Raises UserError if it belongs to another evaluation."""
        places = {task.id: i for i, task in enumerate(self.tasks)}
        recorded = Recorded()
        if self.path is not None:
            recorded = read_attempts(self.path, settings, self.tasks, overwrite=overwrite)
        for trajectory in recorded.trajectories:
            name = "" if trajectory.task is None else trajectory.task.id
            if name not in places:
                raise UserError(f"{self.path} holds an attempt at a task {name!r}, which is not one of its tasks")
            self._take(places[name], trajectory)
        self.missing = missing(self.found, chunks(len(self.tasks), chunk, recorded.added_at))

    def _take(self, place: int, trajectory: Trajectory) -> None:
        self.found[place] = trajectory
        self.on_disk.append(place)
        self.tokens_in += sum(len(turn.context_ids) for turn in trajectory.turns)
        self.tokens_out += sum(len(turn.completion_ids) for turn in trajectory.turns)

    def add(self, places: Sequence[int], trajectories: Sequence[Trajectory]) -> None:
        """Add new attempts; they are on disk when this returns. Raises UserError for metrics that no row can have."""
        for trajectory in trajectories:
            check_names(trajectory)
        if self.path is not None:
            drop_row(self.path)
            append_trajectories(self.path, trajectories, drop_cut_line=True)
        for place, trajectory in zip(places, trajectories, strict=True):
            self._take(place, trajectory)

    def progress(self, running: int) -> Progress:
        """`running`: finished attempts in an unfinished chunk."""
        return Progress(
            objectives=self.objectives,
            done=min(len(self.found) + running, len(self.tasks)),
            of=len(self.tasks),
            tokens_in=self.tokens_in,
            tokens_out=self.tokens_out,
        )

    @property
    def trajectories(self) -> list[Trajectory]:
        """One per task, in order; all must be there."""
        return [self.found[i] for i in range(len(self.tasks))]

    def finish(self, *, policy: str, context: str, shape: ModelShape | None) -> Row:
        """The row; on disk the attempts are put in the order of the tasks, each once, with the row beside them."""
        row = summarize(self.trajectories, policy=policy, context=context, objectives=self.objectives, shape=shape)
        if self.path is not None:
            if self.on_disk != list(range(len(self.tasks))):
                write_trajectories(self.path, self.trajectories)
            write_row(self.path, row)
        return row


_Job = Sequence[tuple[_Size, int]]
"""What is sampled together: tasks, each with its size and its place among the tasks of that."""


def _jobs(sizes: Sequence[_Size], *, together: bool) -> list[_Job]:
    """The chunks of each size, or those of all sizes together, mixed evenly: processes that share them out by parts of
    equal length get as many of each."""
    if not together:
        return [[(size, i) for i in places] for size in sizes for places in size.missing if places]
    jobs: list[_Job] = []
    for each in zip_longest(*(size.missing for size in sizes), fillvalue=[]):
        placed = [
            ((at + 0.5) / len(places), number, i) for number, places in enumerate(each) for at, i in enumerate(places)
        ]
        jobs.append([(sizes[number], i) for _, number, i in sorted(placed)])
    return [job for job in jobs if job]


def _settings(rollout: RolloutPort, config: Evaluation) -> dict[str, Any]:
    tags = rollout.dialogue.tags
    return {
        "context": rollout.context_name,
        "vocabulary": rollout.dialogue.name,
        **({} if told_by_name(tags) else {"tags": asdict(tags)}),
        "budget": plain(rollout.budget),
        "temperature": config.temperature,
        "seed": config.seed,
    }
