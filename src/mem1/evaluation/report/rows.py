"""The rows of a report: which numbers are shown, where they come from, and how runs are averaged.

    EM.cell(row)   ->  "0.40 [0.31, 0.52]"

    runs a and b differ in their seed only, each with rows of "trained" at N = 1, 2
    ->  Series("trained", runs={"a": [row, row], "b": [row, row]}, mean=[row, row])

The interval of a mean over runs is its lowest and highest run: two or three seeds are too few for a bootstrap. A
column without a value in any row is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from mem1.evaluation.intervals import mean_interval
from mem1.evaluation.metrics import Row, summarize
from mem1.evaluation.report.token_attribution import Decode
from mem1.evaluation.store import read_made_by, read_row
from mem1.evaluation.tokens import peak_tokens
from mem1.records import Trajectory
from mem1.run_folder import kept_steps
from mem1.trajectory_files import read_trajectories


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow(Row):
    """A row of an evaluation, with the run it belongs to."""

    run: str = ""
    """Name of the run; empty where the report has only one."""
    family: str = ""
    """Runs of one family differ only in their seed and are averaged."""
    peak_tokens_low: float | None = None
    """Lower end of the 95 % interval of `peak_tokens` over tasks; None: a single task."""
    peak_tokens_high: float | None = None
    """Upper end of the same interval."""

    @property
    def judge_correct(self) -> float | None:
        """Share of the judged answers that the judge accepts; None: no judge, or no verdict."""
        return None if self.judge is None else self.judge.correct

    @classmethod
    def of(cls, row: Row, **more: Any) -> ReportRow:
        """The row with further fields."""
        return cls(**{field.name: getattr(row, field.name) for field in fields(Row)}, **more)


Ends = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Column:
    """One number of a row."""

    heading: str
    meaning: str
    """A phrase for the reader, unit included."""
    value: Callable[[ReportRow], float | None]
    """The number; None: the row has none."""
    format: str = ",.0f"
    ends: Callable[[ReportRow], Ends] = lambda row: (None, None)
    """Both ends of its interval."""

    def cell(self, row: ReportRow) -> str:
        """The number with its interval, "0.40 [0.31, 0.52]"; empty if the row has none."""
        value, (low, high) = self.value(row), self.ends(row)
        if value is None:
            return ""
        ends = "" if low is None or high is None else f" [{low:{self.format}}, {high:{self.format}}]"
        return f"{value:{self.format}}{ends}"


N = Column("N", "questions in one task", lambda row: row.objectives)
EM = Column(
    "EM per objective",
    "exact match, mean over tasks [95 % interval]",
    lambda row: row.em,
    ".2f",
    lambda row: (row.em_low, row.em_high),
)
PEAK = Column(
    "peak tokens",
    "largest context and completion of a task's turns",
    lambda row: row.peak_tokens,
    ends=lambda row: (row.peak_tokens_low, row.peak_tokens_high),
)

REWARD = Column("reward", "mean reward, in the environment's unit", lambda row: row.reward, ".2f")

MAIN = (
    N,
    Column("tasks", "attempts in the row", lambda row: row.tasks),
    EM,
    Column("F1", "token F1 per objective", lambda row: row.f1, ".2f"),
    Column("turns", "calls of the policy per task", lambda row: row.turns, ".1f"),
    PEAK,
    Column("without prompt", "peak tokens without the prompt", lambda row: row.peak_tokens_without_prompt),
    Column("if appended", "peak of the same turns if nothing had been dropped", lambda row: row.appended_peak_tokens),
)
"""The columns of every table."""

FURTHER = (
    N,
    REWARD,
    Column("judge", "share of the judged answers that the judge accepts", lambda row: row.judge_correct, ".2f"),
    Column("total tokens", "context and completion, summed over a task's turns", lambda row: row.total_tokens),
    Column("FLOPs", "forward FLOPs per task", lambda row: row.flops, ".3g"),
    Column("FLOPs cached", "forward FLOPs per task with a prefix cache", lambda row: row.flops_cached, ".3g"),
    Column("dependency", "(generated, visible) token pairs per task", lambda row: row.dependency),
    Column("state tokens", "mean length of a written state, tags included", lambda row: row.state_tokens),
    Column("searches", "searches per task", lambda row: row.searches, ".1f"),
    Column("repeated", "searches per task that repeat an earlier one", lambda row: row.duplicate_searches, ".2f"),
    Column("malformed", "share of turns that could not be parsed", lambda row: row.malformed, ".3f"),
)
"""The columns of the second table: cost and behaviour."""


def main_columns(rows: Sequence[ReportRow]) -> list[Column]:
    """The columns of every table, with the domain's own metrics after F1."""
    return [*MAIN[:4], *own_metrics(rows), *MAIN[4:]]


