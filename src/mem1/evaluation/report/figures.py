"""The figures of a report, and the picture of the README; all in one style, drawn without a display.

    em_figure(rows)      exact match over N, one line a policy, with 95 % intervals
    peak_figure(rows)    peak tokens over N, one line a policy, dashed: the same turns if appended
    curve_figure(curve, "reward", "reward per task")

Each returns one <svg> element for an HTML page. Backgrounds are transparent, and every colour is readable on white
and on near-black; in a page the CSS variable of the same name overrules it. `rows` are `Row.as_dict()`, `curve` the
lines of metrics.jsonl.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, ScalarFormatter

from mem1.evaluation.report.table import names

Record = Mapping[str, Any]

INK, GRID = "#767d86", "#8a919a"
BASE, TRAINED, APPENDED = "#8b8f97", "#1a936f", "#d9742b"
OTHERS = ("#4d7fd1", "#9a67c9", "#c2527a", "#8f8a1e")
VARIABLES = {INK: "ink", GRID: "grid", BASE: "base", TRAINED: "trained", APPENDED: "appended"}
"""Colours that a page overrules, by the name of its CSS variable (--figure-<name>)."""

SMOOTHED_STEPS = 10
"""Steps in the trailing mean drawn over a learning curve."""

_SIZE = (4.4, 2.9)
_STYLE: dict[Any, Any] = {
    "axes.edgecolor": GRID,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.size": 9,
    "grid.alpha": 0.22,
    "grid.color": GRID,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 2,
    "savefig.facecolor": "none",
    "svg.hashsalt": "mem1",
    "text.color": INK,
    "xtick.color": INK,
    "xtick.major.size": 3,
    "ytick.color": INK,
    "ytick.major.size": 0,
}


def em_figure(rows: Sequence[Record]) -> str:
    """Exact match per objective over N, with the interval as a band."""
    with rc_context({**_STYLE, "svg.fonttype": "none"}):
        figure, axes = _new()
        _draw_em(axes, rows)
        return _inline_svg(figure, "em")


def peak_figure(rows: Sequence[Record], *, prompt: bool = True) -> str:
    """Peak tokens over N of every policy, and of the last policy's turns if they had been appended."""
    with rc_context({**_STYLE, "svg.fonttype": "none"}):
        figure, axes = _new()
        _draw_peak(axes, rows, prompt=prompt)
        return _inline_svg(figure, "peak" if prompt else "peak-without-prompt")


