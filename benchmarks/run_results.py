"""What runs of benchmarks/compare.py have reached: cells of tables with exact match over seeds and tasks.

Scores are those of each seed on the same tasks; intervals (95 %) are over seeds and tasks.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from run_files import result_at, run_names

from mem1.evaluation.intervals import difference_interval, seeds_interval

SCORES = {"em": "exact match", "reward": "reward per goal"}
"""What a task is scored by: the mean of its objectives; a result file has one of them."""
Scores = Sequence[Sequence[float]]
"""By seed and task."""
Measured = Mapping[str, Any]
"""What a policy reached and cost on tasks of one size; the score per task, all else on average."""
Run = Mapping[str, Any]
"""The result of one seed; `tokens` has what was measured after training, by number of objectives."""
Arms = Mapping[str, Sequence[Run]]
"""Runs by the name of what was compared, the seeds in one order; the first is what the others are held against."""


def by_policy(folder: Path) -> dict[str, dict[int, Run]]:
    """The runs in a folder, by memory and seed."""
    found: dict[str, dict[int, Run]] = {}
    for name in run_names(folder / "runs"):
        policy, trained, seed = name.rpartition("-seed")
        if trained:
            found.setdefault(policy, {})[int(seed)] = result_at(folder / "runs" / f"{name}.json")
    return found


def mean_of(scores: Scores) -> float:
    """Over seeds and tasks."""
    return statistics.mean(map(statistics.mean, scores))


def mean_cell(scores: Scores) -> str:
    """mean_cell([[1.0, 0.0], [1.0, 1.0]])  ->  "0.75 [0.00, 1.00]" """
    low, high = seeds_interval(scores)
    return f"{mean_of(scores):.2f} [{low:.2f}, {high:.2f}]"


def difference_cell(ours: Scores, theirs: Scores) -> str:
    """The mean of ours less that of theirs, with its sign."""
    low, high = difference_interval(ours, theirs)
    return f"{mean_of(ours) - mean_of(theirs):+.2f} [{low:+.2f}, {high:+.2f}]"


def mean_over(of_seeds: Sequence[Measured], key: str) -> float:
    return statistics.mean(of_seed[key] for of_seed in of_seeds)


def scores_of(of_seeds: Sequence[Measured]) -> list[list[float]]:
    """By seed and task; the tasks are the same for all seeds."""
    return [of_seed[_scored_by(of_seed)] for of_seed in of_seeds]


def _scored_by(of_seed: Measured) -> str:
    return next(name for name in SCORES if name in of_seed)


def solved_objectives(of_seeds: Sequence[Measured], objectives: int) -> float:
    """Objectives solved of a task, on average."""
    return objectives * mean_of(scores_of(of_seeds))


def per_solved(of_seeds: Sequence[Measured], key: str, objectives: int) -> str:
    """This many units of 1e9 for each objective that was solved."""
    count = solved_objectives(of_seeds, objectives)
    return f"{mean_over(of_seeds, key) / count / 1e9:,.2f}" if count else "none solved"


def names_of(arms: Sequence[str]) -> list[str]:
    """The last part of each path; the whole path where two end alike.

    names_of(["a/constant", "a/belief"])  ->  ["constant", "belief"]
    """
    ends = [Path(arm).name for arm in arms]
    return [arm if ends.count(end) > 1 else end for arm, end in zip(arms, ends, strict=True)]


def sizes_of(arms: Arms) -> list[str]:
    """Numbers of objectives that all runs have."""
    first, *others = [run["tokens"] for runs in arms.values() for run in runs]
    return [n for n in first if all(n in other for other in others)]


def score_table(arms: Arms) -> str:
    """Exact match of each, and of each other less the first."""
    sizes = sizes_of(arms)
    scores = {name: [scores_of([run["tokens"][n] for run in runs]) for n in sizes] for name, runs in arms.items()}
    baseline, *others = scores
    rows = {name: [mean_cell(of_size) for of_size in found] for name, found in scores.items()}
    for name in others:
        pairs = zip(scores[name], scores[baseline], strict=True)
        rows[f"{name} less {baseline}"] = [difference_cell(*pair) for pair in pairs]
    scored = SCORES[_scored_by(arms[baseline][0]["tokens"][sizes[0]])]
    return markdown(scored, [f"N = {n}" for n in sizes], rows)


def markdown(title: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """A table of numbers: the title above the names of the rows."""
    lines = [f"| {title} | " + " | ".join(columns) + " |", "|---|" + "--:|" * len(columns)]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items())])
