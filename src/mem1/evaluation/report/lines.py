"""Rows of several runs as lines: one line a policy and context policy, each run of it, and the mean over its seeds.

    runs a and b differ in their seed alone, each with rows of "trained" at N = 1, 2
    ->  Line("trained", runs={"a": [row, row], "b": [row, row]}, mean=[row, row])

The interval of a mean is the lowest and the highest run: two or three seeds bear no bootstrap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mem1.evaluation.report.columns import Record

SUMMED = ("tasks", "endings")
"""Keys of counts: a mean row has their sum over the runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
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


def lines(rows: Sequence[Record]) -> list[Line]:
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
            Line(
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
