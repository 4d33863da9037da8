"""The rows of a report: which numbers are shown, where they come from, and how runs are averaged.

    EM.cell({"em": 0.4, "em_low": 0.31, "em_high": 0.52})   ->  "0.40 [0.31, 0.52]"

    runs a and b differ in their seed only, each with rows of "trained" at N = 1, 2
    ->  Series("trained", runs={"a": [row, row], "b": [row, row]}, mean=[row, row])

The interval of a mean over runs is its lowest and highest run: two or three seeds are too few for a bootstrap. A
column without a value in any row is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mem1.evaluation.intervals import mean_interval
from mem1.evaluation.metrics import peak_tokens, summarize
from mem1.evaluation.report.token_attribution import Decode
from mem1.records import Trajectory

Record = Mapping[str, Any]
"""`Row.as_dict()`, of several runs with "run" as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One number of a row."""

    key: str
    """Key of the row; with an interval the row has `<key>_low` and `<key>_high` too."""
    heading: str
    meaning: str
    """A phrase for the reader, unit included."""
    digits: int = 0
    """Digits after the point."""

    def value(self, row: Record) -> str:
        """The number alone; empty where the row has none."""
        value = row.get(self.key)
        return "" if value is None else self._number(value)

    def interval(self, row: Record) -> str:
        """ "[low, high]"; empty where the row has no interval."""
        low, high = row.get(f"{self.key}_low"), row.get(f"{self.key}_high")
        return "" if low is None or high is None else f"[{self._number(low)}, {self._number(high)}]"

    def cell(self, row: Record) -> str:
        """The number with its interval."""
        return f"{self.value(row)} {self.interval(row)}".strip()

    def _number(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"


N = Column(key="objectives", heading="N", meaning="questions in one task")
EM = Column(key="em", heading="EM per objective", meaning="exact match, mean over tasks [95 % interval]", digits=2)
PEAK = Column(key="peak_tokens", heading="peak tokens", meaning="largest context and completion of a task's turns")

MAIN = (
    N,
    Column(key="tasks", heading="tasks", meaning="attempts behind the row"),
    EM,
    Column(key="f1", heading="F1", meaning="token F1 per objective", digits=2),
    Column(key="turns", heading="turns", meaning="calls of the policy per task", digits=1),
    PEAK,
    Column(key="peak_tokens_without_prompt", heading="without prompt", meaning="peak tokens without the prompt"),
    Column(key="appended_peak_tokens", heading="if appended", meaning="peak of the same turns if nothing were dropped"),
)
"""The columns of every table."""

FURTHER = (
    N,
    Column(key="reward", heading="reward", meaning="mean reward, in the environment's unit", digits=2),
    Column(key="total_tokens", heading="total tokens", meaning="context and completion summed over a task's turns"),
    Column(key="dependency", heading="dependency", meaning="(generated, visible) token pairs per task"),
    Column(key="state_tokens", heading="state tokens", meaning="mean length of a written state, tags included"),
    Column(key="searches", heading="searches", meaning="searches per task", digits=1),
    Column(key="duplicate_searches", heading="again", meaning="searches per task sent before in it", digits=2),
    Column(key="malformed", heading="malformed", meaning="share of turns that could not be parsed", digits=3),
)
"""The columns of the page's second table: cost and behaviour."""


