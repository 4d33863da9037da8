"""What sampling attempts in this process costs: streaming against rounds, with and without shared beginnings.

    python benchmarks/sampling.py [--recipe atlas-notes] [--objectives 2 16] [--tasks 6] [--attempts 8]

The same attempts are made in each way three times; times are CPU seconds of the process, one thread, the
best of three. In rounds, all attempts wait for the longest completion of a turn (`mem1.engines.rows` shares beginnings
within a round, or between rounds in a session). The last column says whether all ways sampled the same tokens.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from machine import commit, hardware

from mem1.configuration import load_toml
from mem1.engines import rows
from mem1.engines.base import Completion, Engine, Sampling, new_session
from mem1.policy.policy import make_policy
from mem1.policy.protocol import resolve
from mem1.recipe.recipe import Recipe
from mem1.records import Task, Trajectory
from mem1.rollout import Rollout
from mem1.training.train import make_rollout

RECIPES = Path(__file__).parents[1] / "recipes"
REPEATS = 3


class Rounds:
    """An engine that does not stream."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def complete(
        self, contexts: Sequence[Sequence[int]], *, max_tokens: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        return self.engine.complete(contexts, max_tokens=max_tokens, sampling=sampling)


@contextmanager
def nothing_shared() -> Iterator[None]:
    """Inside, no two contexts are found to begin alike."""
    before = rows._equal
    rows._equal = lambda one, other: 0
    try:
        yield
    finally:
        rows._equal = before


def main(arguments: Sequence[str] | None = None) -> None:
    given = parser().parse_args(arguments)
    torch.set_num_threads(1)
    config = load_toml(RECIPES / f"{given.recipe}.toml", Recipe, ["workers=1", *given.set])
    source = config.tasks.source("train", resolve(config).tags)
    rollout = make_rollout(config, make_policy(config), source)
    assert isinstance(rollout, Rollout)
    print(f"commit {commit()}; {hardware()}; {given.recipe}, {given.tasks} tasks, {given.attempts} attempts at each\n")
    print("| N | streaming | nothing shared | rounds | rounds in a session | rounds, nothing shared | same tokens |")
    print("|--:|--:|--:|--:|--:|--:|---|")
    for objectives in given.objectives:
        different = source.tasks(objectives=objectives, count=given.tasks, seed=0)
        print(row(objectives, rollout, [task for task in different for _ in range(given.attempts)]), flush=True)


def row(objectives: int, rollout: Rollout, tasks: Sequence[Task]) -> str:
    rounds = replace(rollout, engine=Rounds(rollout.engine))
    ways: list[tuple[list[Trajectory], float]] = []
    for made, session in (rollout, False), (rounds, False), (rounds, True):
        ways.append(best(lambda made=made, session=session: sample(made, tasks, session)))
    with nothing_shared():
        ways[1:1] = [best(lambda: sample(rollout, tasks, False))]
        ways.append(best(lambda: sample(rounds, tasks, False)))
    sampled = [[[turn.completion_ids for turn in attempt.turns] for attempt in found] for found, _ in ways]
    same = "yes" if all(tokens == sampled[0] for tokens in sampled) else "no"
    return f"| {objectives} | {' | '.join(f'{seconds:.2f} s' for _, seconds in ways)} | {same} |"


def sample(rollout: Rollout, tasks: Sequence[Task], session: bool) -> list[Trajectory]:
    return rollout(tasks, sampling=Sampling(seed=1, session=new_session() if session else None))


def best(attempts: Callable[[], list[Trajectory]]) -> tuple[list[Trajectory], float]:
    """The attempts, and the CPU seconds of the quickest repeat."""
    found: list[Trajectory] = []
    seconds = []
    for _ in range(REPEATS):
        began = time.process_time()
        found = attempts()
        seconds.append(time.process_time() - began)
    return found, min(seconds)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--recipe", default="atlas-notes", help="name of a recipe whose policy is at hand")
    made.add_argument("--objectives", type=int, nargs="+", default=[2, 16])
    made.add_argument("--tasks", type=int, default=6)
    made.add_argument("--attempts", type=int, default=8)
    made.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides of the recipe")
    return made


if __name__ == "__main__":
    main()
