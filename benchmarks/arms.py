"""Results of benchmarks/compare.py from several folders in one table: exact match, differences, tokens and cost.

    python benchmarks/arms.py benchmarks/results/beyond-belief/{constant,one-call,two-calls}
    python benchmarks/arms.py "benchmarks/results/beyond:constant" "benchmarks/results/beyond-caps/cut:capped(24)"

An arm is a folder with results of one policy, or FOLDER:POLICY. The others are held against the first, on the seeds
that all have. Intervals (95 %) are over seeds and tasks.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from run_results import Arms, Measured, Run, by_policy, markdown, mean_over, names_of, per_solved, score_table, sizes_of

COLUMNS: dict[str, Callable[[Sequence[Measured], int], str]] = {
    "peak tokens without the prompt": lambda of_seeds, n: f"{mean_over(of_seeds, 'peak_without_prompt'):,.0f}",
    "tokens of all calls": lambda of_seeds, n: f"{mean_over(of_seeds, 'tokens'):,.0f}",
    "written in a turn, answers aside": lambda of_seeds, n: f"{mean_over(of_seeds, 'written'):.1f}",
    "turns": lambda of_seeds, n: f"{mean_over(of_seeds, 'turns'):.1f}",
    "GFLOPs a solved question": lambda of_seeds, n: per_solved(of_seeds, "flops", n),
    "the same with a prefix cache": lambda of_seeds, n: per_solved(of_seeds, "flops_with_cache", n),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arms", nargs="+", metavar="FOLDER[:POLICY]")
    found: dict[str, dict[int, Run]] = {}
    given = parser.parse_args(arguments)
    for arm, name in zip(given.arms, names_of(given.arms), strict=True):
        folder, _, policy = arm.partition(":")
        runs = by_policy(Path(folder))
        if policy not in runs and (policy or len(runs) != 1):
            parser.error(f"{arm}: name one of its policies behind a colon: {', '.join(runs) or 'it has no results'}")
        found[name] = runs[policy or next(iter(runs))]
    seeds = sorted(set.intersection(*map(set, found.values())))
    if not seeds:
        counts = ", ".join(f"{name} {sorted(of_arm)}" for name, of_arm in found.items())
        parser.error(f"no seed has a result in every arm ({counts}); make them by benchmarks/compare.py")
    arms = {name: [of_arm[seed] for seed in seeds] for name, of_arm in found.items()}
    print(f"seeds {seeds}\n\n{score_table(arms)}")
    for title, cell in COLUMNS.items():
        print(f"\n{table(title, arms, cell)}")


def table(title: str, arms: Arms, cell: Callable[[Sequence[Measured], int], str]) -> str:
    sizes = sizes_of(arms)
    rows = {name: [cell([run["tokens"][n] for run in runs], int(n)) for n in sizes] for name, runs in arms.items()}
    return markdown(title, [f"N = {n}" for n in sizes], rows)


if __name__ == "__main__":
    main()
