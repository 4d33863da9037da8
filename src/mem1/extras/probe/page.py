"""The tables of a probe, and its page: recall over tokens, and by kind of transcript."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mem1.extras.probe.exam import MEASURES
from mem1.pages.page import SHARE_AXIS, Figure, Figures, Page, Section, line_style, plain
from mem1.pages.table import Table

Rows = Sequence[Mapping[str, Any]]
"""As `mem1.extras.probe.exam.rows` makes them."""
Columns = tuple[list[str], list[list[str | None]]]
"""(headings, rows of cells)."""

_MEANINGS = {
    "may keep": "tokens that the memory may keep, over those of the transcript",
    "recall": "facts whose exact form stands in what is kept",
    "middle": "the same after half of the cycles",
    "together": "groups of three facts that are kept whole",
    "answered": "facts that the reader fills in from what is kept",
    "recoverable": "facts that stand behind a handle alone",
    "stale": "of facts that changed, those of which only an earlier value is kept",
    "invented": "exact words in what is kept that stand nowhere in the transcript",
    "keeps": "tokens kept, over those of the transcript",
    "model": "tokens that the model has read and written, over those of the transcript",
    "ahead": "recall beyond that of recency on the same transcripts",
}


def columns(rows: Rows) -> Columns:
    """The table of all rows."""
    headings = ["memory", "may keep", "cycles", "recall", "95 %", *MEASURES[1:], "invented", "keeps", "model", "ahead"]
    return headings, [_cells(row) for row in rows]


def narrow_columns(rows: Rows) -> Columns:
    """Those that a terminal has room for; tokens and cycles where they differ."""
    headings, cells = columns(rows)
    wanted = ["memory", "recall", "95 %", "answered", "recoverable", "stale", "keeps"]
    wanted[1:1] = [name for name in ("may keep", "cycles") if len({line[headings.index(name)] for line in cells}) > 1]
    places = [headings.index(name) for name in wanted]
    return wanted, [[line[place] for place in places] for line in cells]


def _cells(row: Mapping[str, Any]) -> list[str | None]:
    ahead = None
    if "ahead" in row:
        ahead = f"{row['ahead']:+.2f} ({row['ahead_low']:+.2f}, {row['ahead_high']:+.2f})"
    return [
        row["memory"],
        f"{100 * row['share']:g} %",
        str(row["cycles"]),
        _share(row["recall"]),
        None if row["recall"] is None else f"{row['recall_low']:.2f} to {row['recall_high']:.2f}",
        *(_share(row[name]) for name in MEASURES[1:]),
        f"{row['invented']} of {row['exact']}",
        f"{100 * row['tokens']:.1f} %",
        f"{row['read']:.2f} + {row['written']:.2f}" if row["read"] else None,
        ahead,
    ]


def _share(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


def kind_columns(by_kind: Mapping[str, Rows]) -> Columns:
    """Recall by kind of transcript, a column each."""
    first = next(iter(by_kind.values()))
    cells: list[list[str | None]] = []
    for at, row in enumerate(first):
        recalls = [_share(rows[at]["recall"]) for rows in by_kind.values()]
        cells.append([row["memory"], f"{100 * row['share']:g} %", str(row["cycles"]), *recalls])
    return ["memory", "may keep", "cycles", *by_kind], cells


def probe_page(rows: Rows, by_kind: Mapping[str, Rows], *, writer: str | None) -> Page:
    """The page of these memories; `writer`: the model that wrote for some."""
    counts = f"{rows[0]['facts']:,} facts in {rows[0]['transcripts']} transcripts"
    counts += f"; summaries and notes by {writer}." if writer else "; no model wrote."
    sections = [Section("At equally many tokens", [_table(columns(rows)), counts])]
    figures = [_curve(rows, cycles) for cycles in dict.fromkeys(row["cycles"] for row in rows)]
    if len({row["share"] for row in rows}) > 1:
        sections.append(Section("Over tokens", [Figures(figures)]))
    if len(by_kind) > 1:
        sections.append(Section("By kind of transcript", [_table(kind_columns(by_kind)), Figures([_bars(by_kind)])]))
    return Page(kind="probe", title="What memories keep", sections=sections)


def _table(columns: Columns) -> Table:
    headings, cells = columns
    return Table(headings=headings, rows=cells, meanings=_MEANINGS)


def _curve(rows: Rows, cycles: int) -> Figure:
    shown = [row for row in rows if row["cycles"] == cycles]
    data = []
    for number, name in enumerate(dict.fromkeys(row["memory"] for row in shown)):
        points = sorted((row["tokens"], row["recall"]) for row in shown if row["memory"] == name)
        x, y = zip(*points, strict=True)
        data.append({**line_style(number), "name": plain(name), "x": x, "y": y})
    axes = {"xaxis": {"title": {"text": "tokens kept"}, "tickformat": ".0%"}, "yaxis": SHARE_AXIS}
    return {"title": f"recall, cycles: {cycles}", "data": data, "layout": axes}


def _bars(by_kind: Mapping[str, Rows]) -> Figure:
    first = next(iter(by_kind.values()))
    chosen = [
        at for at, row in enumerate(first) if (row["share"], row["cycles"]) == (first[0]["share"], first[0]["cycles"])
    ]
    names = [plain(first[at]["memory"]) for at in chosen]
    data = [
        {**line_style(number), "type": "bar", "name": kind, "x": names, "y": [rows[at]["recall"] for at in chosen]}
        for number, (kind, rows) in enumerate(by_kind.items())
    ]
    return {"title": "recall", "data": data, "layout": {"barmode": "group", "yaxis": SHARE_AXIS}}
