"""What a file of trajectories was made with, kept next to it, so that results of two settings are never mixed.

trained-2.jsonl    the trajectories
trained-2.json     {"model": "ac37a94d...", "context": "constant", "temperature": 0.0, "tasks": {"count": 100, ...}}

More tasks may be asked for later, if the first ones are the same: "added_at": [100] then says that there were 100.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mem1.configuration import Config, plain
from mem1.errors import UserError
from mem1.evaluation.store import read_trajectories
from mem1.records import Task, Trajectory, task_to_json
from mem1.training.files import write_atomically
from mem1.training.runs import differences

_MAY_DIFFER = ("retriever", "budget", "seconds_between_searches")
"""Keys of a source of tasks that say how it is reached and what may be spent, not what is asked and found."""


def made_with(model: str, tasks: Config) -> dict[str, Any]:
    """The settings that a rollout does not know: the fingerprint of the model, the configuration of the tasks."""
    return {"model": model, "source": plain(tasks, [key for key in _MAY_DIFFER if key in type(tasks).model_fields])}


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
    known = _read(header)
    added_at = [] if known is None else known.pop("added_at", [])
    if path.is_file() and known == settings:
        return Recorded(trajectories=read_trajectories(path, drop_cut_line=True), added_at=added_at)
    fewer = None if known is None else _fewer_tasks(known, settings, tasks)
    if path.is_file() and fewer is not None:
        added_at = [*added_at, fewer]
        _write(header, {**settings, "added_at": added_at})
        return Recorded(trajectories=read_trajectories(path, drop_cut_line=True), added_at=added_at)
    if path.is_file() and (known is None or not overwrite):
        raise UserError(_mismatch(path, known, settings))
    _write(header, settings, instead_of=path)
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
        write_atomically(header, json.dumps(settings, indent=1).encode())
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
