"""The paper's Table 1 and Figure 4 from evaluations of several systems at several numbers of objectives.

    python benchmarks/published_table.py results --out results/figure.svg

`results` holds a folder for each system, written by `mem1 eval --out results/SYSTEM`. Prints a Markdown table: EM
summed over the objectives with its 95 % interval over tasks, the peak in hundreds of tokens without the prompt (both
as in the paper), and seconds per task. The published rows are the authors' (arXiv 2506.15841 v2, Table 1), on other
hardware.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SHOWN = (2, 8, 16)
"""Numbers of objectives in the paper's table."""
PUBLISHED = {
    "MEM1, published": {2: (0.71, 6.4, None), 8: (1.87, 8.0, None), 16: (1.97, 10.4, 8.7)},
    "Qwen2.5-7B-Instruct in full, published": {2: (0.27, 19.6, None), 8: (0.87, 49.5, None), 16: (0.17, 43.3, 15.5)},
    "Qwen2.5-7B-Instruct truncated, published": {2: (0.26, 8.3, None), 8: (0.97, 11.8, None), 16: (0.40, 13.3, 22.1)},
}
"""System -> objectives -> (EM summed, peak in hundreds of tokens, seconds; None: not known to us)."""
Row = Mapping[str, Any]


def read(folder: Path) -> dict[str, dict[int, Row]]:
    """System -> objectives -> row of its evaluation."""
    found: dict[str, dict[int, Row]] = defaultdict(dict)
    for path in sorted(folder.glob("*/*.row.json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        found[path.parent.name][row["objectives"]] = row
    if not found:
        raise SystemExit(f"{folder} has no evaluation; run mem1 eval ... --out {folder}/SYSTEM")
    return found


def table(systems: Mapping[str, Mapping[int, Row]]) -> str:
    """Markdown."""
    head = ["system", *(f"{what}, N = {n}" for n in SHOWN for what in ("EM", "peak / 100", "s"))]
    lines = [head, ["---", *["--:"] * (len(head) - 1)]]
    for system, rows in systems.items():
        lines.append([system, *(cell for n in SHOWN for cell in _measured(rows.get(n), n))])
    for system, numbers in PUBLISHED.items():
        lines.append([system, *(_number(value) for n in SHOWN for value in numbers[n])])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _measured(row: Row | None, n: int) -> tuple[str, str, str]:
    if row is None:
        return "", "", ""
    em = f"{n * row['em']:.2f} [{n * row['em_low']:.2f}, {n * row['em_high']:.2f}]"
    return em, f"{row['peak_tokens_without_prompt'] / 100:.1f}", f"{row['seconds']:.1f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def draw(systems: Mapping[str, Mapping[int, Row]], path: Path) -> None:
    """EM summed, peak tokens and seconds over the number of objectives."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4), constrained_layout=True)
    for number, (system, rows) in enumerate(systems.items()):
        sizes = sorted(rows)
        style = {"label": system, "color": f"C{number}", "marker": "o", "markersize": 3}
        low, em, high = ([n * rows[n][key] for n in sizes] for key in ("em_low", "em", "em_high"))
        axes[0].plot(sizes, em, **style)
        axes[0].fill_between(sizes, low, high, color=f"C{number}", alpha=0.15)
        axes[1].plot(sizes, [rows[n]["peak_tokens_without_prompt"] for n in sizes], **style)
        axes[2].plot(sizes, [rows[n]["seconds"] for n in sizes], **style)
    titles = ("exact match, summed", "peak tokens without the prompt", "seconds per task")
    every = sorted({n for rows in systems.values() for n in rows})
    for axis, title in zip(axes, titles, strict=True):
        axis.set(title=title, xlabel="objectives N", xticks=every, ylim=(0, None))
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, default=Path("figure.svg"))
    given = parser.parse_args()
    systems = read(given.results)
    print(table(systems))
    draw(systems, given.out)


if __name__ == "__main__":
    main()
