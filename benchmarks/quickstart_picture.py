"""The README's picture of a quickstart: exact match and peak tokens over N, before and after, and another beside it.

    mem1 quickstart --seed 0
    mem1 quickstart --seed 0 --memory constant
    python benchmarks/quickstart_picture.py runs/quickstart-seed0 runs/quickstart-constant-seed0 quickstart.png

It is drawn by matplotlib: pip install -e '.[benchmarks]'.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLORS = {"base": "#8c8f96", "trained": "#1f946c"}
APPENDED, BESIDE, GRID, TEXT = "#d9742b", "#3b7dd8", "#8888884d", "#6f7480"  # for a white page and for a dark one
STYLE: Any = {
    "axes.edgecolor": TEXT,
    "axes.labelcolor": TEXT,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": TEXT,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "legend.frameon": False,
    "legend.labelcolor": TEXT,
    "lines.linewidth": 2.5,
    "lines.marker": "o",
    "xtick.color": TEXT,
    "ytick.color": TEXT,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a quickstart")
    parser.add_argument("beside", type=Path, help="folder of a quickstart with another memory")
    parser.add_argument("picture", type=Path, help=".png or .svg")
    given = parser.parse_args()
    with rc_context(STYLE):
        draw(_rows(given.run), _rows(given.beside), given.picture)


def _rows(run: Path) -> list[dict[str, Any]]:
    return json.loads((run / "result.json").read_text(encoding="utf-8"))["rows"]


def draw(rows: Sequence[dict[str, Any]], beside: Sequence[dict[str, Any]], path: Path) -> None:
    """Two axes beside each other; bands are the 95 % intervals over tasks."""
    figure = Figure(figsize=(11, 3.875), layout="constrained")
    axes = figure.subplots(1, 2)
    for width, (policy, color) in zip((9.0, 5.5), COLORS.items(), strict=True):
        of_policy = [row for row in rows if row["policy"] == policy]
        _draw_policy(axes, of_policy, f"{of_policy[0]['context']}, {policy}", color, width)
    trained = [row for row in beside if row["policy"] == "trained"]
    _draw_policy(axes, trained, f"{trained[0]['context']}, trained", BESIDE, 2.0)
    trained = [row for row in rows if row["policy"] == "trained"]
    sizes = [row["objectives"] for row in trained]
    appended = [row["appended_peak_tokens"] for row in trained]
    axes[1].plot(sizes, appended, color=APPENDED, linestyle="--", label=f"{trained[0]['context']}, if appended")
    _finish(axes[0], "exact match per objective", sizes, legend="lower left")
    _finish(axes[1], "peak tokens", sizes, legend="upper left")
    figure.savefig(path, dpi=160, transparent=True)


def _draw_policy(axes: Sequence[Axes], rows: Sequence[dict[str, Any]], label: str, color: str, width: float) -> None:
    """`width`: of the line of its peaks, which lie upon one another, the first the widest."""
    em, peak = axes
    sizes = [row["objectives"] for row in rows]
    em.plot(sizes, [row["em"] for row in rows], color=color, label=label)
    bounds = [[row[bound] for row in rows] for bound in ("em_low", "em_high")]
    em.fill_between(sizes, *bounds, color=color, alpha=0.18, linewidth=0)
    peaks = [row["peak_tokens"] for row in rows]
    peak.plot(sizes, peaks, color=color, label=label, linewidth=width, marker="")


def _finish(axes: Axes, title: str, sizes: Sequence[int], *, legend: Literal["lower left", "upper left"]) -> None:
    axes.set(title=title, xscale="log", xlabel="N, questions asked at once")
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.grid(color=GRID)
    axes.tick_params(axis="y", length=0)
    axes.legend(loc=legend)


if __name__ == "__main__":
    main()
