"""Rollouts ahead of the trainer on Atlas: what they save, and what they cost in exact match.

    python benchmarks/asynchronous.py --seeds 0 1 2

A trainer and one `mem1 serve-policy`, two processes on one thread each, train `atlas-quick` (its [rl], with
[rl.importance]) with `max_staleness` 0, 1 and 2: the same tasks, the same number of steps. Then as many steps in one
process with two workers, which is what two cores are otherwise used for. The runs of a seed follow one another in
turn, so that whatever else the machine does meets all of them. Wall-clock is that of all steps but the first, the
evaluation not counted; exact match is greedy, on worlds of the evaluation half.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from machine import commit, hardware

from mem1.configuration import load_toml
from mem1.evaluation.intervals import mean_interval
from mem1.evaluation.runner import evaluate
from mem1.policy.policy import load_policy
from mem1.policy.protocol import resolve
from mem1.recipe.recipe import Recipe
from mem1.run_folder import read_metrics
from mem1.training.train import Progress, make_rollout, train

RECIPE = Path(__file__).parents[1] / "recipes" / "atlas-quick.toml"
WORKERS = "two workers"


@dataclass(frozen=True, kw_only=True)
class Measured:
    seconds: float
    staleness: float
    """Mean over the trained tokens of all steps."""
    mixed: float
    """Share of the attempts that more than one version of the weights has sampled."""
    em: dict[int, list[float]]
    """By number of objectives, of each task."""


@contextmanager
def served_policy(folder: Path) -> Iterator[str]:
    """The address of a server of the shipped policy."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "mem1", "serve-policy", "shipped", "--port", "0", "--weights-folder", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        try:
            for line in server.stdout:
                if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                    yield found[0]
                    return
            raise RuntimeError("the server has ended before it was ready")
        finally:
            server.terminate()


def measured(given: argparse.Namespace, kind: str | int, seed: int) -> Measured:
    folder = Path(given.out) / f"{kind}-seed{seed}".replace(" ", "-")
    steps = f"rl.curriculum=[{{steps={given.steps}, objectives=[2]}}]"
    common = [f"seed={seed}", "writers=[]", steps, "rl.importance.cap=2.0"]
    if kind == WORKERS:
        return run(load_toml(RECIPE, Recipe, [*common, "workers=2"]), folder, given)
    with served_policy(folder / "weights") as url:
        rollout = f'rollout={{engine="servers", servers=["{url}"], weights_folder="{folder / "weights"}", poll_s=0.2}}'
        config = load_toml(RECIPE, Recipe, [*common, "workers=1", rollout, f"rl.max_staleness={kind}"])
        return run(config, folder, given)


def run(config: Recipe, folder: Path, given: argparse.Namespace) -> Measured:
    times: list[float] = []

    def on_step(progress: Progress) -> None:
        times.append(time.perf_counter())
        print(f"{folder.name}: step {progress.step}, reward {progress.metrics['reward']:.2f}", file=sys.stderr)

    train(config, folder / "run", command=sys.argv, on_step=on_step)
    rows = read_metrics(folder / "run" / "metrics.jsonl")
    tags = resolve(config).tags
    source = config.tasks.source("evaluation", tags)
    policy = load_policy(folder / "run" / "policy")
    rollout = make_rollout(config.model_copy(update={"workers": 2}), policy, source)
    asked = config.evaluation.model_copy(update={"objectives": tuple(given.objectives), "tasks": given.tasks})
    _, attempts = evaluate(rollout, source, asked, policy=folder.name)
    return Measured(
        seconds=times[-1] - times[0],
        staleness=statistics.mean(row["staleness_mean"] for row in rows if row["staleness_mean"] is not None),
        mixed=statistics.mean(row["mixed_weights_share"] for row in rows),
        em={
            n: [statistics.mean(t.per_objective("em")) if t.per_objective("em") else 0.0 for t in done]
            for n, done in attempts.items()
        },
    )


def cell(runs: Sequence[Measured], objectives: int) -> str:
    by_task = [statistics.mean(scores) for scores in zip(*(run.em[objectives] for run in runs), strict=True)]
    low, high = mean_interval(by_task)
    seeds = " ".join(f"{statistics.mean(run.em[objectives]):.2f}" for run in runs)
    return f"{statistics.mean(by_task):.2f} [{low:.2f}, {high:.2f}] ({seeds})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--objectives", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--tasks", type=int, default=150, help="evaluated, of each number of objectives")
    parser.add_argument("--out", default="runs/benchmark-asynchronous")
    given = parser.parse_args()
    torch.set_num_threads(1)
    kinds: list[str | int] = [*given.staleness, WORKERS]
    found: dict[str | int, list[Measured]] = {kind: [] for kind in kinds}
    for seed in given.seeds:
        for kind in kinds:
            found[kind].append(measured(given, kind, seed))
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}; seeds {given.seeds}\n")
    columns = "".join(f" EM at N = {n} |" for n in given.objectives)
    print(f"| rollouts | wall-clock over max_staleness 0 | staleness | mixed |{columns}")
    print("|---|--:|--:|--:|" + "--:|" * len(given.objectives))
    for kind, runs in found.items():
        name = kind if kind == WORKERS else f"max_staleness {kind}"
        ratios = [run.seconds / plain.seconds for run, plain in zip(runs, found[given.staleness[0]], strict=True)]
        each = " ".join(f"{ratio:.2f}" for ratio in ratios)
        cells = " | ".join(cell(runs, n) for n in given.objectives)
        stale, mixed = statistics.mean(r.staleness for r in runs), statistics.mean(r.mixed for r in runs)
        print(f"| {name} | {statistics.mean(ratios):.2f} ({each}) | {stale:.2f} | {mixed:.2f} | {cells} |")


if __name__ == "__main__":
    main()
