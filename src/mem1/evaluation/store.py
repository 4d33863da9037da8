"""How an evaluation is kept and resumed: a manifest keeps results of different settings from being mixed in one file.

    trained-2.jsonl    the trajectories
    trained-2.json     {"model": "ac37a94d...", "context": "constant", "temperature": 0.0, "tasks": {"count": 100, ...}}
    trained-2.row.json the row of results, with FLOPs and the judge's verdict, for reports
    resolved.json      {"trained": {"command": [...], "versions": {...}, "recipe": {...}}}, for reports

An evaluation may later be extended to more tasks, provided that the first ones are the same: "added_at": [100] then
records that there were 100 before. It may continue on another device, but not in another precision: "devices" lists
those that took part.

Attempts are made in chunks: each is kept as soon as it is done, and the next process makes those that are missing.

    tasks 0 1 2 3 4 5 6    ->    chunks (0 1 2) (3 4 5) (6)    ->    killed in the second: it is repeated as a whole

The chunks depend only on the number of tasks. So work that was killed and restarted gives every task to the engine in
the same batch, and ends with the same bytes as uninterrupted work, except for timings. Tasks added later form chunks of
their own:

    7 tasks, then 10       ->    chunks (0 1 2) (3 4 5) (6) (7 8 9)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from mem1.configuration import Config, plain
from mem1.durable import write_file
from mem1.envs.tasks import TasksConfig
from mem1.errors import UserError
from mem1.evaluation.metrics import Row
from mem1.interrupts import GRACE_S, Interrupted, Stop, interruptible
from mem1.net.threads import run_jobs
from mem1.records import Ended, Task, Trajectory, task_to_json
from mem1.run_folder import RESOLVED, differences, made_by
from mem1.trajectory_files import read_trajectories

_EVALUATIONS = "evaluations"
"""Key of resolved.json, which is a training's too where `mem1 eval` writes into the folder of one."""
_MAY_DIFFER = ("retriever", "budget", "seconds_between_searches", "laziness")
"""Task settings that say how the source is reached and what may be spent, not what is asked and found."""


