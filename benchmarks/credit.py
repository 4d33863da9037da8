"""Signal and noise of the policy gradient: one number for each attempt, or one for each question.

    python benchmarks/credit.py --start POLICY [--memory notes] [--objectives 2 4 8]

The same attempts are given to both algorithms. Of B independent batches with gradients g_b, |E g|^2 is estimated
without bias by the mean of g_a . g_b over all pairs a != b, the noise by the mean of |g_b|^2 less that. Their ratio,
per batch, does not depend on the scale of the advantages. Intervals (95 %): B batches drawn with replacement, 1,000
times; a batch that is drawn twice makes no pair with itself.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from machine import commit, hardware
from stages import rl_stage

from mem1.algorithms.channels import Channels, Objectives
from mem1.algorithms.group import Grpo
from mem1.configuration import load_toml
from mem1.evaluation.metrics import solved
from mem1.recipe.recipe import Recipe
from mem1.records import Group
from mem1.training.gradients.samples import make_samples, scorable_groups
from mem1.training.gradients.update import PassStats, accumulate
from mem1.training.rl import RlStage

RECIPE = Path(__file__).parents[1] / "recipes" / "compare-atlas" / "train.toml"
ALGORITHMS = {"one number": Grpo(), "each question": Channels(channels=(Objectives(),))}


def main(arguments: Sequence[str] | None = None) -> None:
    given = parser().parse_args(arguments)
    torch.set_num_threads(1)
    print(
        f"commit {commit()}; {hardware()}; {given.batches} batches of {given.groups} groups of 8; seed {given.seed}\n"
    )
    print("| N | EM | signal to noise, one number | each question | ratio [95 %] |\n|--:|--:|--:|--:|--:|")
    for objectives in given.objectives:
        print(row(given, objectives), flush=True)


def row(given: argparse.Namespace, objectives: int) -> str:
    stage = stage_of(given, objectives)
    products: dict[str, list[torch.Tensor]] = {name: [] for name in ALGORITHMS}
    em: list[float] = []
    for index in range(given.batches):
        groups = stage.sample(index)
        em += [solved(t) for group in groups for t in group.trajectories]
        for name in ALGORITHMS:
            products[name].append(gradient(stage, groups, name))
    gram = {name: (g := torch.stack(of_one)) @ g.T for name, of_one in products.items()}
    ratios = {name: signal_to_noise(of_one, range(given.batches)) for name, of_one in gram.items()}
    low, high = interval(gram, given)
    whole, parts = ratios["one number"], ratios["each question"]
    return (
        f"| {objectives} | {statistics.mean(em):.2f} | {whole:.4f} | {parts:.4f} | "
        f"{parts / whole:.2f} [{low:.2f}, {high:.2f}] |"
    )


def stage_of(given: argparse.Namespace, objectives: int) -> RlStage:
    config = load_toml(
        RECIPE,
        Recipe,
        [
            f"model.path={given.start}",
            f"memory={given.memory}",
            f"seed={given.seed}",
            "workers=1",
            *given.set,
            f"rl.tasks_per_step={given.groups}",
            f"rl.curriculum=[{{steps=1000000, objectives=[{objectives}]}}]",
        ],
    )
    return rl_stage(config)


def gradient(stage: RlStage, groups: Sequence[Group], name: str) -> torch.Tensor:
    """Of the policy's loss on these attempts before any update, as one vector."""
    algorithm = ALGORITHMS[name]
    config = stage.config.model_copy(update={"algorithm": algorithm})
    kept = scorable_groups(algorithm, groups)
    old = stage.networks.old_policy_stats([group.trajectories for group in kept])
    stage.model.zero_grad(set_to_none=True)
    accumulate(stage.networks, make_samples(config, kept, old), PassStats())
    found = [p.grad.flatten() for p in stage.model.parameters() if p.grad is not None]
    stage.model.zero_grad(set_to_none=True)
    return (
        torch.cat(found).double() if found else torch.zeros(sum(p.numel() for p in stage.model.parameters())).double()
    )


def signal_to_noise(gram_BB: torch.Tensor, batches: Sequence[int]) -> float:
    """|E g|^2 over E |g - E g|^2, from the products of all gradients; `batches` may name one several times."""
    pairs = [float(gram_BB[a, b]) for i, a in enumerate(batches) for b in batches[i + 1 :] if a != b]
    signal = statistics.mean(pairs)
    noise = statistics.mean(float(gram_BB[a, a]) for a in batches) - signal
    return signal / noise


def interval(gram: Mapping[str, torch.Tensor], given: argparse.Namespace) -> tuple[float, float]:
    """Of the ratio, over batches."""
    rng = random.Random(f"credit {given.seed}")
    ratios: list[float] = []
    for _ in range(1000):
        drawn = [rng.randrange(given.batches) for _ in range(given.batches)]
        whole, parts = (signal_to_noise(gram[name], drawn) for name in ("one number", "each question"))
        ratios.append(parts / whole if whole > 0 else float("inf"))
    ratios.sort()
    return ratios[25], ratios[974]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--start", default="shipped", help="folder of the policy; default: the shipped one")
    made.add_argument("--memory", default="constant")
    made.add_argument("--objectives", type=int, nargs="+", default=[2, 4, 8])
    made.add_argument("--batches", type=int, default=24)
    made.add_argument("--groups", type=int, default=6, help="tasks of a batch, each attempted eight times")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the recipe to change")
    return made


if __name__ == "__main__":
    main()
