"""What an evaluation saves by keeping keys and values from turn to turn (`mem1.engines.kept_prefixes`).

    python benchmarks/kept_prefixes.py [--policies constant full] [--objectives 4 16] [--tasks 24]

Each evaluation is made twice in one process, in sessions and without; times are those of one thread of the process.
Policies with notes need a start that has tags for them (--start-with-notes).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from machine import commit, hardware

from mem1.configuration import load_toml
from mem1.engines.base import Sampling, new_session
from mem1.memory import memory_policy
from mem1.policy.policy import make_policy
from mem1.policy.protocol import resolve
from mem1.protocol import NOTE
from mem1.recipe.recipe import Recipe
from mem1.records import Task, Trajectory
from mem1.rollout import RolloutPort
from mem1.training.train import make_rollout

RECIPE = Path(__file__).parents[1] / "recipes" / "compare-atlas" / "train.toml"


def main(arguments: Sequence[str] | None = None) -> None:
    given = parser().parse_args(arguments)
    torch.set_num_threads(1)
    print(f"commit {commit()}; {hardware()}; {given.tasks} tasks of each size\n")
    print("| memory | N | alone / in a session | same turns | largest difference, nats |\n|---|--:|--:|--:|--:|")
    for policy in given.policies:
        rollout, tasks_of = made(given, policy)
        for objectives in given.objectives:
            print(row(policy, objectives, rollout, tasks_of(objectives)), flush=True)


def row(policy: str, objectives: int, rollout: RolloutPort, tasks: Sequence[Task]) -> str:
    alone, alone_s = timed(rollout, tasks, None)
    kept, kept_s = timed(rollout, tasks, new_session())
    pairs = [
        (a, b)
        for one, other in zip(alone, kept, strict=True)
        for a, b in zip(one.turns, other.turns, strict=False)
        if (a.context_ids, a.completion_ids) == (b.context_ids, b.completion_ids)
    ]
    apart = max(abs(p - q) for a, b in pairs for p, q in zip(a.logprobs, b.logprobs, strict=True))
    turns = sum(len(attempt.turns) for attempt in alone)
    return f"| `{policy}` | {objectives} | {alone_s / kept_s:.2f} | {len(pairs)} of {turns} | {apart:.1e} |"


def timed(rollout: RolloutPort, tasks: Sequence[Task], session: int | None) -> tuple[list[Trajectory], float]:
    began = time.process_time()
    return rollout(tasks, sampling=Sampling(temperature=0.0, session=session)), time.process_time() - began


def made(given: argparse.Namespace, policy: str):
    noting = NOTE in memory_policy(policy).asks
    keys = [f"model.path={given.start_with_notes if noting else given.start}", f"memory={policy}", "workers=1"]
    keys += ["tasks.prompt=ordered", "tasks.labels=128"]
    config = load_toml(RECIPE, Recipe, keys)
    tags = resolve(config).tags
    source = config.tasks.source("evaluation", tags)
    rollout = make_rollout(config, make_policy(config), source)
    return rollout, lambda objectives: source.tasks(objectives=objectives, count=given.tasks, seed=0)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--policies", nargs="+", default=["notes", "constant", "fold(3)", "full"], help="memories")
    made.add_argument("--objectives", type=int, nargs="+", default=[4, 16, 32])
    made.add_argument("--tasks", type=int, default=24)
    made.add_argument("--start", default="shipped-memories", help="folder of the policy")
    made.add_argument("--start-with-notes", default="shipped-notes", help="the same for notes")
    return made


if __name__ == "__main__":
    main()
