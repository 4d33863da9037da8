"""Figures as plain data for Plotly, which the scripts of a page draw in its own colours and fonts.

    over_sizes("accuracy", [trace], {**SHARE_AXIS, "title": {"text": "right"}})      a number over N, on a log axis
    {**line_style(3), "name": plain("notes"), "x": [1], "y": [0.9], "error_y": error_bars([(0.1, 0.05)], 3)}

Each figure is {"title", "data", "layout"}; a colour such as "--line-0" is a CSS variable of the page, light or dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Figure = dict[str, Any]
COLORS = 8
"""CSS variables --line-0 to --line-7; further lines reuse the colours with another dash."""
DASHES = ("solid", "dash", "dot", "dashdot")
SHARE_AXIS = {"range": [-0.03, 1.03]}
"""0 and 1 with room for a mark on them."""


def line_style(number: int) -> Figure:
    """Colour, dash and mark of the line with this number, from 0."""
    color = f"--line-{number % COLORS}"
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "line": {"color": color, "width": 2, "dash": DASHES[number // COLORS % len(DASHES)]},
        "marker": {"color": color, "size": 6},
    }


def error_bars(distances: Sequence[tuple[float, float]], number: int) -> Figure:
    """Intervals of the points of a line, as the distances of their ends from them: (below, above)."""
    how = {"type": "data", "symmetric": False, "thickness": 1.2, "width": 4, "color": f"--line-{number % COLORS}"}
    return {**how, "array": [above for _, above in distances], "arrayminus": [below for below, _ in distances]}


def over_sizes(title: str, traces: Sequence[Figure], y: Figure, of: str = "questions") -> Figure:
    """Lines over N, with a tick at each N."""
    sizes = sorted({n for trace in traces for n in trace["x"]})
    axis = {"type": "log", "tickvals": sizes, "ticktext": list(map(str, sizes)), "title": {"text": f"N, {of}"}}
    return {"title": title, "data": list(traces), "layout": {"xaxis": axis, "yaxis": y}}


def plain(name: str) -> str:
    """The name as Plotly shows it unchanged: it reads a little HTML, and the page takes "--name" for a colour."""
    name = name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f" {name}" if name.startswith("--") else name
