"""The numbers of each step, as lines of JSON and as TensorBoard curves.

    with MetricsLog(run.path) as log:
        log.append(1, {"reward": 0.25, "endings": {"answered": 3, "bad_tags": 1}}, timings={"rollout": 1.4})

    metrics.jsonl   {"step": 1, "reward": 0.25, "endings": {"answered": 3, "bad_tags": 1}}
    timings.jsonl   {"step": 1, "rollout": 1.4}
    tensorboard/    tags reward, endings/answered, endings/bad_tags, seconds/rollout

metrics.jsonl holds only numbers that a second run with the same seed repeats, so that two files can be
compared; seconds go to timings.jsonl.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mem1.errors import UserError
from mem1.training.files import explain_full_disk, write_atomically

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

METRICS = "metrics.jsonl"
TIMINGS = "timings.jsonl"


class MetricsLog:
    """Appends to the three records of a run's folder; each line is on the disk when `append` returns."""

    def __init__(self, path: str | Path, *, tensorboard: bool = True) -> None:
        """`path` is the run's folder."""
        self.path = Path(path)
        self.tensorboard = tensorboard
        self._writer: SummaryWriter | None = None

    def append(
        self,
        step: int,
        metrics: Mapping[str, float | Mapping[str, float] | None],
        *,
        timings: Mapping[str, float] | None = None,
    ) -> None:
        """One line of numbers, keys in the order given.

        metrics     deterministic numbers, or counts by name; None: undefined at this step (null in the file)
        timings     seconds by what they were spent on

        Raises UserError where a number is not finite (the run has diverged) or the disk is full, ValueError
        where a key is called "step".
        """
        flat = dict([*_tags("", metrics), *_tags("seconds/", timings or {})])
        for tag, value in flat.items():
            if not math.isfinite(value):
                raise UserError(
                    f"step {step}: {tag} is {value}, so the run has diverged; lower the learning rate and go on "
                    "from the last checkpoint, which is intact, in a new run"
                )
        with explain_full_disk(f"the metrics of step {step} in {self.path}", "the last checkpoint is intact"):
            _append_line(self.path / METRICS, _row(step, metrics))
            if timings:
                _append_line(self.path / TIMINGS, _row(step, timings))
            if self.tensorboard:
                self._plot(step, flat)

    def truncate_after(self, step: int) -> int:
        """On resume: drop the rows of steps beyond the checkpoint, and a cut last line; returns rows dropped.

        TensorBoard drops them itself once the next step is appended.
        """
        return sum(_keep_until(self.path / name, step) for name in (METRICS, TIMINGS))

    def close(self) -> None:
        if self._writer is not None:
            with explain_full_disk(f"TensorBoard's curves in {self.path}", "metrics.jsonl is intact"):
                self._writer.close()
            self._writer = None

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.close()

    def _plot(self, step: int, values: Mapping[str, float]) -> None:
        if self._writer is None:
            from torch.utils.tensorboard.writer import SummaryWriter

            # purge_step hides what a killed run had plotted from this step on
            self._writer = SummaryWriter(str(self.path / "tensorboard"), purge_step=step)
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl or timings.jsonl; a last line cut by a kill is left out.

    Raises UserError, with file and line, where another line is not a row.
    """
    return [row for row, _ in _rows(Path(path))]


def _tags(prefix: str, values: Mapping[str, float | Mapping[str, float] | None]) -> Iterator[tuple[str, float]]:
    """(tag, number) pairs.   {"em": 0.5, "endings": {"answered": 3}}  ->  ("em", 0.5), ("endings/answered", 3)"""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _tags(f"{prefix}{key}/", value)
        elif value is not None:
            yield f"{prefix}{key}", value


def _row(step: int, values: Mapping[str, Any]) -> dict[str, Any]:
    if "step" in values:
        raise ValueError('"step" is the row\'s own key; give the number another name')
    return {"step": step, **values}


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
        write_atomically(path, b"".join(kept))
    return len(rows) - len(kept)
