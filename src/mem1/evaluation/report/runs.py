"""What a report is made of: runs, each with its rows, its learning curve and its trajectories.

attempts of policy "trained" under `constant` at tasks of 2 questions  ->  Attempts("trained", "constant", 2, (...))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mem1.evaluation.intervals import mean_interval
from mem1.evaluation.metrics import peak_tokens, summarize
from mem1.evaluation.report.columns import PEAK, Record
from mem1.evaluation.report.pieces import Decode
from mem1.records import Trajectory


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
