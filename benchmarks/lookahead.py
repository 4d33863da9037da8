"""What guesses at the next tokens gain (`mem1.engines.lookahead`): the same attempts with and without them.

    python benchmarks/lookahead.py [--recipe atlas-notes] [--objectives 2] [--attempts 1 6 12]
    python benchmarks/lookahead.py --recipe smollm2/train --bfloat16 --set model.path=POLICY

Attempts at one task, sampled in one way and then in the other, in one process with one thread; times are its CPU
seconds. Products in bf16 are rounded by their shapes, so there the two may sample other tokens after a while.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from machine import commit, hardware

from mem1.configuration import load_toml
from mem1.engines import local
from mem1.engines.base import Sampling
from mem1.policy.policy import make_policy
from mem1.policy.protocol import resolve
from mem1.recipe.recipe import Recipe
from mem1.records import Trajectory
from mem1.training.train import make_rollout

RECIPES = Path(__file__).parents[1] / "recipes"


@contextmanager
def nothing_guessed() -> Iterator[None]:
    """Inside, a pass computes one token of each row that decodes."""
    before = local.guesses_each
    local.guesses_each = lambda rows, kind: 0
    try:
        yield
    finally:
        local.guesses_each = before


def main(arguments: Sequence[str] | None = None) -> None:
    given = parser().parse_args(arguments)
    torch.set_num_threads(1)
    config = load_toml(RECIPES / f"{given.recipe}.toml", Recipe, ["workers=1", *given.set])
    source = config.tasks.source("train", resolve(config).tags)
    policy = make_policy(config)
    if given.bfloat16:
        policy.model.to(torch.bfloat16)
    rollout = make_rollout(config, policy, source)
    (task,) = source.tasks(objectives=given.objectives, count=1, seed=0)
    sampling = Sampling(seed=1, temperature=given.temperature)
    print(f"commit {commit()}; {hardware()}; {given.recipe}, N = {given.objectives}, {policy.model.dtype}\n")
    print("| attempts | tokens/s | without | ratio | times fewer passes | same tokens |\n|--:|--:|--:|--:|--:|---|")
    for attempts in given.attempts:
        tasks = [task] * attempts
        rollout(tasks[:1], sampling=sampling)  # the first pass of a process is slow
        guessed, passes = timed(lambda tasks=tasks: rollout(tasks, sampling=sampling), policy.model)
        with nothing_guessed():
            plain, before = timed(lambda tasks=tasks: rollout(tasks, sampling=sampling), policy.model)
        rates = [tokens(made) / seconds for made, seconds in (guessed, plain)]
        same = "yes" if completions(guessed[0]) == completions(plain[0]) else "no"
        print(
            f"| {attempts} | {rates[0]:.0f} | {rates[1]:.0f} | {rates[0] / rates[1]:.2f} | "
            f"{tokens(guessed[0]) / passes / (tokens(plain[0]) / before):.2f} | {same} |",
            flush=True,
        )


Timed = tuple[list[Trajectory], float]


def timed(attempts: Callable[[], list[Trajectory]], model: torch.nn.Module) -> tuple[Timed, int]:
    """(attempts, CPU seconds) and forward passes."""
    passes = 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += 1

    hook = model.register_forward_hook(count)
    began = time.process_time()
    made = attempts()
    seconds = time.process_time() - began
    hook.remove()
    return (made, seconds), passes


def completions(attempts: Sequence[Trajectory]) -> list[list[tuple[int, ...]]]:
    return [[turn.completion_ids for turn in attempt.turns] for attempt in attempts]


def tokens(attempts: Sequence[Trajectory]) -> int:
    return sum(len(ids) for attempt in completions(attempts) for ids in attempt)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--recipe", default="atlas-notes", help="name of a recipe whose policy is at hand")
    made.add_argument("--objectives", type=int, default=2)
    made.add_argument("--attempts", type=int, nargs="+", default=[1, 6, 12])
    made.add_argument("--temperature", type=float, default=1.0)
    made.add_argument("--bfloat16", action="store_true", help="sample a bf16 copy, as training does where it is faster")
    made.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides of the recipe")
    return made


if __name__ == "__main__":
    main()
