"""The folder of a run: its configuration, and the numbers of each step.

    runs/quick/
        config.toml          the resolved configuration; `mem1 train runs/quick/config.toml` repeats the run
        resolved.json        command, fingerprint of the configuration, versions, devices, what [sft] was given, starts
        metrics.jsonl        {"step": 1, "reward": 0.25, "endings": {"answered": 3, "bad_tags": 1}}
        timings.jsonl        {"step": 1, "rollout": 1.4}
        warnings.jsonl       see `training/loop/watch.py`
        tensorboard/         tags reward, endings/answered, endings/bad_tags, timings/rollout; other writers: writers.py
        trajectories/        see `training/loop/kept_attempts.py`
        best/                see `training/loop/validation.py`
        checkpoints/         see `training/weights/checkpoint.py`

    with MetricsLog(run.path) as log:
        log.append(1, {"reward": 0.25, "endings": {"answered": 3, "bad_tags": 1}}, timings={"rollout": 1.4})

metrics.jsonl holds only numbers that a second run with the same seed repeats, so that two files can be compared;
seconds go to timings.jsonl.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import TracebackType
from typing import Any

import mem1
from mem1.configuration import Config, fingerprint, flatten, plain, read_toml, to_toml
from mem1.configuration.toml import value_text
from mem1.durable import explain_full_disk, is_partial, write_file
from mem1.errors import UserError
from mem1.training.loop.writers import Writers

RESOLVED = "resolved.json"

Metrics = Mapping[str, "float | Metrics | None"]
"""Metrics of a step, by name; None: nothing to measure."""


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
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            # a start that was killed before config.toml was written leaves resolved.json alone
            taken = any(not is_partial(p) and p.name != RESOLVED for p in run.path.iterdir())
        except FileExistsError as error:
            raise UserError(f"{run.path} is a file; give the run a folder with another --out") from error
        except OSError as error:
            raise UserError(f"{run.path} cannot be made ({error.strerror}); give another --out") from error
        if taken:
            raise UserError(
                f"{run.path} exists and is not empty; continue the run in it with --resume, "
                "or start a new one with another --out"
            )
        resolved = {**made_by(command), "fingerprint": run.fingerprint}
        with explain_full_disk(f"{run.path}", "nothing has run yet"):
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
        known = self._resolved().get("computed", [])
        if known[-1:] != [dict(computed)]:
            self._note("computed", [*known, dict(computed)])

    def note_start(self, *, after_step: int, ranks: int) -> None:
        """Record that `ranks` processes train from here on. Starts whose steps were all lost are forgotten."""
        starts = [start for start in self._resolved().get("starts", []) if start["after_step"] < after_step]
        self._note("starts", [*starts, {"after_step": after_step, "ranks": ranks}])

    def note_trajectories(self, record: Mapping[str, Any]) -> None:
        """Record which attempts [sft] trains. Raises UserError where the run began with others."""
        known = self._resolved().get("sft")
        if known is None:
            self._note("sft", dict(record))
        elif known["digest"] != record["digest"]:
            raise UserError(
                f"the files of sft.trajectories have changed: {self.path} began with {known['trained']} attempts, now "
                f"there are {record['trained']}; restore the files, or start a new run with another --out"
            )

    def _resolved(self) -> dict[str, Any]:
        path = self.path / RESOLVED
        return json.loads(path.read_bytes()) if path.is_file() else {}

    def _note(self, key: str, value: object) -> None:
        resolved = {**self._resolved(), key: value}
        with explain_full_disk(f"{self.path}", "the checkpoints are intact"):
            write_file(self.path / RESOLVED, json.dumps(resolved, indent=2).encode())


def made_by(command: Sequence[str]) -> dict[str, Any]:
    """What a report says of how files came about: the command without paths of this machine, versions, hardware."""
    return {
        "command": [_portable(argument) for argument in command],
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


def _portable(argument: str) -> str:
    """The argument without paths of this machine.   out=/home/me/runs/a  ->  out=a"""
    name, equals, value = argument.rpartition("=")
    absolute = PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute()
    return name + equals + (PureWindowsPath(value).name if absolute else value)


def _versions() -> dict[str, str]:
    """Versions of mem1, Python and, if loaded, of the libraries that affect the numbers."""
    loaded = {n: sys.modules[n] for n in ("torch", "transformers", "numpy") if n in sys.modules}
    libraries = {name: str(module.__version__) for name, module in loaded.items()}
    return {"mem1": mem1.__version__, "python": platform.python_version(), **libraries}


METRICS = "metrics.jsonl"
TIMINGS = "timings.jsonl"
WARNINGS = "warnings.jsonl"


class MetricsLog:
    """Appends to the records of a run's folder and to its writers; a line is on the disk when `append` returns."""

    def __init__(self, path: str | Path, writers: Writers | None = None) -> None:
        """`path` is the run's folder; `writers` receive the same numbers once `open_writers` was called."""
        self.path = Path(path)
        self.writers = writers

    def append(self, step: int, metrics: Metrics, *, timings: Mapping[str, float] | None = None) -> None:
        """One line of numbers, keys in the order given.

        metrics     deterministic numbers, or counts by name; None: undefined at this step (null in the file)
        timings     seconds by what they were spent on, and rates

        Raises UserError where a number is not finite (the run has diverged) or the disk is full.
        """
        flat = _flat(metrics, timings or {})
        for tag, value in flat.items():
            if not math.isfinite(value):
                raise UserError(
                    f"step {step}: {tag} is {value}, so the run has diverged; lower the learning rate and continue "
                    "from the last checkpoint, which is intact, in a new run"
                )
        with explain_full_disk(f"the metrics of step {step} in {self.path}", "the last checkpoint is intact"):
            _append_line(self.path / METRICS, {"step": step, **metrics})
            if timings:
                _append_line(self.path / TIMINGS, {"step": step, **timings})
        if self.writers is not None:
            self.writers.write(step, flat)

    def digest(self, step: int) -> str:
        """BLAKE2 (hexadecimal) of the rows of metrics up to a step."""
        path = self.path / METRICS
        rows = [line for row, line in _rows(path) if row["step"] <= step] if path.exists() else []
        return hashlib.blake2b(b"\n".join(rows), digest_size=16).hexdigest()

    def truncate_after(self, step: int) -> int:
        """On resume: drop the rows of steps beyond the checkpoint, and a cut last line; returns rows dropped."""
        return sum(_keep_until(self.path / name, step) for name in (METRICS, TIMINGS, WARNINGS))

    def open_writers(self) -> None:
        """Once, before the first step; on resume after `truncate_after`: they are given the steps that were kept."""
        if self.writers is not None and not self.writers.opened:
            metrics, timings = (_by_step(self.path / name) for name in (METRICS, TIMINGS))
            self.writers.open([(step, _flat(row, timings.get(step, {}))) for step, row in metrics.items()])

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        if self.writers is not None:
            self.writers.close(failed=error is not None)


