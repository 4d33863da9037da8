"""Rollouts of the shipped policy in one process and in two, on the same tasks.

    python benchmarks/rollout.py                                    prints a Markdown table, in a minute or two
    python benchmarks/rollout.py --model runs/x/policy --objectives 2 16

What is sampled is the same; the best of the repeats counts, one process and two alternately.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from machine import commit, hardware

from mem1.contexts import context_policy
from mem1.engines.base import Sampling
from mem1.engines.workers import local_engine
from mem1.envs.source import AtlasTasks
from mem1.protocol import PAPER
from mem1.records import Task, Trajectory
from mem1.rollout import Rollout
from mem1.training.policy import Policy, load_policy


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
    rollouts = {
        workers: Rollout(
            engine=local_engine(policy.model, policy.codec, PAPER.stop_strings, workers=workers),
            codec=policy.codec,
            environment=source.environment,
            context=context_policy("constant"),
        )
        for workers in (1, given.workers)
    }
    print(f"commit {commit()}; {hardware()}; {given.model}, {size(policy):.2f} M parameters\n")
    print(f"| N | tokens | one process over {given.workers}, time |\n|--:|--:|--:|")
    for objectives in given.objectives:
        tasks = [
            t for t in source.tasks(objectives=objectives, count=given.tasks, seed=0) for _ in range(given.attempts)
        ]
        best = dict.fromkeys(rollouts, float("inf"))
        sampled: dict[int, list[Trajectory]] = {}
        for _ in range(given.repeats):
            for workers, rollout in rollouts.items():
                seconds, sampled[workers] = timed(rollout, tasks)
                best[workers] = min(best[workers], seconds)
        one, several = sampled.values()
        assert [t.answer for t in one] == [t.answer for t in several], "the number of processes changed what is sampled"
        tokens = sum(t.num_completion_tokens for t in one)
        print(f"| {objectives} | {tokens:,} | {best[1] / best[given.workers]:.2f} |")


def timed(rollout: Rollout, tasks: list[Task]) -> tuple[float, list[Trajectory]]:
    started = time.perf_counter()
    trajectories = rollout(tasks, sampling=Sampling(seed=0))
    return time.perf_counter() - started, trajectories


def size(policy: Policy) -> float:
    return sum(p.numel() for p in policy.model.parameters()) / 1e6


if __name__ == "__main__":
    main()
