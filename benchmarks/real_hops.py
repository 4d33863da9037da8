"""A language model on real questions of two hops (HotpotQA, 2WikiMultihopQA): what RL on tasks of two adds.

    python benchmarks/real_hops.py ../shared/data/qa --out runs/real-hops
    python benchmarks/real_hops.py ../shared/data/qa --out runs/real-hops --seed 1

Demonstrations come from the gold passages of training questions, BM25 searches all passages of the folder, and the
test questions are asked before and after sixteen steps of GRPO on two. The recipes are in benchmarks/real_hops/. A run
that was stopped goes on with the same command.

Prints exact match and F1 over N with 95 % intervals, peak tokens and searches, and judges what was declared before: RL
adds at least 0.05 at N = 2 to its cold start, as a difference over the same tasks.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean as mean
from typing import Any

from machine import commit, hardware
from recipe_stages import Stages

from mem1.evaluation.intervals import mean_interval
from mem1.trajectory_files import read_trajectories

RECIPES = Path(__file__).resolve().parent / "real_hops"
SETS = ("hotpotqa", "2wiki")
SIZES = (1, 2, 4)
ADDED = 0.05


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with train, dev and test.jsonl and corpus.jsonl.gz")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("changes", nargs="*", help="KEY=VALUE of all three recipes")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    for name in ("train", "dev", "test"):
        cut(given.data / f"{name}.jsonl", given.out / f"{name}.jsonl")
    if not (corpus := given.out / "corpus.jsonl.gz").exists():
        corpus.symlink_to((given.data / "corpus.jsonl.gz").resolve())
    print(f"command: python {shlex.join(sys.argv)}; commit {commit()}; {hardware()}\n", flush=True)
    stages = Stages(RECIPES, given.out, (f"seed={given.seed}", *given.changes))
    stages.train("start", evaluate=False)
    stages.examine("start", "start/policy")
    stages.train("train", evaluate=False)
    stages.examine("trained", "train/best")
    print_table(given.out)


def cut(source: Path, target: Path) -> None:
    """The questions of two hops whose passages are all in the collection."""
    lines = source.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if (row := json.loads(line))["answerable"] and row["dataset"] in SETS]
    target.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")


def attempts(out: Path, name: str, size: int) -> list[Any]:
    (file,) = (out / "evaluation" / name).glob(f"*-{size}.jsonl")
    return list(read_trajectories(file))


def print_table(out: Path) -> None:
    print("| policy | N | EM | F1 | turns |\n|---|--:|--:|--:|--:|")
    em: dict[tuple[str, int], list[float]] = {}
    for name in ("start", "trained"):
        for size in SIZES:
            done = attempts(out, name, size)
            em[name, size] = [share(one, "em") for one in done]
            low, high = mean_interval(em[name, size])
            f1 = mean([share(one, "f1") for one in done])
            turns = mean([len(one.turns) for one in done])
            print(f"| {name} | {size} | {mean(em[name, size]):.3f} [{low:.3f}, {high:.3f}] | {f1:.3f} | {turns:.1f} |")
    gain = [after - before for after, before in zip(em["trained", 2], em["start", 2], strict=True)]
    low, high = mean_interval(gain, within=(-1.0, 1.0))
    judged = "holds" if mean(gain) >= ADDED else "missed"
    print(f"\nRL adds {mean(gain):+.3f} [{low:+.3f}, {high:+.3f}] at N = 2, where {ADDED} was declared: {judged}")


def share(attempt: Any, metric: str) -> float:
    """Mean of a metric over the questions of an attempt; 0 for one that was not scored."""
    values = attempt.metrics.get(metric)
    return sum(values) / len(values) if values else 0.0


if __name__ == "__main__":
    main()