def made_with(model: str, tasks: TasksConfig, computed: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The settings that a rollout does not know: the model's fingerprint, the configuration of the tasks, and what the
    files hold that they search.

    computed    "device" and "dtype" of a model in this process; None: a server or a script answers
    """
    source = plain(tasks, [key for key in _MAY_DIFFER if key in type(tasks).model_fields])
    searched = tasks.searched()
    return {"model": model, "source": source, **({"searched": searched} if searched else {}), **(computed or {})}


def fingerprint(tasks: Sequence[Task]) -> str:
    """BLAKE2 digest (hexadecimal) of everything in the tasks, in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for task in tasks:
        digest.update(json.dumps(task_to_json(task)).encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Attempts of an evaluation that are on disk already."""

    trajectories: Sequence[Trajectory] = ()
    added_at: Sequence[int] = ()
    """Numbers of tasks that there were before more were added."""


def read_attempts(path: Path, settings: Mapping[str, Any], tasks: Sequence[Task], *, overwrite: bool) -> Recorded:
    """The attempts in `path` at these tasks, or at the first of them, made with these settings.

    Writes the manifest of a new file, and again when tasks were added. A file made with other settings is removed if
    `overwrite`; otherwise raises UserError, naming each setting that differs. Without a readable manifest it always
    raises. An incomplete last line is left out.
    """
    manifest = path.with_suffix(".json")
    # as it will be read back: tuples are lists
    settings = dict(json.loads(json.dumps({**settings, "tasks": _described(tasks)})))
    here = [device] if (device := settings.pop("device", None)) is not None else []
    known = _read_manifest(manifest)
    added_at, before = ([], []) if known is None else (known.pop("added_at", []), known.pop("devices", []))
    devices = {"devices": [*before, *(d for d in here if d not in before)]} if before or here else {}
    fewer = None if known is None or known == settings else _fewer_tasks(known, settings, tasks)
    if path.is_file() and (known == settings or fewer is not None):
        added_at = added_at if fewer is None else [*added_at, fewer]
        if fewer is not None or devices.get("devices", []) != before:
            _write_json(manifest, {**settings, **({"added_at": added_at} if added_at else {}), **devices})
        return Recorded(trajectories=read_trajectories(path, drop_cut_line=True), added_at=added_at)
    if path.is_file() and known is None:
        raise UserError(
            f"{path} holds trajectories, but its manifest {manifest.name}, which records how they were made, is "
            "missing or damaged; delete the file, or choose another --out"
        )
    if path.is_file() and not overwrite:
        raise other_settings(path, differences(known or {}, settings))
    _write_json(manifest, {**settings, **({"devices": here} if here else {})}, remove=(path, _row_file(path)))
    return Recorded()


def write_row(path: Path, row: Row) -> None:
    """Write the row of the trajectories in `path` beside them, where reports read it. Raises UserError.

    An equal row is left as it is, with the judge's verdict that it may have.
    """
    known = None
    with suppress(UserError):  # a damaged one is replaced
        known = read_row(path)
    if known is None or row not in (known, replace(known, judge=None)):
        _write_json(_row_file(path), asdict(row))


def drop_row(path: Path) -> None:
    """Remove the row of the trajectories in `path`, before these become others. Raises UserError."""
    try:
        _row_file(path).unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot remove {_row_file(path)}: {error.strerror or error}; remove it by hand") from error


def read_row(path: Path) -> Row | None:
    """The row written for the trajectories in `path`; None: none was. Raises UserError where it is damaged."""
    file = _row_file(path)
    if not file.is_file():
        return None
    try:
        return TypeAdapter(Row).validate_json(file.read_bytes())
    except (ValidationError, OSError) as error:
        raise UserError(f"{file} is not a row of results; delete it, or evaluate again") from error


def write_made_by(
    folder: Path,
    agent: str,
    recipe: Config,
    *,
    command: Sequence[str],
    computed: Sequence[Mapping[str, str]],
    protocol: Mapping[str, Any],
) -> None:
    """Record how the files of this agent in the folder came about. Raises UserError.

    computed    device and precision of this process; empty: a server or a script answers
    protocol    how it speaks, as the record of a resolved protocol
    """
    made = {**made_by(command), "recipe": plain(recipe), "computed": computed, "protocol": protocol}
    kept = _read_manifest(folder / RESOLVED) or {}
    _write_json(folder / RESOLVED, {**kept, _EVALUATIONS: {**read_made_by(folder), agent: made}})


def read_made_by(folder: Path) -> dict[str, Any]:
    """How the files of each agent in a folder of `mem1 eval --out` came about; empty: not recorded."""
    found = (_read_manifest(folder / RESOLVED) or {}).get(_EVALUATIONS)
    return found if isinstance(found, dict) else {}


def _row_file(path: Path) -> Path:
    return path.with_suffix(".row.json")


def _described(tasks: Sequence[Task]) -> dict[str, Any]:
    return {"count": len(tasks), "fingerprint": fingerprint(tasks)}


def _fewer_tasks(known: Mapping[str, Any], settings: Mapping[str, Any], tasks: Sequence[Task]) -> int | None:
    """Number of tasks in `known` if these are the first of `tasks` and all else equals `settings`; None otherwise."""
    described = known.get("tasks")
    count = described.get("count") if isinstance(described, dict) else None
    if not isinstance(count, int) or not 0 < count < len(tasks):
        return None
    return count if known == {**settings, "tasks": _described(tasks[:count])} else None


def _write_json(path: Path, record: Mapping[str, Any], *, remove: Sequence[Path] = ()) -> None:
    """Write the file atomically, after removing the files that it replaces."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in remove:
            old.unlink(missing_ok=True)
        write_file(path, json.dumps(record, indent=1).encode())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose another folder") from error


def _read_manifest(path: Path) -> dict[str, Any] | None:
    """None: there is none that can be read."""
    try:
        settings = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(settings, dict):
        return None
    added_at = settings.get("added_at", [])
    return settings if isinstance(added_at, list) and all(type(number) is int for number in added_at) else None


def other_settings(path: Path, changed: Sequence[tuple[str, str, str]]) -> UserError:
    """What is in `path` was made with other settings: `changed` as of `differences`."""
    lines = [f"  {key}: {there} in the folder, {here} now" for key, there, here in changed]
    return UserError(
        f"{path} was made with other settings:\n" + "\n".join(lines) + "\n"
        "use the folder's settings to continue it; for the new ones choose another --out, or delete it"
    )


class Attempted(Protocol):
    """An attempt, as far as it matters here."""

    @property
    def ended(self) -> str:
        """A value of `mem1.records.Ended`."""
        ...


Found = TypeVar("Found", bound=Attempted)
Job = TypeVar("Job")


def chunks(tasks: int, size: int, added_at: Sequence[int] = ()) -> list[range]:
    """The places of the tasks of each chunk; `added_at`: numbers of tasks that there were before more were added."""
    return [
        range(first, min(first + size, stop))
        for start, stop in pairwise([0, *added_at, tasks])
        for first in range(start, stop, size)
    ]


def missing(found: dict[int, Found], chunks: Sequence[range]) -> list[list[int]]:
    """Places to attempt of each chunk: those not in `found`, and those that ended with a failed tool or server.

    A chunk that is there in part, because a process was killed while writing it, is dropped from `found`.
    """
    for members in chunks:
        if not all(i in found for i in members):
            for i in members:
                found.pop(i, None)
    return [[i for i in members if i not in found or not Ended(found[i].ended).scorable] for members in chunks]


def attempt_all(
    jobs: Sequence[Job],
    attempt: Callable[[Job, Callable[[], bool]], list[Found]],
    keep: Callable[[Job, list[Found]], None],
    *,
    at_a_time: int,
    doing: str,
    saved: Callable[[], str] | None,
    again: str,
) -> None:
    """Attempt the jobs, and keep what each yields as it is done.

    attempt    gets a job, and a function that says whether to stop
    keep       puts attempts on the disk; only a second Ctrl-C breaks it off
    at_a_time  jobs that run concurrently, each in its own thread
    doing      what Ctrl-C interrupts, such as "evaluating"
    saved      what is saved so far; None: nothing is, and Ctrl-C is not handled here
    again      how to continue

    Raises Interrupted after Ctrl-C: running jobs have `GRACE_S` to finish, or until the second one. An error of a job
    is raised once running jobs are finished; a UserError says what is saved, too.
    """
    with nullcontext(Stop()) if saved is None else _saying(doing, saved, again) as stop:
        work = run_jobs(
            jobs,
            lambda job: attempt(job, lambda: stop.requested),
            at_a_time=at_a_time,
            stopped=lambda: stop.requested,
        )
        for job, found in work:
            with stop.unbroken():
                keep(job, found)


@contextmanager
def _saying(doing: str, saved: Callable[[], str], again: str) -> Iterator[Stop]:
    """`interruptible`, but Ctrl-C ends with `Interrupted`; that and a UserError say what is saved."""
    notice = f"Stopping: what is running has {GRACE_S:.0f} seconds to finish; press Ctrl-C again to stop at once."
    try:
        with interruptible(notice) as stop:
            yield stop
            if stop.requested:
                raise KeyboardInterrupt
    except KeyboardInterrupt as interrupt:
        raise Interrupted(f"while {doing}; {saved()}", again) from interrupt
    except UserError as error:
        raise UserError(f"{error}\n{saved()}; {again}") from error
