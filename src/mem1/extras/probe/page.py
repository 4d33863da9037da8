"""The page of a probe: the table, facts retained over turns and over tokens, and what became of each kind of fact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mem1.extras.probe.probing import Probed, summary
from mem1.extras.probe.transcripts import KINDS, Verdict
from mem1.pages.page import SHARE_AXIS, Figure, Figures, Page, Section, line_style, plain
from mem1.pages.table import Table
from mem1.prices import PriceClass

_COLOURS = {
    Verdict.RETAINED: "--line-0",
    Verdict.RECOVERABLE: "--line-1",
    Verdict.MUTATED: "--line-3",
    Verdict.STALE: "--line-5",
    Verdict.LOST: "--bad",
}
_SHARE = {**SHARE_AXIS, "tickformat": ".0%"}


def probe_page(found: Mapping[str, Sequence[Probed]], prices: PriceClass, *, writer: str) -> Page:
    """The page of these memories; `writer` wrote their states."""
    rows = [summary(name, runs, prices) for name, runs in found.items()]
    one = next(iter(found.values()))
    facts = sum(len(run.outcomes) for run in one)
    counts = (
        f"{facts} facts, transcripts: {len(one)}; states written by {writer}. Tokens are means per transcript, at four "
        f"characters each; cost is relative to appending, at the prices of {prices.name}."
    )
    return Page(
        kind="probe",
        title="What memories keep",
        sections=[
            Section("Facts and tokens", [_table(rows), counts]),
            Section("Over turns and tokens", [Figures([_curve(rows), _trade(rows)])]),
            Section("By kind of fact", [Figures([_kinds(row) for row in rows])]),
        ],
    )


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    tokens = {
        "peak tokens": "peak",
        "prompt tokens": "prompt_tokens",
        "of these cached": "cached_tokens",
        "output tokens": "output_tokens",
    }
    return Table(
        headings=["memory", *map(str, Verdict), *tokens, "cost", "folds"],
        rows=[
            [
                row["memory"],
                *(f"{100 * row[str(verdict)]:.0f} %" for verdict in Verdict),
                *(f"{row[key]:,.0f}" for key in tokens.values()),
                f"{row['cost_ratio']:.2f}",
                f"{row['folds']:.0f}",
            ]
            for row in rows
        ],
    )


def _curve(rows: Sequence[Mapping[str, Any]]) -> Figure:
    data = [
        {
            **line_style(number),
            "name": plain(row["memory"]),
            "x": [point["age"] for point in row["by_age"]],
            "y": [point["retained"] for point in row["by_age"]],
        }
        for number, row in enumerate(rows)
    ]
    axes = {"xaxis": {"title": {"text": "turns after the fact"}}, "yaxis": _SHARE}
    return {"title": "facts retained, by the turns that came after them", "data": data, "layout": axes}


def _trade(rows: Sequence[Mapping[str, Any]]) -> Figure:
    data = [
        {
            **line_style(number),
            "mode": "markers",
            "name": plain(row["memory"]),
            "x": [row["prompt_tokens"]],
            "y": [row["retained"] + row["recoverable"]],
        }
        for number, row in enumerate(rows)
    ]
    axes = {"xaxis": {"type": "log", "title": {"text": "prompt tokens per transcript"}}, "yaxis": _SHARE}
    return {"title": "facts retained or recoverable, by the tokens of all prompts", "data": data, "layout": axes}


def _kinds(row: Mapping[str, Any]) -> Figure:
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": str(verdict),
            "y": KINDS,
            "x": [row["by_kind"][kind][str(verdict)] for kind in KINDS],
            "marker": {"color": _COLOURS[verdict]},
        }
        for verdict in Verdict
    ]
    axes = {"xaxis": {"range": [0, 1], "tickformat": ".0%"}, "yaxis": {"autorange": "reversed", "automargin": True}}
    return {"title": row["memory"], "data": data, "layout": {"barmode": "stack", **axes}}