def append_warning(path: Path, row: Mapping[str, Any]) -> None:
    """Add a line to the warnings of the run in the folder `path`. Raises UserError for a full disk."""
    with explain_full_disk(f"{path / WARNINGS}", "the last checkpoint is intact"):
        _append_line(path / WARNINGS, row)


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl or timings.jsonl; a last line cut by a kill is left out.

    Raises UserError, with file and line, where another line is not a row.
    """
    return [row for row, _ in _rows(Path(path))]


def _by_step(path: Path) -> dict[int, dict[str, Any]]:
    """The rows of a file by step; empty: there is none."""
    rows = read_metrics(path) if path.exists() else []
    return {row.pop("step"): row for row in rows}


def _flat(metrics: Metrics, timings: Mapping[str, float]) -> dict[str, float]:
    """The numbers of a step by tag."""
    return dict([*_tags("", metrics), *_tags("timings/", timings)])


def _tags(prefix: str, values: Metrics) -> Iterator[tuple[str, float]]:
    """(tag, number) pairs.   {"em": 0.5, "endings": {"answered": 3}}  ->  ("em", 0.5), ("endings/answered", 3)"""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _tags(f"{prefix}{key}/", value)
        elif value is not None:
            yield f"{prefix}{key}", value


def _append_line(path: Path, row: Mapping[str, Any]) -> None:
    line = memoryview((json.dumps(row) + "\n").encode())
    # unbuffered: after an error nothing is left that closing the file would try to write again
    with path.open("ab", buffering=0) as file:
        while line:
            line = line[file.write(line) :]
        os.fsync(file.fileno())


def _rows(path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
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


def _keep_until(path: Path, step: int) -> int:
    if not path.exists():
        return 0
    rows = list(_rows(path))
    kept = [line + b"\n" for row, line in rows if row["step"] <= step]
    with explain_full_disk(f"{path}", "it is as it was"):
        write_file(path, b"".join(kept))
    return len(rows) - len(kept)
