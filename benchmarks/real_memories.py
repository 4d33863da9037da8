"""Memories of a language model on clozes of real text: each trained as `mem1 real` trains, from a start of its own.

    python benchmarks/real_memories.py ../shared/data/qa/corpus.jsonl.gz --out runs/real-memories
    python benchmarks/real_memories.py CORPUS --memories constant full --seeds 0 1      some of them, over seeds
    python benchmarks/real_memories.py CORPUS --tables                                  of what is finished

Every memory sees the same demonstrations' budget of trained tokens, then as many attempts of RL on tasks of two, and
the same tasks of the evaluation, whose passages it has not seen. A run that was stopped is resumed.

Prints exact match over N before and after RL, peak tokens, tokens and cost of an attempt at the largest N, and judges
two bounds that were declared before: a memory of constant peak is above `full` at N >= 8 by 0.1, at a third of its
peak or less. Draws OUT/memories.png beside them if matplotlib is installed.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from machine import commit, hardware

from mem1.evaluation.intervals import mean_interval
from mem1.evaluation.tokens import attempt_cost
from mem1.prices import PRICE_CLASSES
from mem1.trajectory_files import read_trajectories

MEMORIES = ("constant", "full", "notebook(4)", "window(3)", "archive(4)", "summary(300)", "discard_all(300)")
PASSAGES = 12_000
SIZES = (1, 2, 4, 8, 16)
CHANGES = (
    "sft.steps=60",
    "rl.curriculum=[{steps=4, objectives=[2]}]",
    "budget.completion_per_objective=16",  # a state of constant memory holds every answer
    f"evaluation.objectives={list(SIZES)}",
    "evaluation.tasks=16",
    "evaluation.questions=64",
)
CLASSES = ("hosted-90", "hosted-50", "self-hosted")
AHEAD, PEAK = 0.1, 1 / 3

Rows = Mapping[tuple[str, int], Mapping[str, Any]]
"""(policy, N) -> row of result.json."""


def main(arguments: Sequence[str] | None = None) -> None:
    given = parser().parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    corpus = given.out / "passages.jsonl"
    if not corpus.exists():
        cut(given.corpus, corpus, given.passages)
    print(f"command: python {shlex.join(sys.argv)}; commit {commit()}; {hardware()}\n", flush=True)
    finished: dict[str, list[Path]] = {}
    for seed, memory in itertools.product(given.seeds, given.memories):
        folder = given.out / f"{memory}-seed{seed}"
        if not given.tables and not (folder / "result.json").is_file():
            train(corpus, memory, seed, folder, given.model, given.changes)
        if (folder / "result.json").is_file():
            finished.setdefault(memory, []).append(folder)
    print_tables(finished)


def cut(source: Path, target: Path, passages: int) -> None:
    """The first passages of a corpus of JSON lines, packed or not."""
    opened = gzip.open if source.suffix == ".gz" else open
    part = target.with_suffix(".part")
    with opened(source, "rt", encoding="utf-8") as lines, part.open("w", encoding="utf-8") as written:
        written.writelines(itertools.islice(lines, passages))
    part.rename(target)


def train(corpus: Path, memory: str, seed: int, folder: Path, model: str, changes: Sequence[str]) -> None:
    command = [sys.executable, "-m", "mem1", "real", "--model", model, "--corpus", str(corpus), "--seed", str(seed)]
    command += ["--out", str(folder), "--json", *(["--resume"] if folder.exists() else [])]
    subprocess.run([*command, f"memory={memory}", *CHANGES, *changes], check=True, stdout=subprocess.DEVNULL)


def rows_of(folder: Path) -> Rows:
    found = json.loads((folder / "result.json").read_text(encoding="utf-8"))["rows"]
    return {(row["policy"], row["objectives"]): row for row in found}


def print_tables(finished: Mapping[str, Sequence[Path]]) -> None:
    if not finished:
        print("nothing is finished")
        return
    rows = {memory: [rows_of(folder) for folder in folders] for memory, folders in finished.items()}
    sizes = sorted({n for _, n in next(iter(rows.values()))[0]})
    head = " | ".join(f"N = {n}" for n in sizes)
    print(f"| memory, seeds | | {head} |\n|---|---|{'--:|' * len(sizes)}")
    for memory, runs in rows.items():
        for policy in ("untouched", "start", "trained"):
            name = f"`{memory}`, {len(runs)}" if policy == "untouched" else ""
            print(f"| {name} | {policy} | {' | '.join(em(runs, policy, n) for n in sizes)} |")
    most = sizes[-1]
    print(f"\n| trained | {' | '.join(f'peak, {n}' for n in sizes)} | tokens, {most} | {' | '.join(CLASSES)} |")
    print(f"|---|{'--:|' * (len(sizes) + 1 + len(CLASSES))}")
    for memory, runs in rows.items():
        peaks = [f"{mean(runs, n, 'peak_tokens_without_prompt'):,.0f}" for n in sizes]
        costs = [f"{cost(finished[memory], most, name):.5f}" for name in CLASSES]
        print(f"| `{memory}` | {' | '.join(peaks)} | {mean(runs, most, 'total_tokens'):,.0f} | {' | '.join(costs)} |")
    if "full" in rows:
        judge(rows, [n for n in sizes if n >= 8])
    draw(rows, sizes, next(iter(finished.values()))[0].parent / "memories.png")


def em(runs: Sequence[Rows], policy: str, n: int) -> str:
    """Over tasks if there is one seed, over seeds if there are more."""
    if (policy, n) not in runs[0]:
        return ""
    found = [run[policy, n] for run in runs]
    values = [row["em"] for row in found]
    low, high = (found[0]["em_low"], found[0]["em_high"]) if len(values) == 1 else mean_interval(values)
    return f"{statistics.mean(values):.2f} [{max(0.0, low):.2f}, {min(1.0, high):.2f}]"


def mean(runs: Sequence[Rows], n: int, field: str) -> float:
    return statistics.mean(run["trained", n][field] for run in runs)


def cost(folders: Sequence[Path], n: int, price_class: str) -> float:
    """Mean cost of an attempt of the trained policy, in the unit of the class."""
    prices = PRICE_CLASSES[price_class]
    return statistics.mean(
        attempt_cost(trajectory, prices)
        for folder in folders
        for trajectory in read_trajectories(folder / "evaluation" / f"trained-{n}.jsonl")
    )


def judge(rows: Mapping[str, Sequence[Rows]], sizes: Sequence[int]) -> None:
    print("\nDeclared before: above full by 0.1 at a third of its peak or less.\n")
    for memory, n in itertools.product([memory for memory in rows if memory != "full"], sizes):
        ahead = mean(rows[memory], n, "em") - mean(rows["full"], n, "em")
        peaks = [mean(rows[name], n, "peak_tokens_without_prompt") for name in (memory, "full")]
        held = ahead >= AHEAD and peaks[0] <= PEAK * peaks[1]
        print(f"- {memory}, N = {n}: {ahead:+.2f} at {peaks[0] / peaks[1]:.2f}: {'held' if held else 'missed'}")


def draw(rows: Mapping[str, Sequence[Rows]], sizes: Sequence[int], path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        print("\nNo picture: pip install matplotlib")
        return
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for memory, runs in rows.items():
        left.plot(sizes, [mean(runs, n, "em") for n in sizes], marker="o", label=memory)
        right.plot(sizes, [mean(runs, n, "peak_tokens_without_prompt") for n in sizes], marker="o")
    left.set(title="Exact match", ylim=(0, 1))
    right.set(title="Peak tokens without the prompt", ylim=(0, None))
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set(xlabel="Questions of a task", xticks=sizes, xticklabels=[str(n) for n in sizes])
        axes.grid(alpha=0.3)
    left.legend(frameon=False)
    figure.savefig(path, dpi=120)
    print(f"\nPicture: {path}")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("corpus", type=Path, help="passages, JSON lines of id, title and text, .gz or not")
    made.add_argument("--out", type=Path, default=Path("runs/real-memories"))
    made.add_argument("--passages", type=int, default=PASSAGES, help="take so many, the first ones")
    made.add_argument("--memories", nargs="+", default=list(MEMORIES))
    made.add_argument("--seeds", type=int, nargs="+", default=[0])
    made.add_argument("--model", default="smollm2")
    made.add_argument("--changes", nargs="*", default=[], metavar="KEY=VALUE", help="settings of every recipe")
    made.add_argument("--tables", action="store_true", help="train nothing, print the tables of what is finished")
    return made


if __name__ == "__main__":
    main()
