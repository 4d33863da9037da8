"""Trajectories on disk, one JSON record per line, and beside them a manifest of the settings that made them.

    write_trajectories("runs/a/trajectories.jsonl", trajectories)      # atomic: the old file or the new one
    append_trajectories("runs/a/trajectories.jsonl", more)
    read_trajectories("runs/a/trajectories.jsonl") == trajectories + more

A process killed while appending leaves an incomplete last line. It is reported with file and line, and dropped only
where the caller asks for it (`drop_cut_line=True`).

The manifest keeps results of different settings from being mixed in one file:

    trained-2.jsonl    the trajectories
    trained-2.json     {"model": "ac37a94d...", "context": "constant", "temperature": 0.0, "tasks": {"count": 100, ...}}

An evaluation may later be extended to more tasks, provided that the first ones are the same: "added_at": [100] then
records that there were 100 before. It may continue on another device, but not in another precision: "devices" lists
those that took part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mem1.configuration import Config, plain
from mem1.durable import write_file
from mem1.errors import UserError
from mem1.jsonl import append_lines, cut_line, encode_object, write_lines
from mem1.records import Task, Trajectory, task_to_json, trajectory_from_json, trajectory_to_json
from mem1.training.run_folder import differences


def write_trajectories(path: str | Path, trajectories: Iterable[Trajectory]) -> None:
    """Write the file anew; a reader, or a kill, sees the old file or the whole new one.

    Raises UserError if it cannot be written (no folder, full disk); the old file is then untouched.
    """
    write_lines(path, map(encode_object, map(trajectory_to_json, trajectories)))


def append_trajectories(path: str | Path, trajectories: Iterable[Trajectory], *, drop_cut_line: bool = False) -> None:
    """Add records at the end of the file, which is made if there is none.

    Raises UserError if the last line is cut, unless `drop_cut_line`, which removes it from the file for good, and
    if the file cannot be written.
    """
    append_lines(path, map(encode_object, map(trajectory_to_json, trajectories)), drop_cut_line=drop_cut_line)


def read_trajectories(path: str | Path, *, drop_cut_line: bool = False) -> list[Trajectory]:
    """All records of a file, in order; blank lines are skipped.

    Raises UserError, naming file and line, for a missing file, a line that is not a trajectory, and a cut last
    line; with `drop_cut_line` the latter is left out (the file is not changed).
    """
    path = Path(path)
    trajectories: list[Trajectory] = []
    for number, line, is_last in _lines(path):
        try:
            trajectories.append(trajectory_from_json(json.loads(line)))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            if not (is_last and not line.endswith(b"\n")):
                raise UserError(f"{path}:{number}: not valid JSON ({error}); repair or delete this line") from error
            if not drop_cut_line:
                raise UserError(cut_line(path, number)) from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path}:{number}: not a trajectory record ({error!r})") from error
    return trajectories


def _lines(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """(line number, line, whether it is the last) of every line that is not blank."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; give the trajectories.jsonl of a run")
    with path.open("rb") as file:
        number, line = 1, file.readline()
        while line:
            following = file.readline()
            if line.strip():
                yield number, line, not following
            number, line = number + 1, following


_MAY_DIFFER = ("retriever", "budget", "seconds_between_searches")
"""Keys of a source of tasks that say how it is reached and what may be spent, not what is asked and found."""


def made_with(model: str, tasks: Config, computed: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The settings that a rollout does not know: the fingerprint of the model, the configuration of the tasks.

    computed    "device" and "dtype" of a model in this process; None: a server computes, or nobody
    """
    source = plain(tasks, [key for key in _MAY_DIFFER if key in type(tasks).model_fields])
    return {"model": model, "source": source, **(computed or {})}


def fingerprint(tasks: Sequence[Task]) -> str:
    """BLAKE2 (hexadecimal) of everything in the tasks, in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for task in tasks:
        digest.update(json.dumps(task_to_json(task)).encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a file holds of an evaluation."""

    trajectories: Sequence[Trajectory] = ()
    added_at: Sequence[int] = ()
    """How many tasks there were each time when more were asked for."""


def read_attempts(path: Path, settings: Mapping[str, Any], tasks: Sequence[Task], *, overwrite: bool) -> Recorded:
    """What `path` holds of an evaluation of these tasks, or of the first of them, with these settings.

    An empty file's header is written, and so is one that now has more tasks. What an evaluation with other settings
    made is removed if `overwrite`. Else raises UserError, naming each setting that differs, and always for a file
    without the header that says what it is. A cut last line is left out.
    """
    header = path.with_suffix(".json")
    settings = _as_json({**settings, "tasks": _described(tasks)})
    here = [device] if (device := settings.pop("device", None)) is not None else []
    known = _read(header)
    added_at, before = ([], []) if known is None else (known.pop("added_at", []), known.pop("devices", []))
    devices = {"devices": [*before, *(d for d in here if d not in before)]} if before or here else {}
    fewer = None if known is None or known == settings else _fewer_tasks(known, settings, tasks)
    if path.is_file() and (known == settings or fewer is not None):
        added_at = added_at if fewer is None else [*added_at, fewer]
        if fewer is not None or devices.get("devices", []) != before:
            _write(header, {**settings, **({"added_at": added_at} if added_at else {}), **devices})
        return Recorded(trajectories=read_trajectories(path, drop_cut_line=True), added_at=added_at)
    if path.is_file() and (known is None or not overwrite):
        raise UserError(_mismatch(path, known, settings))
    _write(header, {**settings, **({"devices": here} if here else {})}, instead_of=path)
    return Recorded()


def _described(tasks: Sequence[Task]) -> dict[str, Any]:
    return {"count": len(tasks), "fingerprint": fingerprint(tasks)}


def _fewer_tasks(known: Mapping[str, Any], settings: Mapping[str, Any], tasks: Sequence[Task]) -> int | None:
    """How many of the tasks `known` is about, if these are the first ones and all else is as in `settings`."""
    described = known.get("tasks")
    count = described.get("count") if isinstance(described, dict) else None
    if not isinstance(count, int) or not 0 < count < len(tasks):
        return None
    return count if known == {**settings, "tasks": _described(tasks[:count])} else None


def _write(header: Path, settings: Mapping[str, Any], *, instead_of: Path | None = None) -> None:
    """A new header; the trajectories `instead_of` which it comes are removed first."""
    try:
        header.parent.mkdir(parents=True, exist_ok=True)
        if instead_of is not None:
            instead_of.unlink(missing_ok=True)
        write_file(header, json.dumps(settings, indent=1).encode())
    except OSError as error:
        raise UserError(f"cannot write {header}: {error.strerror or error}; give another folder") from error


def _as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """As it will be read: tuples are lists there."""
    return json.loads(json.dumps(settings))


def _read(header: Path) -> dict[str, Any] | None:
    """None: there is none that can be understood."""
    try:
        settings = json.loads(header.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(settings, dict):
        return None
    added_at = settings.get("added_at", [])
    return settings if isinstance(added_at, list) and all(type(number) is int for number in added_at) else None


def _mismatch(path: Path, known: Mapping[str, Any] | None, settings: Mapping[str, Any]) -> str:
    if known is None:
        return (
            f"{path} holds trajectories, but {path.with_suffix('.json').name} beside it, which says how they came "
            "about, is missing or damaged; delete the file, or give another --out"
        )
    changed = (f"  {key}: {there} in the folder, {here} now" for key, there, here in differences(known, settings))
    return (
        f"{path} was made with other settings:\n" + "\n".join(changed) + "\n"
        "give the folder's settings to go on with it; for the new ones give another --out, or delete the file"
    )
