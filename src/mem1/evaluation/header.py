"""What a file of trajectories was made with, kept next to it, so that results of two settings are never mixed.

trained-2.jsonl    the trajectories
trained-2.json     {"model": "ac37a94d...", "context": "constant", "temperature": 0.0, "tasks": {"count": 100, ...}}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
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


def read_attempts(path: Path, settings: Mapping[str, Any], *, overwrite: bool) -> list[Trajectory]:
    """What `path` holds of an evaluation with these settings; an empty file's header is written.

    Whatever was made with others is removed if `overwrite`; else raises UserError, naming each setting that differs.
    A cut last line is left out.
    """
    header = path.with_suffix(".json")
    settings = json.loads(json.dumps(settings))
    known = _read(header)
    if path.is_file() and known == settings:
        return read_trajectories(path, drop_cut_line=True)
    if path.is_file() and not overwrite:
        raise UserError(_mismatch(path, known, settings))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        write_atomically(header, json.dumps(settings, indent=1).encode())
    except OSError as error:
        raise UserError(f"cannot write {header}: {error.strerror or error}; give another folder") from error
    return []


def _read(header: Path) -> dict[str, Any] | None:
    """None: there is none that can be understood."""
    try:
        settings = json.loads(header.read_bytes())
    except (OSError, ValueError):
        return None
    return settings if isinstance(settings, dict) else None


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
