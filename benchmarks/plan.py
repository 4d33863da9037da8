"""The plan's memory and work against what a training step on this machine takes.

    python benchmarks/plan.py              every row, in about a minute of one core
    python benchmarks/plan.py --only PPO   those with PPO in their names

A row is a network of random weights that takes two updates of reinforcement learning on invented attempts. Memory is
what torch's CPU allocator hands out during the second update, by torch's profiler, on top of the tensors that are there
before it: weights, optimiser states, gradients. Time is given as a ratio: FLOPs of the update by the plan, divided by
its CPU seconds on one thread, divided by the FLOPs a CPU second of one large product of fp32 matrices in the same run.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from machine import commit, hardware
from torch.profiler import ProfilerActivity, profile

from mem1.configuration import load_toml
from mem1.engines.device import flushed_denormals
from mem1.evaluation.tokens import even_sizes
from mem1.memory import memory_policy
from mem1.planning.memory import stage_memory
from mem1.planning.networks import Network, Setup, made_model
from mem1.planning.stages import counted, made_groups, rl_stage
from mem1.planning.step_time import update_flops
from mem1.policy.policy import Policy
from mem1.recipe.recipe import Recipe
from mem1.records import Ended, Group, Trajectory
from mem1.training.rl import RlStage

SMALL = Network(
    kind="qwen2",
    hidden=128,
    layers=4,
    heads=4,
    kv_heads=4,
    head_size=32,
    feed_forward=384,
    vocabulary=536,
    tied=True,
    biases=True,
)
"""The shipped policy's shape."""
GROUPED = replace(SMALL, hidden=256, heads=8, kv_heads=2, feed_forward=768, vocabulary=4096, biases=False, kind="qwen3")
"""Grouped queries, and norms of queries and keys."""
WIDE = replace(SMALL, hidden=384, layers=6, heads=6, kv_heads=2, head_size=64, feed_forward=1152, vocabulary=8192)
UNTIED = replace(WIDE, tied=False, biases=False, kind="llama", layers=2, vocabulary=32000)


@dataclass(frozen=True)
class Row:
    """One network with one recipe."""

    name: str
    network: Network
    overrides: tuple[str, ...] = ()
    """Of the recipe."""
    context: str = "constant"
    prompt: int = 120
    written: int = 40
    result: int = 60
    turns: int = 4
    groups: int = 2
    attempts: int = 2


PPO = ("rl.algorithm={name='ppo', critic='head'}", "rl.kl={}")
SEPARATE = ("rl.algorithm={name='ppo', critic='separate'}", "rl.kl={}")
ALONE = "rl.packed=false"
ROWS = (
    Row("Qwen2, packs of 768", SMALL, ("rl.pack_tokens=768",)),
    Row("Qwen2, packs of 2,048", SMALL, ("rl.pack_tokens=2048",)),
    Row("Qwen2, one context a row", SMALL, ("rl.pack_tokens=768", ALONE)),
    Row("Qwen2, appended contexts", SMALL, ("rl.pack_tokens=768",), context="full"),
    Row("Qwen3, packs of 768", GROUPED, ("rl.pack_tokens=768",)),
    Row("Qwen3, a single pack", GROUPED, ("rl.pack_tokens=8192",)),
    Row("Qwen3, one context a row", GROUPED, ("rl.pack_tokens=768", ALONE)),
    Row("Qwen2, packs of 768", WIDE, ("rl.pack_tokens=768",)),
    Row("Qwen2, PPO: head, reference", WIDE, ("rl.pack_tokens=768", *PPO)),
    Row("Qwen2, PPO: critic of its own, reference", WIDE, ("rl.pack_tokens=768", *SEPARATE)),
    Row("Llama, packs of 768", UNTIED, ("rl.pack_tokens=768",)),
    Row("Llama, one context a row", UNTIED, ("rl.pack_tokens=768", ALONE), written=20),
)
RECIPE = Path(__file__).parents[1] / "recipes" / "atlas-quick.toml"


@dataclass(frozen=True)
class Measured:
    """A row's outcome; bytes and seconds."""

    row: Row
    parameters: int
    predicted: int
    moment: str
    measured: int
    flops: int
    seconds: float


