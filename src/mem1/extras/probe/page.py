"""One self-contained HTML page about a probe: the table, what became of each kind of fact, and retention over turns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from mem1.durable import write_file
from mem1.evaluation.report.page import content_policy, plotly, stylesheet
from mem1.extras.probe.probing import Probed, summary
from mem1.extras.probe.transcripts import KINDS, Verdict
from mem1.prices import PriceClass

_COLOURS = {
    Verdict.RETAINED: "#0f7f5c",
    Verdict.RECOVERABLE: "#2d6cc9",
    Verdict.MUTATED: "#8b4fb5",
    Verdict.STALE: "#c8901a",
    Verdict.LOST: "#b3392f",
}
_GREY = "#8a9099"
_DRAW = """
for (const figure of JSON.parse(document.getElementById("figures").textContent)) {
  const place = document.getElementById(figure.id);
  Plotly.newPlot(place, figure.data, figure.layout, {displayModeBar: false, responsive: true});
}
"""
_STYLE = (
    ".probe-figure { height: 20rem; } "
    ".probe-kinds { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 1rem; }"
)


def write_page(path: str | Path, found: Mapping[str, Sequence[Probed]], prices: PriceClass, *, writer: str) -> None:
    """Write the page. Raises UserError where the path cannot be written."""
    rows = [summary(name, runs, prices) for name, runs in found.items()]
    one = next(iter(found.values()))
    facts, transcripts = sum(len(run.outcomes) for run in one), len(one)
    figures = [_curve(rows), _trade(rows), *(_kinds(number, row) for number, row in enumerate(rows))]
    data = json.dumps(figures).replace("<", "\\u003c")
    library = plotly()
    kinds = "".join(f'<div class="probe-figure" id="kinds-{number}"></div>' for number in range(len(rows)))
    page = f"""<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(content_policy(library, _DRAW))}">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>What memories keep</title>
<style>{stylesheet()}{_STYLE}</style></head><body>
<p class="brand"><span>mem1 probe</span></p><h1>What memories keep</h1>
<p class="note">{facts} facts, transcripts: {transcripts}; states written by {escape(writer)}.
Tokens are means per transcript, at four characters each; cost is relative to appending, at the prices of
{escape(prices.name)}.</p>
<div class="scroll"><table class="results">{_table(rows)}</table></div>
<h2>Facts retained, by the turns that came after them</h2><div class="probe-figure" id="curve"></div>
<h2>Facts retained or recoverable, by the tokens of all prompts</h2><div class="probe-figure" id="trade"></div>
<h2>By kind of fact</h2><div class="probe-kinds">{kinds}</div>
<script type="application/json" id="figures">{data}</script><script>{library}</script><script>{_DRAW}</script>
</body></html>
"""
    write_file(Path(path), page.encode("utf-8"))


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    headings = [
        "memory",
        *map(str, Verdict),
        "peak tokens",
        "prompt tokens",
        "of these cached",
        "output tokens",
        "cost",
        "folds",
    ]
    head = "".join(f'<th class="{"name" if n == 0 else ""}">{escape(text)}</th>' for n, text in enumerate(headings))
    lines = []
    for row in rows:
        cells = [
            *(f"{100 * row[str(verdict)]:.0f} %" for verdict in Verdict),
            *(f"{row[key]:,.0f}" for key in ("peak", "prompt_tokens", "cached_tokens", "output_tokens")),
            f"{row['cost_ratio']:.2f}",
            f"{row['folds']:.0f}",
        ]
        values = "".join(f"<td>{cell}</td>" for cell in cells)
        lines.append(f'<tr><td class="name">{escape(row["memory"])}</td>{values}</tr>')
    return f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"


def _layout(x: str, y: str, **more: Any) -> dict[str, Any]:
    axis = {"gridcolor": "rgba(128,128,128,0.25)", "zerolinecolor": "rgba(128,128,128,0.4)"}
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": _GREY, "family": "system-ui, sans-serif"},
        "margin": {"l": 60, "r": 20, "t": 40, "b": 60},
        "xaxis": {"title": {"text": x}, **axis, **more.pop("xaxis", {})},
        "yaxis": {"title": {"text": y}, **axis, **more.pop("yaxis", {})},
        **more,
    }


def _curve(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    data = [
        {
            "name": row["memory"],
            "x": [point["age"] for point in row["by_age"]],
            "y": [point["retained"] for point in row["by_age"]],
            "mode": "lines+markers",
        }
        for row in rows
    ]
    layout = _layout("turns after the fact", "share retained", yaxis={"range": [-0.02, 1.02], "tickformat": ".0%"})
    return {"id": "curve", "data": data, "layout": layout}


def _trade(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    kept = [row["retained"] + row["recoverable"] for row in rows]
    data = [
        {
            "x": [row["prompt_tokens"] for row in rows],
            "y": kept,
            "text": [row["memory"] for row in rows],
            "mode": "markers+text",
            "textposition": "top center",
            "marker": {"size": 10, "color": "#0f7f5c"},
        }
    ]
    layout = _layout(
        "prompt tokens per transcript",
        "retained or recoverable",
        xaxis={"type": "log"},
        yaxis={"range": [0, 1.12], "tickformat": ".0%"},
    )
    return {"id": "trade", "data": data, "layout": layout}


def _kinds(number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": str(verdict),
            "y": KINDS,
            "x": [row["by_kind"][kind][str(verdict)] for kind in KINDS],
            "marker": {"color": _COLOURS[verdict]},
            "showlegend": number == 0,
        }
        for verdict in Verdict
    ]
    layout = _layout(
        "",
        "",
        barmode="stack",
        title={"text": row["memory"]},
        xaxis={"range": [0, 1], "tickformat": ".0%"},
        yaxis={"autorange": "reversed", "automargin": True},
        legend={"orientation": "h", "y": -0.15},
    )
    return {"id": f"kinds-{number}", "data": data, "layout": layout}
