"""The cost of an attempt over the turn with which it ends, as an SVG file that needs nothing else.

    cost_figure([Panel(title="hosted-50", unit="USD", lines={"full": [...], "constant": [...]})])  ->  "<svg ..."

One panel a price class, below one another. Colours are readable on white and on near-black.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _PLOT_HEIGHT, _PANEL_HEIGHT = 640, 200, 290
_LEFT, _RIGHT, _TOP = 84, 130, 44
_INK, _COLORS = "#767d86", ("#d9742b", "#1a936f", "#4d7fd1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes."""

    title: str
    unit: str
    lines: Mapping[str, Sequence[float]]
    """Name -> cost by turn, all equally long; at most three."""


def cost_figure(panels: Sequence[Panel]) -> str:
    """One <svg> element. Raises ValueError without a panel, or for a panel without a turn."""
    if not panels or not all(line for panel in panels for line in (panel.lines.values() or [()])):
        raise ValueError("a figure needs a panel, and each of its lines a turn")
    height = len(panels) * _PANEL_HEIGHT
    body = "".join(
        f'<g transform="translate(0 {number * _PANEL_HEIGHT})">{_panel(panel)}</g>'
        for number, panel in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{_INK}">{body}</svg>\n'
    )


def _panel(panel: Panel) -> str:
    turns = len(next(iter(panel.lines.values())))
    steps = _steps(max(max(line) for line in panel.lines.values()))
    top = steps[-1]

    def x(turn: float) -> float:
        return _LEFT + (turn - 1) / max(1, turns - 1) * (_WIDTH - _LEFT - _RIGHT)

    def y(cost: float) -> float:
        return _TOP + _PLOT_HEIGHT * (1 - cost / top)

    parts = [f'<text x="{_LEFT}" y="20" font-weight="bold">{escape(panel.title)}</text>']
    for cost in steps:
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(cost):.1f}" y2="{y(cost):.1f}" stroke="{_INK}" '
            f'stroke-opacity="0.25"/><text x="{_LEFT - 8}" y="{y(cost) + 4:.1f}" text-anchor="end">{cost:g}</text>'
        )
    for turn in sorted({1, turns, *(math.ceil(turns * i / 4) for i in (1, 2, 3))}):
        parts.append(f'<text x="{x(turn):.1f}" y="{y(0) + 18:.1f}" text-anchor="middle">{turn}</text>')
    parts.append(
        f'<text x="{x((1 + turns) / 2):.1f}" y="{y(0) + 36:.1f}" text-anchor="middle">'
        f"cost in {escape(panel.unit)} of an attempt that ends with this turn</text>"
    )
    colored = list(zip(_COLORS, panel.lines.items(), strict=False))
    for color, (_, line) in colored:
        points = " ".join(f"{x(turn):.1f},{y(cost):.1f}" for turn, cost in enumerate(line, start=1))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
    ends = _apart([y(line[-1]) for _, (_, line) in colored])
    for end, (color, (name, _)) in zip(ends, colored, strict=True):
        parts.append(f'<text x="{x(turns) + 8:.1f}" y="{end + 4:.1f}" fill="{color}">{escape(name)}</text>')
    return "".join(parts)


def _steps(largest: float) -> list[float]:
    """Round numbers from 0 to at least `largest`, three to six of them."""
    if largest <= 0:
        return [0.0, 1.0]
    power = 10 ** math.floor(math.log10(largest))
    step = next(s * power for s in (0.2, 0.25, 0.5, 1, 2.5) if s * power * 5 >= largest)
    return [step * i for i in range(math.ceil(largest / step) + 1)]


def _apart(ends: Sequence[float]) -> list[float]:
    """The heights at which names stand: those of their lines, moved down where two would overlap."""
    placed: dict[int, float] = {}
    lowest = -math.inf
    for index in sorted(range(len(ends)), key=lambda i: ends[i]):
        placed[index] = lowest = max(ends[index], lowest + 14)
    return [placed[i] for i in range(len(ends))]