def measure(row: Row) -> Measured:
    """The second and the third update of a row: one timed, one profiled."""
    overrides = ["workers=1", f"rl.tasks_per_step={row.groups}", f"rl.group_size={row.attempts}", "rl.epochs=1"]
    config = load_toml(RECIPE, Recipe, [*overrides, f"context={row.context}", *row.overrides])
    assert config.rl is not None
    action = row.written // 4
    sizes = even_sizes(prompt=row.prompt, state=row.written - action, action=action, result=row.result, turns=row.turns)
    made = made_groups(memory_policy(row.context), sizes, groups=row.groups, attempts=row.attempts)
    planned = rl_stage(
        config, config.rl, counted(made, pack_tokens=config.rl.pack_tokens, packed=config.rl.packed), Setup()
    )
    needs = replace(planned.needs, sampled_tokens=0, sampled_rows=0)  # an update alone is measured
    memory = stage_memory(row.network, needs, Setup())
    stage = _stage(config, made_model(row.network))
    groups = [_rewarded(group, row.network.vocabulary) for group in made]
    stage.update(groups, 0)
    started = time.process_time()
    stage.update(groups, 1)
    seconds = time.process_time() - started
    resident = _resident(stage)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        stage.update(groups, 2)
    return Measured(
        row=row,
        parameters=row.network.parameters,
        predicted=memory.peak,
        moment=memory.moment,
        measured=resident + _highest(recorded),
        flops=sum(update_flops(row.network, planned.tokens, planned.passes, Setup()).values()),
        seconds=seconds,
    )


def _stage(config: Recipe, model: Any) -> RlStage:
    """Nothing is rolled out, so nothing is there to roll out with."""
    nothing: Any = None
    policy = Policy(model, nothing)
    assert config.rl is not None
    return RlStage(policy, config.rl, nothing, nothing, config.seed, config.workers)


def _rewarded(attempts: Sequence[Trajectory], vocabulary: int) -> Group:
    """The attempts with tokens of the vocabulary, and rewards that differ."""

    def within(ids: tuple[int, ...]) -> tuple[int, ...]:
        # scattered, so that no two attempts go on alike by chance
        return tuple((i * 2654435761 % 2**32) // 7 % vocabulary for i in ids)

    done = []
    for number, attempt in enumerate(attempts):
        turns = tuple(
            replace(
                turn,
                context_ids=within(turn.context_ids),
                completion_ids=within(turn.completion_ids),
                logprobs=(-6.0,) * len(turn.completion_ids),
            )
            for turn in attempt.turns
        )
        done.append(
            replace(
                attempt,
                turns=turns,
                ended=Ended.ANSWERED,
                reward=float(number % 2),
                metrics={"em": (0.0,), "f1": (0.0,)},
            )
        )
    return Group(trajectories=tuple(done))


def _resident(stage: RlStage) -> int:
    """Bytes of weights and optimiser states; the gradients are gone after a step."""
    modules = (stage.policy.model, *stage.modules.values())
    tensors = [t for module in modules for t in (*module.parameters(), *module.buffers())]
    states = [s for o in stage.optimizers.members for state in o.state.values() for s in state.values()]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in (*tensors, *states)}
    return sum(storages.values())


def _highest(recorded: profile) -> int:
    """The most bytes that were allocated and not yet freed at any moment."""
    results: Any = recorded.profiler.kineto_results  # type: ignore[union-attr]
    events = sorted((e for e in results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns())
    held = highest = 0
    for event in events:
        held += event.nbytes()
        highest = max(highest, held)
    return highest


def product_flops_a_second() -> float:
    """Of one product of two fp32 matrices, the best of three."""
    a = torch.randn(1536, 1536)
    best = 0.0
    for _ in range(3):
        started = time.process_time()
        _ = a @ a
        best = max(best, 2 * 1536**3 / (time.process_time() - started))
    return best


@flushed_denormals()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose names have it")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}\n")
    rate = product_flops_a_second()
    print("| row | parameters | peak, MB | plan, MB | error | plan's moment | share of a product's rate |")
    print("|---|--:|--:|--:|--:|---|--:|")
    errors = []
    for row in (row for row in ROWS if given.only in row.name):
        done = measure(row)
        errors.append(done.predicted / done.measured - 1)
        print(
            f"| {row.name} | {done.parameters / 1e6:.2f} M | {done.measured / 1e6:.1f} | {done.predicted / 1e6:.1f} "
            f"| {errors[-1]:+.1%} | {done.moment} | {done.flops / done.seconds / rate:.2f} |",
            flush=True,
        )
    print(f"\nLargest error: {max(map(abs, errors)):.1%}")


if __name__ == "__main__":
    main()
