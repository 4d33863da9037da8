"""Reinforcement learning against supervised fine-tuning, from the same start, in the same processor time.

    python benchmarks/rl_against_sft.py --minutes 1 --seeds 0 1 2 --out runs/rl-against-sft
    python benchmarks/rl_against_sft.py --recipe reader/train tasks.corpus=clozes model.path=warm-start/policy
    python benchmarks/rl_against_sft.py --print benchmarks/results/rl-against-sft/atlas

    rl              the recipe's [rl], on tasks of two questions
    sft             AdamW on recorded attempts of the scripted expert at such tasks, through `[sft] trajectories`
    sft_all         the same at tasks of all sizes from 1 to the largest evaluated
    distilled       the same at tasks of two questions on attempts of the policy of `rl`, of the same seed
    sft_then_rl     half the time as `sft`, then half as `rl`
    rl_format       `rl` with the reward `with_format`, one more for an attempt that ends with an answer

All start from the policy of the recipe (by default the shipped one, whose habits are bad), draw their tasks from the
same worlds or documents, and stop after the first step that ends past their time: processor time of one process on one
thread, without recording and evaluation. SFT trains only attempts with every answer right.

`<out>/<variant>-seed<S>.json` records a run with its exact match on every question. A run that stands there is not made
again, and one that was killed after its training is only evaluated, so the command can be repeated after any
interruption, and several processes may share out the seeds. Beside it are the trained policy (`<variant>-seed<S>`), the
recorded attempts (`<variant>-seed<S>.jsonl`), and those of the evaluation. Prints a Markdown table of exact match per
question: mean over seeds, and the 95 % interval over seeds and tasks (over tasks, for a row without seeds).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import resumable
from resumable import STEPS, Records, cell, finish, minus, scores
from stages import rl_stage

from mem1.api import load_recipe
from mem1.engines.base import Sampling, ScriptedEngine
from mem1.engines.device import flushed_denormals
from mem1.evaluation.runner import evaluate
from mem1.policy.policy import Policy, load_policy, make_policy
from mem1.policy.protocol import ResolvedProtocol
from mem1.protocol import PAPER
from mem1.recipe.recipe import Recipe
from mem1.recipe.supervised import Sft
from mem1.records import Ended, Task, Trajectory
from mem1.training.recorded import read_recorded
from mem1.training.rl import RlStage
from mem1.training.supervised import SftStage
from mem1.training.train import make_rollout
from mem1.trajectory_files import write_trajectories

TRAINED = 2
"""Questions per task in training, as in the paper."""
VARIANTS = ("rl", "sft", "sft_all", "distilled", "sft_then_rl", "rl_format")
ENDS = ("start", "expert")
"""Rows without training, and so without seeds."""
ROWS = ("start", *VARIANTS, "expert")


def with_format(task: Task, attempt: Trajectory) -> float:
    """The number of right answers, and 1 for an attempt that ends with an answer in the right tags."""
    return (attempt.reward or 0.0) + (attempt.ended is Ended.ANSWERED)


def main(arguments: Sequence[str] | None = None) -> None:
    given = parser().parse_intermixed_args(arguments)
    runs = [Run(end, 0, given) for end in ENDS]
    runs += [Run(variant, seed, given) for variant in given.variants for seed in given.seeds]
    finish(runs, given, table, ROWS)


def parser() -> argparse.ArgumentParser:
    made = resumable.parser(__doc__, out="runs/rl-against-sft")
    made.add_argument("--minutes", type=float, default=3.0, help="processor time of training, a run")
    made.add_argument("--variants", nargs="*", choices=VARIANTS, default=["rl", "sft", "sft_all", "distilled"])
    made.add_argument("--recorded", type=int, default=400, help="tasks attempted for a file of recorded attempts")
    made.add_argument("--sft-learning-rate", type=float, default=1e-3)
    made.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="questions per evaluated task")
    made.add_argument("--tasks", type=int, nargs="+", default=[200, 200, 100, 50, 25], help="evaluated, by size")
    return made


class Run(resumable.Run):
    """One variant and seed."""

    compared = ("recipe", "overrides", "minutes", "recorded", "sft_learning_rate", "sizes", "tasks")

    @cached_property
    def config(self) -> Recipe:
        reward = ["tasks.reward=rl_against_sft:with_format"] if self.row == "rl_format" else []
        curriculum = f"rl.curriculum=[{{steps={STEPS}, objectives=[{TRAINED}]}}]"
        fixed = [f"seed={self.seed}", "workers=1", curriculum, *reward]
        return load_recipe(self.given.recipe, *self.given.overrides, *fixed)

    def train(self) -> dict[str, Any]:
        """Optimiser steps, and seconds of processor time."""
        if self.row in ENDS:
            return {"steps": 0, "seconds": 0.0}
        policy = make_policy(self.config)
        stages = {
            "rl": [self.reinforced],
            "rl_format": [self.reinforced],
            "sft_then_rl": [self.fine_tuned, self.reinforced],
        }.get(self.row, [self.fine_tuned])
        steps, seconds = 0, 0.0
        for make in stages:
            more = trained(make(policy), self.given.minutes * 60 / len(stages), self.name)
            steps, seconds = steps + more[0], seconds + more[1]
        policy.save(self.policy_folder)
        return {"steps": steps, "seconds": seconds}

    def reinforced(self, policy: Policy) -> RlStage:
        return rl_stage(self.config, policy)

    def fine_tuned(self, policy: Policy) -> SftStage:
        """A stage on the attempts that the run's file has; they are recorded first."""
        path = self.given.out / f"{self.name}.jsonl"
        if not path.is_file():
            write_trajectories(path, self.recorded(policy))
        # a constant rate, since time ends the run
        sft = Sft(
            steps=10 + int(300 * self.given.minutes),  # more than time allows
            trajectories=(str(path),),
            min_reward=1.0,
            tokens=4096,
            pack_tokens=4096,
            optimizer="adamw",
            learning_rate=self.given.sft_learning_rate,
            decay=0.0,
        )
        found = read_recorded(sft, policy.dialogue(ResolvedProtocol(tags=PAPER)))
        print(f"{path.name}: {found}", file=sys.stderr)
        return SftStage(policy, sft, lambda: found.trajectories, self.seed)

    def recorded(self, policy: Policy) -> list[Trajectory]:
        """Attempts at training tasks, with the share of right answers as reward."""
        config = self.config.model_copy(update={"tasks": self.config.tasks.model_copy(update={"reward": "mean"})})
        source = config.tasks.source("train", PAPER)
        sizes = range(1, max(self.given.sizes) + 1) if self.row == "sft_all" else [TRAINED]
        each, seed = max(1, self.given.recorded // len(sizes)), self.seed + 17
        asked = [task for size in sizes for task in source.tasks(objectives=size, count=each, seed=seed)]
        if self.row == "distilled":
            teacher = load_policy(self.given.out / f"rl-seed{self.seed}")
            return make_rollout(config, teacher, source)(asked, sampling=Sampling(seed=self.seed))
        expert = config.tasks.expert(asked, source.environment, PAPER, seed=self.seed)
        engine = ScriptedEngine(policy.codec, expert)
        return make_rollout(config, policy, source, engine=engine)(asked, sampling=Sampling(seed=self.seed))

    def evaluate(self) -> dict[str, Any]:
        policy = make_policy(self.config) if self.row in ENDS else load_policy(self.policy_folder)
        source = self.config.tasks.source("evaluation", PAPER)
        rollout = make_rollout(self.config, policy, source)
        attempts: dict[str, list[Trajectory]] = {}
        for size, count in zip(self.given.sizes, self.given.tasks, strict=True):
            asked = self.config.evaluation.model_copy(update={"objectives": (size,), "tasks": count})
            if self.row == "expert":
                shown = source.tasks(objectives=size, count=count, seed=asked.seed)
                expert = self.config.tasks.expert(shown, source.environment, PAPER, seed=0)
                rollout = replace(rollout, engine=ScriptedEngine(policy.codec, expert))
            # what a killed process attempted is kept, in a folder of its own, as a process holds the one it writes to
            folder = self.given.out / "evaluation" / self.name
            _, found = evaluate(rollout, source, asked, policy=self.row, folder=folder, settings={"run": self.name})
            attempts[str(size)] = found[size]
        return scores(attempts)


def trained(stage: RlStage | SftStage, seconds: float, name: str) -> tuple[int, float]:
    """Steps until the time is over, and seconds of processor time."""
    steps, used = 0, 0.0
    while used < seconds and steps < stage.steps:
        started = time.process_time()
        with flushed_denormals():
            row = stage.step(steps)
        steps, used = steps + 1, used + time.process_time() - started
        print(f"{name}: {stage.name} step {steps}, {used:.0f} s, {row.get('em', row['loss']):.3f}", file=sys.stderr)
    return steps, used


def table(records: Records) -> str:
    """Markdown."""
    sizes = list(next(iter(records.values()))[0]["em"])
    lines = [
        f"| | seeds | steps | {' | '.join(f'EM, N = {size}' for size in sizes)} | minus `rl`, N = {sizes[-1]} |",
        "|---|--:|--:|" + "--:|" * (len(sizes) + 1),
    ]
    for variant, runs in records.items():
        ems = {size: [run["em"][size] for run in runs] for size in sizes}
        questions = runs[0]["questions"]
        cells = [cell(ems[size], questions[size]) for size in sizes]
        steps, less = sum(run["steps"] for run in runs) / len(runs), ""
        if variant not in (*ENDS, "rl") and "rl" in records:
            size = sizes[-1]
            less = minus(ems[size], [run["em"][size] for run in records["rl"]], questions[size])
        lines.append(f"| {variant} | {len(runs)} | {steps:.0f} | {' | '.join(cells)} | {less} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
