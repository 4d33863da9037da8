"""Which algorithm, and which view of a trajectory's contexts, learns Atlas from the shipped policy in the same time.

    python benchmarks/learning.py --minutes 3 --seeds 0 1 2 3 4 --out runs/benchmark-learning
    python benchmarks/learning.py --steps 2 --objectives 2 --tasks 4 --variants grpo ppo --seeds 0 --out runs/small

Every variant starts from the same weights, draws the same tasks by seed, and stops after the first step that ends
past its time (`--minutes`, rollouts included, evaluation excluded) or after `--steps`. Time is the CPU time of
one process on one thread: on an idle core that is wall-clock time, and what else the machine does moves it little.
Each pair of variant and seed leaves one JSON in the folder; one that stands there, made with the same settings, is
not run again. Prints a Markdown table of exact match by number of objectives: mean over seeds, and its 95 % interval
over the evaluated tasks, which are the same for all. How much another training seed would move it, the last column
shows.

    grpo, ppo, ...      the algorithms of `[rl.algorithm]`, on the exact token tree
    ppo_restarted       GAE restarted at each context, of which the last alone is paid the reward
    last_context        grpo on the last context of each trajectory, all that some frameworks keep of it
    stitched            grpo on MEM1's stitched sequence, as its mask was meant
    stitched_state      the same with the previous state shown
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from machine import commit, hardware
from stitched import stitched_scores

from mem1.algorithms.base import Advantages, Attempt
from mem1.algorithms.ppo import Ppo
from mem1.configuration import load_toml
from mem1.durable import write_file
from mem1.engines.device import flushed_denormals
from mem1.evaluation.intervals import mean_interval
from mem1.evaluation.runner import evaluate
from mem1.packing import Pack, split_into_packs
from mem1.policy.policy import make_policy
from mem1.policy.protocol import resolve
from mem1.recipe.recipe import Recipe
from mem1.records import Group, Trajectory
from mem1.training.gradients.actor_critic import ActorCritic
from mem1.training.gradients.samples import TrainingSample
from mem1.training.logprobs import Scores
from mem1.training.rl import RlStage
from mem1.training.train import make_rollout

RECIPE = Path(__file__).parents[1] / "recipes" / "atlas-quick.toml"
PPO = ["rl.algorithm.name=ppo"]
ONE_UPDATE = ["rl.epochs=1"]
VARIANTS: dict[str, list[str]] = {
    "grpo": [],
    "ppo": PPO,
    "ppo_restarted": PPO,
    "dr_grpo": ["rl.algorithm.name=dr_grpo"],
    "rloo": ["rl.algorithm.name=rloo", *ONE_UPDATE],
    "reinforce_pp": ["rl.algorithm.name=reinforce_pp"],
    "dapo": ["rl.algorithm.name=dapo"],
    "gspo": ["rl.algorithm.name=gspo"],
    "cispo": ["rl.algorithm.name=cispo"],
    "last_context": [],
    "stitched": [],
    "stitched_state": [],
}
"""What each changes of atlas-quick."""


class RestartedPpo(Ppo):
    """GAE that begins anew in each context; the reward is paid in the last one."""

    def advantages(self, groups: Sequence[Sequence[Attempt]]) -> list[list[Advantages | None]]:
        made = [iter(row) for row in super().advantages([[c for x in group for c in contexts(x)] for group in groups])]
        return [
            [joined([next(row) for _ in x.trajectory.turns]) for x in group]
            for row, group in zip(made, groups, strict=True)
        ]


def contexts(x: Attempt) -> list[Attempt]:
    """Each context as an attempt of its own."""
    lengths = [len(turn.completion_ids) for turn in x.trajectory.turns]
    parts = [[None] * len(lengths) if v is None else v.split(lengths) for v in (x.values_K, x.kl_penalty_K)]
    last = len(lengths) - 1
    return [
        replace(
            x,
            trajectory=replace(x.trajectory, turns=(turn,)),
            shaped_reward=x.shaped_reward if n == last else 0.0,
            values_K=value,
            kl_penalty_K=penalty,
        )
        for n, (turn, value, penalty) in enumerate(zip(x.trajectory.turns, *parts, strict=True))
    ]


def joined(parts: Sequence[Advantages | None]) -> Advantages:
    kept = [part for part in parts if part is not None]
    returns = [part.returns_K for part in kept if part.returns_K is not None]
    return Advantages(advantages_K=torch.cat([part.advantages_K for part in kept]), returns_K=torch.cat(returns))


class Restarted(RlStage):
    """PPO with `RestartedPpo`."""

    def __post_init__(self) -> None:
        settings = self.config.algorithm.model_dump(exclude={"name"})
        self.config = self.config.model_copy(update={"algorithm": RestartedPpo(**settings)})
        super().__post_init__()


class LastContext(RlStage):
    """Trained on the last context alone, with the advantage of the whole trajectory."""

    def _samples(self, groups: Sequence[Group]) -> list[list[TrainingSample]]:
        return super()._samples(
            [Group(trajectories=tuple(replace(t, turns=t.turns[-1:]) for t in group.trajectories)) for group in groups]
        )


@dataclass(frozen=True, kw_only=True)
class StitchedNetworks(ActorCritic):
    """Log-probs, old and new, from the stitched sequence."""

    previous_state: bool = False

    def packs(self, trajectories: Sequence[Trajectory]) -> list[Pack]:
        return split_into_packs(trajectories, max_tokens=1, whole=True)  # one each: the mask is dense

    def scores(self, pack: Pack, *, frozen: bool = False) -> Scores:
        return stitched_scores(
            self.policy, pack.trajectories, temperature=self.config.temperature, previous_state=self.previous_state
        )


class Stitched(RlStage):
    previous_state = False

    def __post_init__(self) -> None:
        super().__post_init__()
        networks = StitchedNetworks.make(
            self.config.model_copy(update={"old_logprobs_from": "trainer"}), self.policy.model
        )
        self.networks = replace(networks, previous_state=self.previous_state)


class StitchedWithState(Stitched):
    previous_state = True


STAGES: dict[str, type[RlStage]] = {
    "ppo_restarted": Restarted,
    "last_context": LastContext,
    "stitched": Stitched,
    "stitched_state": StitchedWithState,
}


def main() -> None:
    given = arguments()
    torch.set_num_threads(1)
    results = {"start": [result("start", 0, given)]}
    results |= {variant: [result(variant, seed, given) for seed in given.seeds] for variant in given.variants}
    budget = f"{given.steps} steps" if given.steps else f"{given.minutes:g} minutes"
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}; {budget} a run\n")
    print(table(results, given.objectives))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--minutes", type=float, help="CPU time of training, a run")
    budget.add_argument("--steps", type=int, help="steps of training, a run, however long they take")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--objectives", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument(
        "--tasks", type=int, nargs="+", default=[200, 100, 50, 25], help="evaluated, of each number of objectives"
    )
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides of every variant")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-learning"))
    given = parser.parse_args()
    if len(given.tasks) != len(given.objectives):
        parser.error(f"--tasks {given.tasks}: give one number for each of --objectives {given.objectives}")
    return given


def result(variant: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Of one run, made now unless its JSON is there."""
    path = given.out / f"{variant}-seed{seed}.json"
    settings = {
        "budget": [given.steps, given.minutes],
        "objectives": given.objectives,
        "tasks": given.tasks,
        "set": given.set,
        "overrides": VARIANTS.get(variant, []),
    }
    if path.is_file():
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["settings"] != settings:
            raise SystemExit(f"{path} was made with other settings: {found['settings']}; give another --out")
        return found
    made = {"settings": settings, "commit": commit(), "hardware": hardware(), **run(variant, seed, given)}
    given.out.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(made, indent=1).encode())
    return made


