"""Quickstart over several seeds: what reinforcement learning on N = 2 gains, and how memory grows with N.

    python benchmarks/quickstart.py --seeds 0 1 2 --out runs/benchmark-quickstart

Runs `mem1 quickstart --json` once a seed (a seed whose result.json stands in the folder is not run again) and
prints two Markdown tables: exact match before and after, and peak tokens at N = 16 over N = 2.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from machine import commit, hardware

from mem1.cli.train import MEMORY

Rows = dict[tuple[str, int], dict[str, Any]]
"""(policy, objectives) -> row."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments.add_argument("--out", type=Path, default=Path("runs/benchmark-quickstart"))
    arguments.add_argument("--memory", default=MEMORY, help="memory")
    given = arguments.parse_args()
    results = [result(seed, given.out, given.memory) for seed in given.seeds]
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}\n")
    print_gains(results, given.seeds)
    print_peaks(results)


def result(seed: int, out: Path, memory: str) -> Rows:
    """The rows of one quickstart, run now unless its result is there."""
    folder = out / f"seed{seed}"
    if not (folder / "result.json").is_file():
        options = ["--seed", str(seed), "--out", str(folder), "--memory", memory, "--json"]
        options += ["--resume"] if folder.exists() else []
        subprocess.run([sys.executable, "-m", "mem1", "quickstart", *options], check=True, stdout=subprocess.DEVNULL)
    rows = json.loads((folder / "result.json").read_text())["rows"]
    return {(row["policy"], row["objectives"]): row for row in rows}


def print_gains(results: list[Rows], seeds: list[int]) -> None:
    print("| N | " + " | ".join(f"seed {s}: before, after" for s in seeds) + " | mean gain | smallest gain |")
    print("|--:|" + "--:|" * (len(seeds) + 2))
    for objectives in sorted({n for _, n in results[0]}):
        cells, gains = [], []
        for rows in results:
            base, trained = rows["base", objectives], rows["trained", objectives]
            interval = f"[{trained['em_low']:.2f}, {trained['em_high']:.2f}]"
            cells.append(f"{base['em']:.2f}, {trained['em']:.2f} {interval}")
            gains.append(trained["em"] - base["em"])
        print(f"| {objectives} | {' | '.join(cells)} | {statistics.mean(gains):+.2f} | {min(gains):+.2f} |")
    print()


def print_peaks(results: list[Rows]) -> None:
    print("| trained policy, N = 16 over N = 2 | " + " | ".join(f"run {i + 1}" for i in range(len(results))) + " |")
    print("|---|" + "--:|" * len(results))
    for title, key in (
        ("peak tokens without the prompt", "peak_tokens_without_prompt"),
        ("the same turns appended", "appended_peak_tokens_without_prompt"),
    ):
        ratios = [rows["trained", 16][key] / rows["trained", 2][key] for rows in results]
        print(f"| {title} | " + " | ".join(f"{r:.2f}" for r in ratios) + " |")


if __name__ == "__main__":
    main()