def shown(columns: Sequence[Column], rows: Sequence[Record]) -> list[Column]:
    """The columns for which some row has a value."""
    return [column for column in columns if any(row.get(column.key) is not None for row in rows)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """One policy under one context policy at the tasks of one size."""

    policy: str
    context: str
    objectives: int
    trajectories: Sequence[Trajectory]
    """In the order of the tasks, which is the same for every policy of an evaluation; not empty."""

    def row(self) -> dict[str, Any]:
        """`Row.as_dict()`, with the 95 % interval of the peak over tasks, where there are several."""
        row = summarize(
            self.trajectories, policy=self.policy, context=self.context, objectives=self.objectives
        ).as_dict()
        if row["tasks"] == 1:
            return row
        low, high = mean_interval([float(peak_tokens(t)) for t in self.trajectories], within=None)
        return {f"{PEAK.key}_low": low, f"{PEAK.key}_high": high, **row}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training or evaluation."""

    name: str
    """Unlike that of any other run of the report."""
    family: str
    """Runs of one family differ in their seed alone; their lines are averaged."""
    facts: Mapping[str, str]
    """How the run came about: names and values."""
    curve: Sequence[Record]
    """The lines of metrics.jsonl of its reinforcement learning; empty: it had none."""
    attempts: Sequence[Attempts]
    decode: Decode
    """Token ids of this run to text."""


def rows_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row a run, policy and N; of several runs each names its run and family."""
    several = len(runs) > 1
    return [
        {**({"run": run.name, "family": run.family} if several else {}), **attempts.row()}
        for run in runs
        for attempts in run.attempts
    ]


SUMMED = ("tasks", "endings")
"""Keys of counts: a mean row has their sum over the runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One policy under one context policy, in every run that has it."""

    name: str
    policy: str
    context: str
    runs: Mapping[str, Sequence[Record]]
    """Name of the run -> its rows, by rising N."""
    mean: Sequence[Record]
    """One row for each N that more than one run has; empty for a single run."""

    @property
    def best(self) -> Sequence[Record]:
        """The mean where there is one, else the rows of the one run."""
        return self.mean or next(iter(self.runs.values()))


def series(rows: Sequence[Record]) -> list[Series]:
    """The lines in the order in which their first rows come.

    Rows of several runs carry "run", the run's name, and "family": only runs of one family differ in their seed
    alone and are averaged.
    """
    contexts = {row["context"] for row in rows}
    families = {row.get("family", "") for row in rows}
    grouped: dict[tuple[str, str, str], dict[str, list[Record]]] = {}
    for row in rows:
        key = (row["policy"], row["context"], row.get("family", ""))
        grouped.setdefault(key, {}).setdefault(row.get("run", ""), []).append(row)
    found = []
    for (policy, context, family), runs in grouped.items():
        parts = (policy, context if len(contexts) > 1 else "", family if len(families) > 1 else "")
        ordered = {run: sorted(of, key=lambda row: row["objectives"]) for run, of in runs.items()}
        found.append(
            Series(
                name=", ".join(filter(None, parts)),
                policy=policy,
                context=context,
                runs=ordered,
                mean=_means(list(ordered.values())),
            )
        )
    return found


def _means(runs: Sequence[Sequence[Record]]) -> list[dict[str, Any]]:
    by_n: dict[int, list[Record]] = {}
    for row in (row for rows in runs for row in rows):
        by_n.setdefault(row["objectives"], []).append(row)
    return [_mean(by_n[n]) for n in sorted(by_n) if len(by_n[n]) > 1]


def _mean(rows: Sequence[Record]) -> dict[str, Any]:
    """Numbers averaged, counts summed, `<key>_low` and `<key>_high` the lowest and the highest of `<key>`."""
    first = rows[0]
    mean = {key: _combined(key, [row[key] for row in rows if row.get(key) is not None]) for key in first}
    for key in first:
        base, _, end = key.rpartition("_")
        if end in ("low", "high") and base in first:
            mean[key] = (min if end == "low" else max)(row[base] for row in rows)
    return {**mean, "objectives": first["objectives"], "run": f"mean of {len(rows)} runs"}


def _combined(key: str, values: Sequence[Any]) -> Any:
    if not values or isinstance(values[0], str):
        return values[0] if values else None
    if isinstance(values[0], Mapping):
        keys = dict.fromkeys(name for value in values for name in value)
        return {name: _combined(key, [value[name] for value in values if name in value]) for name in keys}
    if isinstance(values[0], Sequence):  # by turn; as many turns as every run has
        return [_combined(key, [v for v in at if v is not None]) for at in zip(*values, strict=False)]
    return sum(values) if key in SUMMED else sum(values) / len(values)