def run(variant: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Train, unless the variant is "start", and evaluate on tasks that are the same for all."""
    steps = given.steps or 100_000
    config = load_toml(
        RECIPE,
        Recipe,
        [
            f"seed={seed}",
            "workers=1",
            f"rl.curriculum=[{{steps={steps}, objectives=[2]}}]",
            *VARIANTS.get(variant, []),
            *(changed for changed in given.set if variant != "start" or not changed.startswith("rl.")),
        ],
    )
    assert config.rl is not None
    tags = resolve(config).tags
    policy = make_policy(config)
    source = config.tasks.source("train", tags)
    rollout = make_rollout(config, policy, source)
    rows: list[Mapping[str, Any]] = []
    seconds = 0.0
    if variant != "start":
        stage = STAGES.get(variant, RlStage)(policy, config.rl, rollout, source, seed)
        while len(rows) < steps and (given.steps or seconds < given.minutes * 60):
            started = time.process_time()
            with flushed_denormals():
                rows.append(stage.step(len(rows)))
            seconds += time.process_time() - started
            print(
                f"{variant}, seed {seed}: step {len(rows)}, {seconds:.0f} s, em {rows[-1]['em']:.2f}", file=sys.stderr
            )
    held_out = config.tasks.source("evaluation", tags)
    rollout = make_rollout(config, policy, held_out)
    em = {}
    for objectives, tasks in zip(given.objectives, given.tasks, strict=True):
        asked = config.evaluation.model_copy(update={"objectives": [objectives], "tasks": tasks})
        _, attempts = evaluate(rollout, held_out, asked, policy=variant)
        em[objectives] = [sum(t.per_objective("em")) / len(t.per_objective("em")) for t in attempts[objectives]]
    return {"variant": variant, "seed": seed, "steps": len(rows), "seconds": seconds, "em": em, "metrics": rows}


def table(results: Mapping[str, Sequence[Mapping[str, Any]]], objectives: Sequence[int]) -> str:
    """Markdown."""
    lines = [
        "| variant | steps | " + " | ".join(f"EM, N = {n}" for n in objectives) + " | seeds, smallest to largest |"
    ]
    lines.append("|---|--:|" + "--:|" * len(objectives) + "---|")
    for variant, runs in results.items():
        cells = [
            _cell([statistics.mean(task) for task in zip(*(_em(one, n) for one in runs), strict=True)])
            for n in objectives
        ]
        means = sorted(statistics.mean(_em(one, objectives[0])) for one in runs)
        spread = f"N = {objectives[0]}: " + " ".join(f"{mean:.3f}" for mean in means)
        steps = statistics.mean(one["steps"] for one in runs)
        lines.append(f"| {variant} | {steps:.0f} | {' | '.join(cells)} | {spread} |")
    return "\n".join(lines)


def _em(one: Mapping[str, Any], objectives: int) -> list[float]:
    """Of each task; JSON has made a string of the number of objectives."""
    return one["em"].get(str(objectives)) or one["em"][objectives]


def _cell(values: Sequence[float]) -> str:
    low, high = mean_interval(values)
    return f"{statistics.mean(values):.3f} [{low:.3f}, {high:.3f}]"


if __name__ == "__main__":
    main()