def own_metrics(rows: Sequence[ReportRow]) -> list[Column]:
    """A column for each metric of the domain besides EM and F1."""
    names = dict.fromkeys(name for row in rows for name in row.metrics)
    ends = {f"{name}_{end}" for name in names for end in ("low", "high")}
    return [_own_metric(name) for name in names if name not in ends]


def _own_metric(name: str) -> Column:
    return Column(
        name,
        "mean over tasks [95 % interval]",
        lambda row: row.metrics.get(name),
        ".2f",
        lambda row: (row.metrics.get(f"{name}_low"), row.metrics.get(f"{name}_high")),
    )


def score(rows: Sequence[ReportRow]) -> Column:
    """What tells best how good the policies are: exact match, else the domain's first metric, else the reward."""
    return EM if any(row.em is not None for row in rows) else next(iter(own_metrics(rows)), REWARD)


def shown(columns: Sequence[Column], rows: Sequence[ReportRow]) -> list[Column]:
    """The columns for which some row has a value."""
    return [column for column in columns if any(column.value(row) is not None for row in rows)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """One policy under one memory at the tasks of one size."""

    row: Row
    trajectories: Sequence[Trajectory]
    """In the order of the tasks, which is the same for every policy of an evaluation; not empty."""
    decode: Decode | None = None
    """Token ids of this policy to text; None: as the run's."""

    @classmethod
    def read(cls, path: Path, *, policy: str, objectives: int) -> Attempts | None:
        """The trajectories of a file and their row, as the evaluation wrote it; None: the file is empty.

        Where there is no row, because the evaluation was interrupted, the trajectories are summarised, of a task that
        was tried again the last one.
        """
        read, row = read_trajectories(path, drop_cut_line=True), read_row(path)
        trajectories = list({t.task.id if t.task else place: t for place, t in enumerate(read)}.values())
        if not trajectories:
            return None
        if row is None or row.tasks != len(trajectories):
            row = summarize(trajectories, policy=policy, context=trajectories[0].context, objectives=objectives)
        return cls(row=row, trajectories=trajectories)

    def report_row(self, **names: str) -> ReportRow:
        """The row with the 95 % interval of the peak."""
        low = high = None
        if len(self.trajectories) > 1:
            low, high = mean_interval([float(peak_tokens(t)) for t in self.trajectories], within=None)
        return ReportRow.of(self.row, peak_tokens_low=low, peak_tokens_high=high, **names)


def read_evaluations(folder: Path) -> list[Attempts]:
    """Everything that evaluations wrote to a folder: the untouched or base model first, "trained" last, the others as
    they were evaluated; by rising N."""
    named = [(match, path) for path in folder.glob("*.jsonl") if (match := re.fullmatch(r"(.+)-(\d+)", path.stem))]
    rank = {"untouched": 0, "base": 0, "trained": 2}
    made = {policy: place for place, policy in enumerate(read_made_by(folder))}
    found = sorted(
        (rank.get(match[1], 1), made.get(match[1], len(made)), match[1], int(match[2]), path) for match, path in named
    )
    read = [Attempts.read(path, policy=policy, objectives=n) for _, _, policy, n, path in found]
    return [attempts for attempts in read if attempts is not None]


STEPS_SHOWN = 10
"""Newest training steps whose attempts a report shows."""


def read_kept(training: Path) -> list[Attempts]:
    """The attempts of the newest training steps that the run has kept, by step and size."""
    found = []
    for step, path in kept_steps(training)[-STEPS_SHOWN:]:
        by_size: dict[int, list[Trajectory]] = {}
        for attempt in read_trajectories(path, drop_cut_line=True):
            by_size.setdefault(attempt.task.objectives if attempt.task is not None else 0, []).append(attempt)
        for n, attempts in sorted(by_size.items()):
            row = summarize(attempts, policy=f"training step {step}", context=attempts[0].context, objectives=n)
            found.append(Attempts(row=row, trajectories=attempts))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training or evaluation."""

    name: str
    """Different from that of any other run in the report."""
    family: str
    """Runs of one family differ only in their seed; their series are averaged."""
    facts: Mapping[str, str]
    """How the run was made: names and values."""
    curve: Sequence[Mapping[str, Any]]
    """Lines of metrics.jsonl of its reinforcement learning; empty: it had none."""
    attempts: Sequence[Attempts]
    warnings: Sequence[str] = ()
    """What `mem1 train` warned of, in words."""
    kept: Sequence[Attempts] = ()
    """Attempts of the newest training steps, for the viewer alone."""
    decode: Decode
    """Token ids of this run to text."""


def rows_of(runs: Sequence[Run]) -> list[ReportRow]:
    """One row per run, policy and N; with several runs each names its run and family."""
    several = len(runs) > 1
    return [
        attempts.report_row(**({"run": run.name, "family": run.family} if several else {}))
        for run in runs
        for attempts in run.attempts
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One policy under one memory, in every run that has it."""

    name: str
    policy: str
    context: str
    runs: Mapping[str, Sequence[ReportRow]]
    """Name of the run -> its rows, by rising N."""
    mean: Sequence[ReportRow]
    """One row for each N that more than one run has; empty for a single run."""

    @property
    def best(self) -> Sequence[ReportRow]:
        """The mean if there is one, else the rows of the only run."""
        return self.mean or next(iter(self.runs.values()))


def series(rows: Sequence[ReportRow]) -> list[Series]:
    """The series in the order of their first rows; only runs of one family are averaged."""
    contexts = {row.context for row in rows}
    families = {row.family for row in rows}
    grouped: dict[tuple[str, str, str], dict[str, list[ReportRow]]] = {}
    for row in rows:
        grouped.setdefault((row.policy, row.context, row.family), {}).setdefault(row.run, []).append(row)
    found = []
    for (policy, context, family), runs in grouped.items():
        parts = (policy, context if len(contexts) > 1 else "", family if len(families) > 1 else "")
        ordered = {run: sorted(of_run, key=lambda row: row.objectives) for run, of_run in runs.items()}
        name, mean = ", ".join(filter(None, parts)), _means(list(ordered.values()))
        found.append(Series(name=name, policy=policy, context=context, runs=ordered, mean=mean))
    return found


def _means(runs: Sequence[Sequence[ReportRow]]) -> list[ReportRow]:
    by_n: dict[int, list[ReportRow]] = {}
    for row in (row for rows in runs for row in rows):
        by_n.setdefault(row.objectives, []).append(row)
    return [_mean_row(by_n[n]) for n in sorted(by_n) if len(by_n[n]) > 1]


def _mean_row(rows: Sequence[ReportRow]) -> ReportRow:
    """Numbers averaged, counts summed; intervals from the lowest to the highest run."""
    em, peaks = [row.em for row in rows if row.em is not None], [row.peak_tokens for row in rows]
    ends = {"em_low": min(em, default=None), "em_high": max(em, default=None)}
    if rows[0].peak_tokens_low is not None:
        ends |= {"peak_tokens_low": min(peaks), "peak_tokens_high": max(peaks)}
    means = {field.name: _combined(field.name, [getattr(row, field.name) for row in rows]) for field in fields(rows[0])}
    for name in [name for name in rows[0].metrics if f"{name}_low" in rows[0].metrics]:
        values = [row.metrics[name] for row in rows if name in row.metrics]
        means["metrics"] |= {f"{name}_low": min(values), f"{name}_high": max(values)}
    return ReportRow(**{**means, **ends, "objectives": rows[0].objectives, "run": f"mean of {len(rows)} runs"})


def _combined(name: str, values: Sequence[Any]) -> Any:
    values = [value for value in values if value is not None]
    if not values or isinstance(values[0], str):
        return values[0] if values else None
    if is_dataclass(values[0]):  # the judge's opinion
        names = [field.name for field in fields(values[0])]
        return type(values[0])(**{name: _combined(name, [getattr(value, name) for value in values]) for name in names})
    if isinstance(values[0], Mapping):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _combined(name, [value[key] for value in values if key in value]) for key in keys}
    if isinstance(values[0], Sequence):  # by turn; as many turns as every run has
        return tuple(_combined(name, at) for at in zip(*values, strict=False))
    return sum(values) if name in ("tasks", "endings", "failures") else sum(values) / len(values)
