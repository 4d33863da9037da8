"""What denormal numbers cost: a step of the warm start, and an update of atlas-quick, with them and without.

    python benchmarks/denormals.py                              prints a Markdown table, in a few minutes
    python benchmarks/denormals.py --model runs/x/policy

Steps from the shipped policy, best of the repeats, with and without in turn.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from machine import commit, hardware

from mem1.cli.main import prepare

prepare()

import torch  # noqa: E402
from stages import rl_stage  # noqa: E402

from mem1.configuration import load_toml  # noqa: E402
from mem1.policy.policy import load_policy  # noqa: E402
from mem1.policy.protocol import resolve  # noqa: E402
from mem1.recipe.recipe import Recipe  # noqa: E402
from mem1.training.supervised import SftStage, demonstrate  # noqa: E402
from mem1.training.train import make_rollout  # noqa: E402

RECIPES = Path(__file__).parents[1] / "recipes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="shipped")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    works = {"supervised step": supervised(given.model), "reinforcement learning, update": update(given.model)}
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}\n")
    print("| work | with denormals over without, time |\n|---|--:|")
    for name, work in works.items():
        best = {True: float("inf"), False: float("inf")}
        for _ in range(given.repeats):
            for flushed in best:
                torch.set_flush_denormal(flushed)
                best[flushed] = min(best[flushed], seconds(work))
        print(f"| {name} | {best[False] / best[True]:.2f} |")


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def supervised(model: str) -> Callable[[], object]:
    """The first step of the warm start's recipe, from this policy."""
    config, policy = load_toml(RECIPES / "atlas-warm-start.toml", Recipe, ["sft.tasks=20"]), load_policy(model)
    tags = resolve(config).tags
    source = config.tasks.source("train", tags)
    assert config.sft is not None
    shown = demonstrate(config, make_rollout(config, policy, source), source, tags)
    stage = SftStage(policy, config.sft, lambda: shown, config.seed)
    start = {name: value.clone() for name, value in policy.model.state_dict().items()}

    def work() -> None:
        policy.model.load_state_dict(start)
        stage.step(0)

    work()  # makes the batches
    return work


def update(model: str) -> Callable[[], object]:
    """The first one of atlas-quick, from this policy."""
    config, policy = load_toml(RECIPES / "atlas-quick.toml", Recipe, ["workers=1"]), load_policy(model)
    stage = rl_stage(config, policy)
    groups = stage.sample(0)
    return lambda: stage.update(groups, 0)


if __name__ == "__main__":
    main()
