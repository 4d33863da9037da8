"""The folder of a run: its configuration, and the numbers of each step.

    runs/quick/
        config.toml          the resolved configuration; `mem1 train runs/quick/config.toml` repeats the run
        resolved.json        command, fingerprint of the configuration, versions, devices, commit of the model, what
                             [sft] and [tasks] were given, what sampled, starts
        metrics.jsonl        {"step": 1, "reward": 0.25, "endings": {"answered": 3, "bad_tags": 1}}
        timings.jsonl        {"step": 1, "rollout": 1.4}
        warnings.jsonl       see `training/monitoring/run_warnings.py`
        tensorboard/         tags reward, endings/answered, endings/bad_tags, timings/rollout; other writers: writers.py
        trajectories/        see `training/monitoring/metrics_log.py`
        best/                see `training/monitoring/validation.py`
        checkpoints/         see `training/runs/checkpoint.py`

Training writes it; reports and evaluations read it.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from mem1.configuration import Config, fingerprint, flatten, plain, read_toml, to_toml
from mem1.configuration.toml import value_text
from mem1.durable import check_put, explain_full_disk, is_partial, write_file
from mem1.errors import UserError
from mem1.hub import hub_name
from mem1.version import __version__

RESOLVED = "resolved.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """A folder that holds exactly one run."""

    path: Path
    fingerprint: str
    """Fingerprint of the configuration without the excluded keys; checkpoints hold it too."""

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @classmethod
    def create(
        cls, path: str | Path, config: Config, *, command: Sequence[str], exclude: Sequence[str] = ()
    ) -> RunFolder:
        """Make the folder and record what is about to run.

        command     program and arguments, for the reader; absolute paths are cut to their last part
        exclude     dotted keys that may differ on resume, such as "display"

        Raises UserError where the folder exists and is not empty, or cannot be made.
        """
        run = cls(path=Path(path), fingerprint=fingerprint(config, exclude))
        check_free(run.path)
        try:
            run.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{run.path} cannot be made ({error.strerror}); give another --out") from error
        resolved = {**made_by(command), "fingerprint": run.fingerprint}
        with explain_full_disk(f"{run.path}", "nothing has run yet", "free some space and start it again"):
            write_file(run.path / RESOLVED, json.dumps(resolved, indent=2).encode())
            write_file(run.config, to_toml(config).encode())
        return run

    @classmethod
    def open(cls, path: str | Path, config: Config, *, exclude: Sequence[str] = ()) -> RunFolder:
        """An existing run, to continue under the same configuration.

        Raises UserError where there is no run, or where its configuration differs: lists the keys with both values.
        """
        run = cls(path=Path(path), fingerprint=fingerprint(config, exclude))
        if not run.config.is_file():
            raise UserError(f"{run.path} holds no run to continue: config.toml is missing; start it without --resume")
        changed = differences(read_toml(run.config), plain(config), exclude)
        if changed:
            lines = "\n".join(f"  {key}: {there} in the folder, {here} now" for key, there, here in changed)
            raise UserError(
                f"{run.path} was started with another configuration:\n{lines}\n"
                "give the folder's values (its config.toml), or start a new run with another --out"
            )
        return run

    def check_seen(self) -> None:
        """Raises UserError on a machine that does not see the folder, into which every rank writes checkpoints."""
        if not self.config.is_file():
            raise UserError(
                f"{self.path.absolute()} is not to be seen on {platform.node()}; give an --out on a file system that "
                "all machines share"
            )

    def note_computed(self, computed: Mapping[str, str]) -> None:
        """Record device, precision and attention from here on; a run that is resumed elsewhere lists all of them."""
        known = read_resolved(self.path).get("computed", [])
        if known[-1:] != [dict(computed)]:
            self._note("computed", [*known, dict(computed)])

    def note_protocol(self, protocol: Mapping[str, Any]) -> None:
        """Record how the policy speaks."""
        self._note("protocol", dict(protocol))

    def note_sampler(self, engine: str) -> None:
        """Record the engine of [rollout], which `sampled_by` reads."""
        self._note("rollout", engine)

    def note_model(self, name: str | None) -> None:
        """Record the commit of the model with this id, which `pin_model` reads; nothing for other models."""
        hub = None if name is None else hub_name(name)
        if hub is not None:
            self._note("model", {"name": name, "commit": hub.commit})

    def note_policy(self, digest: str | None) -> None:
        """Record which policy of mem1's the run began with, by `mem1.policy.folders.policy_digest`; None: another."""
        if digest is not None:
            self._note("policy", digest)

    def note_start(self, *, after_step: int, ranks: int) -> None:
        """Record that `ranks` processes train from here on. Starts whose steps were all lost are forgotten."""
        starts = [start for start in read_resolved(self.path).get("starts", []) if start["after_step"] < after_step]
        self._note("starts", [*starts, {"after_step": after_step, "ranks": ranks}])

    def note_trajectories(self, record: Mapping[str, Any]) -> None:
        """Record which attempts [sft] trains. Raises UserError where the run began with others."""
        known = self._begun_with("sft", record)
        if known["digest"] != record["digest"]:
            raise UserError(
                f"the files of sft.trajectories have changed: {self.path} began with {known['trained']} attempts, now "
                f"there are {record['trained']}; restore the files, or start a new run with another --out"
            )

    def note_tasks(self, digest: str) -> None:
        """Record what the training tasks are made of. Raises UserError where the run began with something else."""
        if self._begun_with("tasks", {"digest": digest})["digest"] != digest:
            raise UserError(
                f"the questions or the corpus of [tasks] are not those that {self.path} began with, or another "
                "retriever searches; restore them, or start a new run with another --out"
            )

    def _begun_with(self, key: str, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the run has recorded of its data; it is `record` from here on where a run from before has nothing."""
        known = read_resolved(self.path).get(key)
        if known is None:
            self._note(key, dict(record))
        return record if known is None else known

    def _note(self, key: str, value: object) -> None:
        resolved = {**read_resolved(self.path), key: value}
        with explain_full_disk(f"{self.path}", "the checkpoints are intact"):
            write_file(self.path / RESOLVED, json.dumps(resolved, indent=2).encode())


def check_empty(out: Path) -> None:
    """Raises UserError where `out` is no place for a new folder: it holds something, or one works in it."""
    if out.is_symlink():
        raise UserError(f"{out} is a link, which a folder cannot replace; give another folder")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not empty; give another folder")
    check_put(out)


def check_free(path: Path) -> None:
    """Raises UserError where `path` is no place for a new run: a file, in one, or a folder that is not empty."""
    try:
        there = next(p for p in (path, *path.absolute().parents) if p.exists())
        # a start that was killed before config.toml was written leaves resolved.json alone
        taken = path.is_dir() and any(not is_partial(p) and p.name != RESOLVED for p in path.iterdir())
    except OSError as error:
        raise UserError(f"{path} cannot be made ({error.strerror}); give another --out") from error
    if not there.is_dir():
        raise UserError(f"{there} is a file; give the run a folder with another --out")
    if taken and not (path / "config.toml").is_file():
        raise UserError(f"{path} exists, is not empty, and holds no run (config.toml is missing); give another --out")
    if taken:
        raise UserError(
            f"{path} exists and is not empty; continue the run in it with --resume (in Python, resume=True), "
            "or start a new one with another --out"
        )


def pin_model(run: Path) -> None:
    """Let the id of the model that this run began with mean the same commit in this process, if it has an id.

    What continues or reads a run calls it first: the hub may have moved on.
    """
    model = read_resolved(run).get("model", {})
    hub = hub_name(model.get("name", ""))
    if hub is not None and model.get("commit"):
        hub.pin(model["commit"])


def sampled_by(run: Path) -> str | None:
    """The engine of [rollout] with which the run in a folder was last started; None: there is no run."""
    return read_resolved(run).get("rollout")


def read_resolved(run: Path) -> dict[str, Any]:
    """Content of a run's resolved.json; empty: there is none. Raises UserError where it is damaged."""
    path = run / RESOLVED
    try:
        found = json.loads(path.read_bytes()) if path.is_file() else {}
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}); repair or delete it") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} is not what a run has written, but {found!r:.40}; repair or delete it")
    return found


