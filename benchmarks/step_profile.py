"""Where the time of a step of reinforcement learning goes: the model, and everything that is not the model.

    python benchmarks/step_profile.py                                  atlas-quick, six steps, in a minute or two
    python benchmarks/step_profile.py --set rl.algorithm.name=ppo --objectives 8 --steps 4

Functions are timed from outside, each without the functions listed beside it that it calls, on one thread in one
process; the first step is left out. "Model" is every pass through a network, its backward pass and its optimiser;
drawing tokens from the sampler's logits is neither, and stands for itself.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from machine import commit, hardware
from stages import rl_stage

from mem1.configuration import load_toml
from mem1.engines.device import flushed_denormals
from mem1.recipe.recipe import Recipe

RECIPE = Path(__file__).parents[1] / "recipes" / "atlas-quick.toml"
MODEL, DRAWING, OTHER = "model", "drawing tokens", "other"
PARTS = (
    ("sampler's forward passes", MODEL, "mem1.engines.rows:Rows.logits"),
    ("drawing tokens", DRAWING, "mem1.engines.local:Batch._sample"),
    ("sampler: rows that join and leave", OTHER, "mem1.engines.local:Batch.step"),
    ("search", OTHER, "mem1.envs.search:SearchEnvironment.observe"),
    ("scoring", OTHER, "mem1.envs.search:SearchEnvironment.score"),
    ("tasks", OTHER, "mem1.envs.atlas:_Atlas.tasks"),
    ("contexts and parsing", OTHER, "mem1.rollout:Rollout.__call__"),
    ("lessons: advantages and what they need", OTHER, "mem1.training.rl:RlStage._lessons"),
    ("cutting into packs", OTHER, "mem1.training.gradients.actor_critic:split_into_packs"),
    ("token trees", OTHER, "mem1.training.logprobs:pack"),
    ("attention plans", OTHER, "mem1.training.logprobs:plan_attention"),
    ("trainer's forward passes", MODEL, "mem1.training.logprobs:tree_states"),
    ("log-softmax", MODEL, "mem1.training.logprobs:head_columns"),
    ("backward passes", MODEL, "torch:Tensor.backward"),
    ("optimiser", MODEL, "mem1.training.ranks.optimizers:Optimizers.step"),
    ("losses", OTHER, "mem1.training.rl:accumulate"),
    ("metrics, mini-batches", OTHER, "mem1.training.rl:RlStage.update"),
)


class Clock:
    """Seconds by label; what a timed function calls counts for itself alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._running: list[str] = []
        self._since = 0.0

    def _turn_over(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now

    @contextmanager
    def part(self, label: str) -> Iterator[None]:
        self._turn_over()
        self._running.append(label)
        try:
            yield
        finally:
            self._turn_over()
            self._running.pop()

    def watch(self, label: str, target: str) -> None:
        """Time every call of `module:qualified.name` from now on."""
        module, path = target.split(":")
        *owners, name = path.split(".")
        owner: Any = import_module(module)
        for part in owners:
            owner = getattr(owner, part)
        function: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(label):
                return function(*args, **kwargs)

        setattr(owner, name, timed)


@flushed_denormals()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6, help="timed steps, after one that is not")
    parser.add_argument("--objectives", type=int, default=2)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides of atlas-quick")
    given = parser.parse_args()
    torch.set_num_threads(1)
    phases = f"rl.curriculum=[{{steps={given.steps + 1}, objectives=[{given.objectives}]}}]"
    config = load_toml(RECIPE, Recipe, ["workers=1", phases, *given.set])
    stage = rl_stage(config)
    stage.step(0)
    clock = Clock()
    for label, _, target in PARTS:
        clock.watch(label, target)
    for index in range(1, given.steps + 1):
        with clock.part("the rest of a step"):
            stage.step(index)
    show(clock.seconds, given.steps)


def show(seconds: dict[str, float], steps: int) -> None:
    """Markdown: one row a part, then one a kind."""
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}; {steps} steps\n")
    total = sum(seconds.values())
    kinds: dict[str, float] = defaultdict(float)
    print("| part | kind | share of a step |\n|---|---|--:|")
    for label, kind, _ in (*PARTS, ("the rest of a step", OTHER, "")):
        kinds[kind] += seconds[label]
        print(f"| {label} | {kind} | {seconds[label] / total:.1%} |")
    for kind, spent in kinds.items():
        print(f"| **{kind}, together** | | **{spent / total:.1%}** |")


if __name__ == "__main__":
    main()