def curve_figure(curve: Sequence[Record], key: str, label: str) -> str:
    """One number of metrics.jsonl over optimiser steps; steps that did not record it are left out."""
    points = [(row["step"], row[key]) for row in curve if row.get(key) is not None]
    steps, values = [x for x, _ in points], [y for _, y in points]
    with rc_context({**_STYLE, "svg.fonttype": "none"}):
        figure, axes = _new()
        many = len(values) > 2 * SMOOTHED_STEPS
        axes.plot(steps, values, color=TRAINED, alpha=0.35 if many else 1, linewidth=1.2 if many else 2)
        if many:
            axes.plot(steps, _trailing_mean(values), color=TRAINED, label=f"mean of the last {SMOOTHED_STEPS} steps")
            axes.legend(loc="best", fontsize=8)
        axes.set_ylim(bottom=min([0.0, *values]))
        axes.set_title(label)
        axes.set_xlabel("optimiser step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        return _inline_svg(figure, f"curve-{key}")


def readme_figure(rows: Sequence[Record], path: str | Path) -> tuple[Path, Path]:
    """Write the picture of the README, `path` with the endings .svg and .png, and return both paths.

    Left: exact match over N before and after training; right: peak tokens over N, constant against appended.
    """
    path = Path(path)
    with rc_context({**_STYLE, "svg.fonttype": "path"}):
        figure = Figure(figsize=(2 * _SIZE[0], _SIZE[1] + 0.2))
        left, right = figure.subplots(1, 2)
        _draw_em(left, rows)
        _draw_peak(right, rows, prompt=True)
        figure.set_layout_engine("constrained", wspace=0.08)
        targets = path.with_suffix(".svg"), path.with_suffix(".png")
        figure.savefig(targets[0], metadata=_NO_METADATA)
        figure.savefig(targets[1], dpi=200)
    return targets


def series(rows: Sequence[Record]) -> dict[str, list[Record]]:
    """Rows by the name of their line, each sorted by N."""
    lines: dict[str, list[Record]] = {}
    for name, row in zip(names(rows), rows, strict=True):
        lines.setdefault(name, []).append(row)
    return {name: sorted(line, key=lambda row: row["objectives"]) for name, line in lines.items()}


def _draw_em(axes: Axes, rows: Sequence[Record]) -> None:
    lines = series(rows)
    for (name, line), color in zip(lines.items(), _colors(lines), strict=True):
        n = [row["objectives"] for row in line]
        axes.fill_between(n, [r["em_low"] for r in line], [r["em_high"] for r in line], color=color, alpha=0.18, lw=0)
        axes.plot(n, [row["em"] for row in line], color=color, marker="o", markersize=4, label=name)
    axes.set_title("exact match per objective")
    axes.set_ylim(-0.02, 1.04)
    axes.yaxis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
    _finish(axes, rows)


def _draw_peak(axes: Axes, rows: Sequence[Record], *, prompt: bool) -> None:
    suffix = "" if prompt else "_without_prompt"
    lines = series(rows)
    for (name, line), color in zip(lines.items(), _colors(lines), strict=True):
        n = [row["objectives"] for row in line]
        axes.plot(n, [row[f"peak_tokens{suffix}"] for row in line], color=color, marker="o", markersize=4, label=name)
    rewritten = {name: line for name, line in lines.items() if line[0]["context"] != "full"}
    if rewritten:
        name, line = list(rewritten.items())[-1]
        n, peaks = [row["objectives"] for row in line], [row[f"appended_peak_tokens{suffix}"] for row in line]
        axes.plot(
            n, peaks, color=APPENDED, linestyle=(0, (4, 2)), marker="o", markersize=4, label=f"{name}, if appended"
        )
    axes.set_title("peak tokens" if prompt else "peak tokens without the prompt")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    _finish(axes, rows)


def _finish(axes: Axes, rows: Sequence[Record]) -> None:
    """The axis of N, doubling from tick to tick, and the names of the lines."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted({row["objectives"] for row in rows})))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_xlabel("N, questions asked at once")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best", fontsize=8.5)


def _colors(lines: Mapping[str, Sequence[Record]]) -> list[str]:
    """Grey for the policy "base", the accent for "trained" or a lone policy, then the others in turn."""
    rest = iter(OTHERS * len(lines))
    colors = []
    for line in lines.values():
        known = {"base": BASE, "trained": TRAINED}.get(line[0]["policy"], TRAINED if len(lines) == 1 else "")
        colors.append(next(rest) if known in colors or not known else known)
    return colors


def _new() -> tuple[Figure, Axes]:
    figure = Figure(figsize=_SIZE, layout="constrained")
    return figure, figure.subplots()


def _trailing_mean(values: Sequence[float]) -> list[float]:
    windows = [values[max(0, i + 1 - SMOOTHED_STEPS) : i + 1] for i in range(len(values))]
    return [sum(window) / len(window) for window in windows]


_NO_METADATA: dict[str, Any] = {"Creator": None, "Date": None, "Format": None, "Type": None}


def _inline_svg(figure: Figure, prefix: str) -> str:
    """The figure as an <svg> element: ids made unique by `prefix`, sizes left to the page, colours as variables."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=_NO_METADATA)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = (
        re.sub(r'\s(?:xmlns(?::\w+)?|width|height|version)="[^"]*"', "", svg[: svg.index(">")]) + svg[svg.index(">") :]
    )
    svg = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>{prefix}-", svg)
    for color, name in VARIABLES.items():
        svg = svg.replace(color, f"var(--figure-{name}, {color})")
    return svg
