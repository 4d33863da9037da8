"""Runs that are trained and evaluated once, however often the command is interrupted, and the cells of their tables.

own-seed0.json   {"settings": ..., "steps": 62, ..., "commit": ..., "hardware": ...}                      trained
                 {..., "em": [[1.0, 0.0], ...], "questions": [[0, 1], ...], "tasks": "5f1c09..."}         evaluated
own-seed0        the trained policy
cell(...)        0.744 [0.526, 0.887]
minus(...)       +0.002 [-0.302, +0.305]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from machine import commit, hardware
from run_files import read_run, run_names

from mem1.durable import write_file
from mem1.evaluation.intervals import difference_interval, seeds_interval
from mem1.evaluation.metrics import em_by_question
from mem1.records import Trajectory
from mem1.tasks.compose import question_keys

STEPS = 100_000
"""Steps of RL, more than any run makes."""
Records = dict[str, list[dict[str, Any]]]
"""Finished runs by row, in the order of the rows."""


def parser(described: str | None, *, out: str) -> argparse.ArgumentParser:
    """The options that all such benchmarks have; `out`: where the records go."""
    made = argparse.ArgumentParser(description=described, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("overrides", nargs="*", metavar="key=value", help="settings of the recipe")
    made.add_argument("--recipe", default="atlas-quick")
    made.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    made.add_argument("--out", type=Path, default=Path(out))
    made.add_argument("--print", type=Path, metavar="FOLDER", help="only print the table of the records in it")
    return made


@dataclass(frozen=True)
class Run(ABC):
    """One row and seed of a table."""

    row: str
    seed: int
    given: argparse.Namespace

    compared: ClassVar[tuple[str, ...]]
    """The options that a record must agree with to be used again."""

    @property
    def name(self) -> str:
        return f"{self.row}-seed{self.seed}"

    @property
    def policy_folder(self) -> Path:
        return self.given.out / self.name

    @abstractmethod
    def train(self) -> dict[str, Any]:
        """Train, save the policy, and return what the record says of it."""

    @abstractmethod
    def evaluate(self) -> dict[str, Any]:
        """What the record says of the trained policy: `em`, `questions` and `tasks`, as in `scores`."""

    def finish(self) -> None:
        """Train and evaluate, as far as this has not been done."""
        path, done = self.given.out / f"{self.name}.json", dict[str, Any]()
        settings = {name: getattr(self.given, name) for name in self.compared}
        if (known := read_run(path)) is not None:
            done = dict(known)
            if done["settings"] != settings:
                raise SystemExit(f"{path} was made with other settings: {done['settings']}; give another --out")
            if "em" in done:
                return
        if not done:
            done = {"settings": settings, **self.train(), "commit": commit(), "hardware": hardware()}
            write_file(path, json.dumps(done).encode())
        write_file(path, json.dumps({**done, **self.evaluate()}).encode())


def finish(
    runs: Sequence[Run], given: argparse.Namespace, table: Callable[[Records], str], rows: Sequence[str]
) -> None:
    """Finish the runs and print the table of all records in `--out`; with `--print`, only print that of its folder."""
    if given.print is not None:
        print(table(read_records(given.print, rows)))
        return
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    for run in runs:
        run.finish()
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}\n")
    print(table(read_records(given.out, rows)))


def scores(attempts: Mapping[str, Sequence[Trajectory]]) -> dict[str, Any]:
    """Exact match by key, task and question; which questions are the same, and a digest of the tasks."""
    numbers: dict[str, int] = {}
    questions: dict[str, list[list[int]]] = {}
    digest = hashlib.blake2b(digest_size=8)
    for key, these in attempts.items():
        keys = [question_keys(attempt.task) for attempt in these if attempt.task is not None]
        questions[key] = [[numbers.setdefault(question, len(numbers)) for question in task] for task in keys]
        digest.update(repr(keys).encode())
    em = {key: [em_by_question(attempt) for attempt in these] for key, these in attempts.items()}
    return {"em": em, "questions": questions, "tasks": digest.hexdigest()}


def read_records(folder: Path, rows: Sequence[str]) -> Records:
    """The finished runs of a folder. Raises SystemExit if there are none, or runs on different tasks."""
    found: Records = {}
    for row in rows:
        for name in run_names(folder):
            record = dict(read_run(folder / f"{name}.json") or {}) if name.startswith(f"{row}-seed") else {}
            if "em" in record:
                found.setdefault(row, []).append(record)
    if not found:
        raise SystemExit(f"{folder} has no finished run")
    if len({record["tasks"] for runs in found.values() for record in runs}) > 1:
        raise SystemExit(f"the runs in {folder} attempted different tasks")
    return found


EM = Sequence[Sequence[float]]
"""Exact match of a run by task and question."""


def cell(runs: Sequence[EM], questions: Sequence[Sequence[int]]) -> str:
    """The mean over runs with its 95 % interval over seeds and tasks; over tasks, for one run."""
    low, high = seeds_interval(runs, questions=questions)
    return f"{np.mean(runs):.3f} [{low:.3f}, {high:.3f}]"


def minus(ours: Sequence[EM], theirs: Sequence[EM], questions: Sequence[Sequence[int]]) -> str:
    """The difference of two means with its 95 % interval over seeds and tasks."""
    low, high = difference_interval(ours, theirs, questions=questions)
    return f"{np.mean(ours) - np.mean(theirs):+.3f} [{low:+.3f}, {high:+.3f}]"
