"""Numbers of a run, step by step, into its folder and to its writers; and some attempts of each step of [rl].

    with MetricsLog(run.path) as log:
        log.append(1, {"reward": 0.25, "endings": {"answered": 3, "bad_tags": 1}}, timings={"rollout": 1.4})

metrics.jsonl holds only numbers that a second run with the same seed repeats, so that two files can be compared;
seconds go to timings.jsonl. Attempts are for people and reports:

    runs/quick/trajectories/step-000012.jsonl       the first groups of step 12, in the format of every trajectory file
    runs/quick/trajectories/tokenizer.json          the tokenizer of their tokens

A file of attempts is there whole or not at all, so the folder can be read while the run goes on. Beyond the size limit
the oldest steps are removed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from mem1.durable import explain_full_disk, write_file
from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.recipe.recipe import Kept
from mem1.records import Group
from mem1.run_folder import METRICS, TIMINGS, TRAJECTORIES, WARNINGS, kept_steps, read_metrics, rows_of
from mem1.training.monitoring.writers import Writers
from mem1.trajectory_files import write_trajectories

Metrics = Mapping[str, "float | Metrics | None"]
"""Metrics of a step, by name; None: nothing to measure."""


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
        flat = self.check(step, metrics, timings or {})
        with explain_full_disk(f"the metrics of step {step} in {self.path}", "the last checkpoint is intact"):
            _append_line(self.path / METRICS, {"step": step, **metrics})
            if timings:
                _append_line(self.path / TIMINGS, {"step": step, **timings})
        if self.writers is not None:
            self.writers.write(step, flat)

    def check(self, step: int, metrics: Metrics, timings: Mapping[str, float]) -> dict[str, float]:
        """The numbers of a step by tag. Raises UserError where one is not finite."""
        flat = _flat(metrics, timings)
        for tag, value in flat.items():
            if not math.isfinite(value):
                raise UserError(
                    f"step {step}: {tag} is {value}, so the run has diverged; lower the learning rate and continue "
                    "from the last checkpoint, which is intact, in a new run"
                )
        return flat

    def digest(self, step: int) -> str:
        """BLAKE2 (hexadecimal) of the rows of metrics up to a step."""
        path = self.path / METRICS
        rows = [line for row, line in rows_of(path) if row["step"] <= step] if path.exists() else []
        return hashlib.blake2b(b"\n".join(rows), digest_size=16).hexdigest()

    def truncate_after(self, step: int) -> int:
        """On resume: drop the rows of steps beyond the checkpoint, and a cut last line; returns how many had a row."""
        dropped, *_ = [_keep_until(self.path / name, step) for name in (METRICS, TIMINGS, WARNINGS)]
        return dropped

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


def _keep_until(path: Path, step: int) -> int:
    if not path.exists():
        return 0
    rows = list(rows_of(path))
    kept = [line + b"\n" for row, line in rows if row["step"] <= step]
    with explain_full_disk(f"{path}", "it is as it was"):
        write_file(path, b"".join(kept))
    return len(rows) - len(kept)


@dataclass(frozen=True)
class KeptAttempts:
    """The attempts that stay in the folder of a run."""

    run: Path
    config: Kept
    codec: Codec

    def keep(self, step: int, groups: Sequence[Group]) -> None:
        """Write the first groups of a step. Raises UserError for a full disk."""
        chosen = [t for group in groups[: self.config.groups] for t in group.trajectories]
        if not chosen:
            return
        folder = self.run / TRAJECTORIES
        folder.mkdir(exist_ok=True)
        tokenizer = folder / "tokenizer.json"
        if not tokenizer.exists():
            with explain_full_disk(f"{tokenizer}", "the last checkpoint is intact"):
                write_file(tokenizer, self.codec.tokenizer.to_str().encode())
        write_trajectories(folder / f"step-{step:06d}.jsonl", chosen)
        files = [path for _, path in kept_steps(self.run)]
        sizes = {path: path.stat().st_size for path in files}
        while len(files) > 1 and sum(map(sizes.__getitem__, files)) > self.config.megabytes * 1e6:
            files.pop(0).unlink()

    def truncate_after(self, step: int) -> None:
        """On resume: remove the steps beyond the checkpoint, which come again."""
        for number, path in kept_steps(self.run):
            if number > step:
                path.unlink()
