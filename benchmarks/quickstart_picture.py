"""The README's picture of a quickstart: exact match and peak tokens over N, before and after.

    mem1 quickstart --seed 0
    python benchmarks/quickstart_picture.py runs/quickstart-seed0 docs/images/quickstart.png

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
APPENDED, GRID, TEXT = "#d9742b", "#8888884d", "#6f7480"  # to be read on a white page and on a dark one
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
    parser.add_argument("picture", type=Path, help=".png or .svg")
    given = parser.parse_args()
    rows = json.loads((given.run / "result.json").read_text(encoding="utf-8"))["rows"]
    with rc_context(STYLE):
        draw(rows, given.picture)


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Two axes beside each other; bands are the 95 % intervals over tasks."""
    figure = Figure(figsize=(11, 3.875), layout="constrained")
    em, peak = figure.subplots(1, 2)
    for policy, color in COLORS.items():
        of_policy = [row for row in rows if row["policy"] == policy]
        sizes = [row["objectives"] for row in of_policy]
        em.plot(sizes, [row["em"] for row in of_policy], color=color, label=policy)
        bounds = [[row[bound] for row in of_policy] for bound in ("em_low", "em_high")]
        em.fill_between(sizes, *bounds, color=color, alpha=0.18, linewidth=0)
        peak.plot(sizes, [row["peak_tokens"] for row in of_policy], color=color, label=policy)
    trained = [row for row in rows if row["policy"] == "trained"]
    sizes = [row["objectives"] for row in trained]
    appended = [row["appended_peak_tokens"] for row in trained]
    peak.plot(sizes, appended, color=APPENDED, linestyle="--", label="trained, if appended")
    _finish(em, "exact match per objective", sizes, legend="lower left")
    _finish(peak, "peak tokens", sizes, legend="upper left")
    figure.savefig(path, dpi=160, transparent=True)


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
