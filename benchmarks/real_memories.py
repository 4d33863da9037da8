"""Memories of a language model on clozes of real text: each with a start of its own, each trained on tasks of two.

    python benchmarks/real_memories.py ../shared/data/qa/corpus.jsonl.gz --out runs/real-memories
    python benchmarks/real_memories.py CORPUS --memories constant full --seeds 0 1      some of them, over seeds
    python benchmarks/real_memories.py CORPUS --tables                                  of what is finished

Every memory sees as many trained tokens of demonstrations, then as many attempts of RL on tasks of two, and the same
tasks of the evaluation, whose passages it has not seen. The recipes are in benchmarks/real_memories/. A run that was
stopped goes on with the same command; OUT/MEMORY-seedS.json holds the rows of one that is finished.

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
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from machine import commit, hardware
from recipe_stages import Stages

from mem1.evaluation.intervals import mean_interval
from mem1.evaluation.tokens import attempt_cost
from mem1.prices import PRICE_CLASSES
from mem1.trajectory_files import read_trajectories

RECIPES = Path(__file__).resolve().parent / "real_memories"
MEMORIES = ("constant", "full", "notebook(4)", "summary(300)", "window(3)", "archive(4)", "discard_all(300)")
PASSAGES = 12_000
CLASSES = ("hosted-90", "hosted-50", "self-hosted")
FIELDS = ("objectives", "tasks", "em", "em_low", "em_high", "turns", "total_tokens", "output_tokens", "endings")
PEAKS = ("peak_tokens_without_prompt", "appended_peak_tokens_without_prompt")
AHEAD, PEAK = 0.1, 1 / 3

Rows = Mapping[tuple[str, int], Mapping[str, Any]]
"""(policy, N) -> its row."""


def main(arguments: Sequence[str] | None = None) -> None:
    given = parser().parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    corpus = given.out / "passages.jsonl"
    if not corpus.exists():
        cut(given.corpus, corpus, given.passages)
    print(f"command: python {shlex.join(sys.argv)}; commit {commit()}; {hardware()}\n", flush=True)
    finished: dict[str, list[Rows]] = {}
    for seed, memory in itertools.product(given.seeds, given.memories):
        result = given.out / f"{memory}-seed{seed}.json"
        if not given.tables and not result.is_file():
            train(corpus, memory, seed, result, given.model, given.changes)
        if result.is_file():
            finished.setdefault(memory, []).append(rows_of(result))
    print_tables(finished, given.out / "memories.png")


def cut(source: Path, target: Path, passages: int) -> None:
    """The first passages of a corpus of JSON lines, packed or not."""
    opened = gzip.open if source.suffix == ".gz" else open
    part = target.with_suffix(".part")
    with opened(source, "rt", encoding="utf-8") as lines, part.open("w", encoding="utf-8") as written:
        written.writelines(itertools.islice(lines, passages))
    part.rename(target)


def train(corpus: Path, memory: str, seed: int, result: Path, model: str, changes: Sequence[str]) -> None:
    """Both trainings of a memory with their evaluations, in a folder beside its result."""
    folder, begun = result.with_suffix(""), time.monotonic()
    folder.mkdir(exist_ok=True)
    path = f"tasks.corpus={corpus.resolve()}"
    stages = Stages(RECIPES, folder, (f"memory={memory}", f"seed={seed}", path, *changes))
    stages.train("start", f"model.path={model}")
    stages.train("train")
    found = {
        "memory": memory,
        "seed": seed,
        "commit": commit(),
        "hardware": hardware(),
        "seconds": round(time.monotonic() - begun),
        "rows": [
            {**row_of(file), "policy": policy}
            for run, policy in (("start", "start"), ("train", "trained"))
            for file in sorted((folder / run / "evaluation").glob("*.row.json"))
        ],
    }
    result.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def row_of(file: Path) -> dict[str, Any]:
    """What the tables need of a finished examination at one N, with the mean cost of an attempt in each price class."""
    row = json.loads(file.read_text(encoding="utf-8"))
    attempts = list(read_trajectories(file.with_name(file.name.replace(".row.json", ".jsonl"))))
    cost = {name: statistics.mean(attempt_cost(one, PRICE_CLASSES[name]) for one in attempts) for name in CLASSES}
    return {**{field: row[field] for field in (*FIELDS, *PEAKS)}, "cost": cost}


def rows_of(result: Path) -> Rows:
    found = json.loads(result.read_text(encoding="utf-8"))["rows"]
    return {(row["policy"], row["objectives"]): row for row in found}


def print_tables(finished: Mapping[str, Sequence[Rows]], picture: Path) -> None:
    if not finished:
        print("nothing is finished")
        return
    sizes = sorted({n for policy, n in next(iter(finished.values()))[0] if policy == "trained"})
    head = " | ".join(f"N = {n}" for n in sizes)
    print(f"| memory, seeds | | {head} |\n|---|---|{'--:|' * len(sizes)}")
    for memory, runs in finished.items():
        for policy in ("start", "trained"):
            name = f"`{memory}`, {len(runs)}" if policy == "start" else ""
            print(f"| {name} | {policy} | {' | '.join(em(runs, policy, n) for n in sizes)} |")
    most = sizes[-1]
    print(f"\n| trained | {' | '.join(f'peak, {n}' for n in sizes)} | tokens, {most} | {' | '.join(CLASSES)} |")
    print(f"|---|{'--:|' * (len(sizes) + 1 + len(CLASSES))}")
    for memory, runs in finished.items():
        peaks = [f"{mean(runs, n, PEAKS[0]):,.0f}" for n in sizes]
        costs = [f"{statistics.mean(run['trained', most]['cost'][name] for run in runs):.5f}" for name in CLASSES]
        print(f"| `{memory}` | {' | '.join(peaks)} | {mean(runs, most, 'total_tokens'):,.0f} | {' | '.join(costs)} |")
    if "full" in finished:
        judge(finished, [n for n in sizes if n >= 8])
    draw(finished, sizes, picture)


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