def made_by(command: Sequence[str]) -> dict[str, Any]:
    """Origin of files for a report: the command without paths of this machine, versions, hardware."""
    return {
        "command": [portable(argument) for argument in command],
        "versions": _versions(),
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def differences(
    there: Mapping[str, Any], here: Mapping[str, Any], exclude: Sequence[str] = ()
) -> list[tuple[str, str, str]]:
    """(key, value in the folder, value now) for each key that differs, in the order of the keys."""
    old, new = flatten(there), flatten(here)
    changed = sorted(k for k in {**old, **new} if old.get(k) != new.get(k))
    excluded = {k for k in changed for section in exclude if f"{k}.".startswith(f"{section}.")}
    return [(k, _shown(old, k), _shown(new, k)) for k in changed if k not in excluded]


def _shown(leaves: Mapping[str, Any], key: str) -> str:
    return value_text(leaves[key]) if key in leaves else "not set"


def portable(argument: str) -> str:
    """The argument without paths of this machine.   out=/home/me/runs/a  ->  out=a"""
    for name, equals, value in (("", "", argument), argument.partition("="), argument.rpartition("=")):
        if PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute():
            return name + equals + PureWindowsPath(value).name
    return argument


def _versions() -> dict[str, str]:
    """Versions of mem1, Python and, if loaded, of the libraries that affect the numbers."""
    loaded = {n: sys.modules[n] for n in ("torch", "transformers", "numpy") if n in sys.modules}
    libraries = {name: str(module.__version__) for name, module in loaded.items()}
    return {"mem1": __version__, "python": platform.python_version(), **libraries}


TRAJECTORIES = "trajectories"
"""Folder of the attempts that were kept, in files such as step-000012.jsonl."""
BEST = "best"
"""Folder of the policy that did best on development tasks."""
METRICS = "metrics.jsonl"
TIMINGS = "timings.jsonl"
WARNINGS = "warnings.jsonl"


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl or timings.jsonl; a last line cut by a kill is left out.

    Raises UserError, with file and line, where another line is not a row.
    """
    return [row for row, _ in rows_of(Path(path))]


def rows_of(path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Each row with its own bytes."""
    *lines, _cut = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}:{number}: not a row of metrics ({error}); remove that line") from error
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise UserError(f'{path}:{number}: not a row of metrics: it has no "step"; remove that line')
        yield row, line


def given_warnings(folder: Path) -> list[str]:
    """Warnings recorded for the run in a folder, in words."""
    return [f"step {row['step']}: {row['text']}" for row in warnings_of(folder)]


def warnings_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of warnings.jsonl in the folder of a run; empty: there are none. Raises UserError as `read_metrics`."""
    path = folder / WARNINGS
    rows = read_metrics(path) if path.is_file() else []
    for row in rows:
        if lacking := [key for key in ("stage", "warning", "text") if key not in row]:
            raise UserError(f"{path}: the line of step {row['step']} has no {lacking[0]}; remove that line")
    return rows


def kept_steps(run: Path) -> list[tuple[int, Path]]:
    """(step, file) of all kept steps of a run, oldest first."""
    files = (run / TRAJECTORIES).glob("step-*.jsonl")
    named = [(re.fullmatch(r"step-(\d+)\.jsonl", path.name), path) for path in files]
    return sorted((int(match[1]), path) for match, path in named if match)
