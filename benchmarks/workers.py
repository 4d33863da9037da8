"""What `workers = 2` gains over 1: rollouts in two processes, and updates on two packs at a time.

    python benchmarks/workers.py                                    prints a Markdown table, in a few minutes
    python benchmarks/workers.py --model runs/x/policy --objectives 2 16

The policy is the shipped one, and the update that of atlas-quick. One worker has all of torch's threads. What is
sampled is the same; the best of the repeats counts, one worker and two alternately.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from machine import commit, hardware

from mem1.configuration import load_toml
from mem1.dialogue import TagDialogue
from mem1.engines.base import Sampling
from mem1.engines.device import flushed_denormals
from mem1.engines.workers import local_engine
from mem1.envs.atlas import AtlasTasks
from mem1.memory import memory_policy
from mem1.policy.policy import Policy, load_policy
from mem1.protocol import PAPER
from mem1.recipe.recipe import Recipe
from mem1.records import Group
from mem1.rollout import Rollout
from mem1.training.rl import RlStage

RECIPE = Path(__file__).parents[1] / "recipes" / "atlas-quick.toml"
T = TypeVar("T")


@flushed_denormals()
def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="shipped")
    arguments.add_argument("--objectives", type=int, nargs="+", default=[2, 8])
    arguments.add_argument("--tasks", type=int, default=8)
    arguments.add_argument("--attempts", type=int, default=8)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--repeats", type=int, default=3)
    given = arguments.parse_args()
    policy, source = load_policy(given.model), AtlasTasks(worlds=1).source("train", PAPER)
    config = load_toml(RECIPE, Recipe, [f"rl.tasks_per_step={given.tasks}", f"rl.group_size={given.attempts}"]).rl
    assert config is not None
    stages: dict[int, RlStage] = {}
    for workers in (1, given.workers):
        rollout = Rollout(
            engine=local_engine(policy.model, policy.codec, PAPER.stop_strings, workers=workers),
            dialogue=TagDialogue(policy.codec),
            environment=source.environment,
            context=memory_policy("constant"),
        )
        stages[workers] = RlStage(policy, config, rollout, source, seed=0, workers=workers)
    print(f"commit {commit()}; {hardware()}; {given.model}, {size(policy):.2f} M parameters\n")
    print(f"| N | sampled tokens | rollout, 1 over {given.workers} | update, 1 over {given.workers} |")
    print("|--:|--:|--:|--:|")
    rollouts = {n: alternately(stages, lambda stage, n=n: sample(stage, n), given.repeats) for n in given.objectives}
    for objectives, (seconds, sampled) in rollouts.items():
        one, several = sampled.values()
        assert answers(one) == answers(several), "the number of processes changed what is sampled"
        tokens = sum(t.num_completion_tokens for group in one for t in group.trajectories)
        # Only now, as an update changes the weights.
        updates, _ = alternately(stages, lambda stage, one=one: stage.update(one, 0), given.repeats)
        ratios = (f"{of[1] / of[given.workers]:.2f}" for of in (seconds, updates))
        print(f"| {objectives} | {tokens:,} | {' | '.join(ratios)} |")


def sample(stage: RlStage, objectives: int) -> list[Group]:
    config = stage.config
    tasks = [
        task
        for task in stage.source.tasks(objectives=objectives, count=config.tasks_per_step, seed=0)
        for _ in range(config.group_size)
    ]
    attempts = stage.rollout(tasks, sampling=Sampling(seed=0))
    starts = range(0, len(attempts), config.group_size)
    return [Group(trajectories=tuple(attempts[i : i + config.group_size])) for i in starts]


def answers(groups: list[Group]) -> list[str | None]:
    return [t.answer for group in groups for t in group.trajectories]


def alternately(
    stages: dict[int, RlStage], work: Callable[[RlStage], T], repeats: int
) -> tuple[dict[int, float], dict[int, T]]:
    """Fewest seconds of each, and what each returned."""
    best = dict.fromkeys(stages, float("inf"))
    returned: dict[int, T] = {}
    for _ in range(repeats):
        for workers, stage in stages.items():
            started = time.perf_counter()
            returned[workers] = work(stage)
            best[workers] = min(best[workers], time.perf_counter() - started)
    return best, returned


def size(policy: Policy) -> float:
    return sum(p.numel() for p in policy.model.parameters()) / 1e6


if __name__ == "__main__":
    main()
