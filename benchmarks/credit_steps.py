"""Trainings compared by the steps that they take to the same reward.

    python benchmarks/credit_steps.py benchmarks/results/beyond-credit/grpo benchmarks/results/beyond-credit/channels

The folders are results of benchmarks/compare.py, the first those of the baseline. A run is at a level when the mean
reward of its last five steps is; the level is that of the baseline's last step, for each seed its own. Intervals (95 %)
of exact match after training are over seeds and tasks.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from run_files import result_at, run_names
from run_results import Run, names_of, score_table

WINDOW = 5
"""Steps of a mean reward."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("baseline", type=Path)
    parser.add_argument("other", type=Path)
    given = parser.parse_args()
    names = names_of([str(given.baseline), str(given.other)])
    runs = {
        name: (result_at(given.baseline / "runs" / f"{name}.json"), other)
        for name in run_names(given.baseline / "runs")
        if "-seed" in name and (other := result_at(given.other / "runs" / f"{name}.json")) is not None
    }
    if not runs:
        raise SystemExit(
            f"{given.baseline} and {given.other} have no run in common; make them by benchmarks/compare.py"
        )
    print_steps(names, runs)
    sides = zip(*runs.values(), strict=True)
    print(f"\n{score_table(dict(zip(names, sides, strict=True)))}")


def print_steps(names: Sequence[str], runs: dict[str, tuple[Run, Run]]) -> None:
    print(f"| run | level | steps to it, {names[0]} | {names[1]} | all steps |\n|---|--:|--:|--:|--:|")
    ratios: list[float] = []
    for name, pair in runs.items():
        curves = [curve(run["rewards"]) for run in pair]
        level = curves[0][-1]
        first, second = (step_at(means, level) for means in curves)
        assert first is not None
        if second is not None:
            ratios.append(second / first)
        lengths = ", ".join(str(len(run["rewards"])) for run in pair)
        print(f"| {name} | {level:.3f} | {first} | {second or 'never'} | {lengths} |")
    if ratios:
        mean = statistics.geometric_mean(ratios)
        print(f"\nSteps of {names[1]} over those of {names[0]}, geometric mean of {len(ratios)} runs: {mean:.2f}")


def curve(rewards: Sequence[float]) -> list[float]:
    """Mean reward of the last steps, from the first step that has enough before it."""
    return [statistics.mean(rewards[i - WINDOW : i]) for i in range(WINDOW, len(rewards) + 1)]


def step_at(means: Sequence[float], level: float) -> int | None:
    """Number of the first step at this level."""
    return next((i + WINDOW for i, mean in enumerate(means) if mean >= level), None)


if __name__ == "__main__":
    main()
