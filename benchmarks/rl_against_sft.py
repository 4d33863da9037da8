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
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import commit, hardware

from mem1.api import load_recipe
from mem1.durable import write_file
from mem1.engines.base import Sampling, ScriptedEngine
from mem1.engines.device import flushed_denormals
from mem1.evaluation.intervals import difference_interval, mean_interval, seeds_interval
from mem1.evaluation.metrics import em_by_question
from mem1.evaluation.runner import evaluate
from mem1.protocol import PAPER
from mem1.records import Ended, Task, Trajectory
from mem1.tasks.compose import question_keys
from mem1.training.loop.recipe import Recipe, Sft
from mem1.training.loop.recorded import read_recorded
from mem1.training.loop.rl import RlStage
from mem1.training.loop.supervised import SftStage
from mem1.training.loop.train import make_rollout
from mem1.training.weights.policy import Policy, load_policy, make_policy
from mem1.trajectory_files import write_trajectories

TRAINED = 2
"""Questions per task in training, as in the paper."""
STEPS = 100_000
"""Steps of RL, more than time allows."""
VARIANTS = ("rl", "sft", "sft_all", "distilled", "sft_then_rl", "rl_format")
ENDS = ("start", "expert")
"""Rows without training, and so without seeds."""


def with_format(task: Task, attempt: Trajectory) -> float:
    """The number of right answers, and 1 for an attempt that ends with an answer in the right tags."""
    return (attempt.reward or 0.0) + (attempt.ended is Ended.ANSWERED)


def main(arguments: Sequence[str] | None = None) -> None:
    given = parser().parse_intermixed_args(arguments)
    if given.print is not None:
        print(table(read_records(given.print)))
        return
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    for variant in (*ENDS, *given.variants):
        for seed in [0] if variant in ENDS else given.seeds:
            Run(variant, seed, given).finish()
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}\n")
    print(table(read_records(given.out)))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("overrides", nargs="*", metavar="key=value", help="settings of the recipe")
    made.add_argument("--recipe", default="atlas-quick")
    made.add_argument("--minutes", type=float, default=3.0, help="processor time of training, a run")
    made.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    made.add_argument("--variants", nargs="*", choices=VARIANTS, default=["rl", "sft", "sft_all", "distilled"])
    made.add_argument("--recorded", type=int, default=400, help="tasks attempted for a file of recorded attempts")
    made.add_argument("--sft-learning-rate", type=float, default=1e-3)
    made.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="questions per evaluated task")
    made.add_argument("--tasks", type=int, nargs="+", default=[200, 200, 100, 50, 25], help="evaluated, by size")
    made.add_argument("--out", type=Path, default=Path("runs/rl-against-sft"))
    made.add_argument("--print", type=Path, metavar="FOLDER", help="only print the table of the records in it")
    return made


@dataclass(frozen=True)
class Run:
    """One row and seed of the table."""

    variant: str
    seed: int
    given: argparse.Namespace

    @property
    def name(self) -> str:
        return f"{self.variant}-seed{self.seed}"

    @property
    def record(self) -> Path:
        return self.given.out / f"{self.name}.json"

    @property
    def settings(self) -> dict[str, Any]:
        """What a record must agree with to be used again."""
        names = ("recipe", "overrides", "minutes", "recorded", "sft_learning_rate", "sizes", "tasks")
        return {name: getattr(self.given, name) for name in names}

    @cached_property
    def config(self) -> Recipe:
        reward = ["tasks.reward=rl_against_sft:with_format"] if self.variant == "rl_format" else []
        curriculum = f"rl.curriculum=[{{steps={STEPS}, objectives=[{TRAINED}]}}]"
        fixed = [f"seed={self.seed}", "workers=1", curriculum, *reward]
        return load_recipe(self.given.recipe, *self.given.overrides, *fixed)

    def finish(self) -> None:
        """Train and evaluate, as far as this has not been done."""
        done: dict[str, Any] = {}
        if self.record.is_file():
            done = json.loads(self.record.read_text(encoding="utf-8"))
            if done["settings"] != self.settings:
                raise SystemExit(f"{self.record} was made with other settings: {done['settings']}; give another --out")
            if "em" in done:
                return
        if not done:
            policy = make_policy(self.config, PAPER)
            steps, seconds = self.train(policy)
            if steps:
                policy.save(self.given.out / self.name)
            done = {"settings": self.settings, "steps": steps, "seconds": seconds}
            done |= {"commit": commit(), "hardware": hardware()}
            self._write(done)
        trained = load_policy(self.given.out / self.name) if done["steps"] else make_policy(self.config, PAPER)
        self._write({**done, **self.evaluated(trained)})

    def _write(self, record: Mapping[str, Any]) -> None:
        write_file(self.record, json.dumps(record).encode())

    def train(self, policy: Policy) -> tuple[int, float]:
        """Optimiser steps, and seconds of processor time."""
        if self.variant in ENDS:
            return 0, 0.0
        stages = {
            "rl": [self.reinforced],
            "rl_format": [self.reinforced],
            "sft_then_rl": [self.fine_tuned, self.reinforced],
        }.get(self.variant, [self.fine_tuned])
        steps, seconds = 0, 0.0
        for make in stages:
            more = trained(make(policy), self.given.minutes * 60 / len(stages), self.name)
            steps, seconds = steps + more[0], seconds + more[1]
        return steps, seconds

    def reinforced(self, policy: Policy) -> RlStage:
        assert self.config.rl is not None
        source = self.config.tasks.source("train", PAPER)
        return RlStage(policy, self.config.rl, make_rollout(self.config, policy, source, PAPER), source, self.seed)

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
        found = read_recorded(sft, policy.dialogue(None, PAPER))
        print(f"{path.name}: {found}", file=sys.stderr)
        return SftStage(policy, sft, lambda: found.trajectories, self.seed)

    def recorded(self, policy: Policy) -> list[Trajectory]:
        """Attempts at training tasks, with the share of right answers as reward."""
        config = self.config.model_copy(update={"tasks": self.config.tasks.model_copy(update={"reward": "mean"})})
        source = config.tasks.source("train", PAPER)
        sizes = range(1, max(self.given.sizes) + 1) if self.variant == "sft_all" else [TRAINED]
        each, seed = max(1, self.given.recorded // len(sizes)), self.seed + 17
        asked = [task for size in sizes for task in source.tasks(objectives=size, count=each, seed=seed)]
        if self.variant == "distilled":
            teacher = load_policy(self.given.out / f"rl-seed{self.seed}")
            return make_rollout(config, teacher, source, PAPER)(asked, sampling=Sampling(seed=self.seed))
        expert = config.tasks.expert(asked, source.environment, PAPER, seed=self.seed)
        engine = ScriptedEngine(policy.codec, expert)
        return make_rollout(config, policy, source, PAPER, engine=engine)(asked, sampling=Sampling(seed=self.seed))

    def evaluated(self, policy: Policy) -> dict[str, Any]:
        """Exact match by size, task and question; which questions are the same, and a digest of the tasks."""
        source = self.config.tasks.source("evaluation", PAPER)
        rollout = make_rollout(self.config, policy, source, PAPER)
        em: dict[str, list[tuple[float, ...]]] = {}
        questions: dict[str, list[list[int]]] = {}
        digest = hashlib.blake2b(digest_size=8)
        numbers: dict[str, int] = {}
        for size, count in zip(self.given.sizes, self.given.tasks, strict=True):
            asked = self.config.evaluation.model_copy(update={"objectives": (size,), "tasks": count})
            if self.variant == "expert":
                shown = source.tasks(objectives=size, count=count, seed=asked.seed)
                expert = self.config.tasks.expert(shown, source.environment, PAPER, seed=0)
                rollout = replace(rollout, engine=ScriptedEngine(policy.codec, expert))
            # what a killed process attempted is kept, in a folder of its own, as a process holds the one it writes to
            folder = self.given.out / "evaluation" / self.name
            _, found = evaluate(rollout, source, asked, policy=self.variant, folder=folder, settings={"run": self.name})
            attempts = found[size]
            em[str(size)] = [em_by_question(attempt) for attempt in attempts]
            keys = [question_keys(attempt.task) for attempt in attempts if attempt.task is not None]
            questions[str(size)] = [[numbers.setdefault(key, len(numbers)) for key in task] for task in keys]
            digest.update(repr(keys).encode())
        return {"em": em, "questions": questions, "tasks": digest.hexdigest()}


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


Records = dict[str, list[dict[str, Any]]]
"""Finished runs by variant, in the order of the rows."""


def read_records(folder: Path) -> Records:
    """The finished runs of a folder. Raises SystemExit if there are none, or runs on different tasks."""
    found: Records = {}
    for path in _in_order(folder):
        record = json.loads(path.read_text(encoding="utf-8"))
        if "em" in record:
            found.setdefault(path.stem.rpartition("-seed")[0], []).append(record)
    if not found:
        raise SystemExit(f"{folder} has no finished run")
    if len({record["tasks"] for runs in found.values() for record in runs}) > 1:
        raise SystemExit(f"the runs in {folder} attempted different tasks")
    return found


def _in_order(folder: Path) -> Iterator[Path]:
    for variant in ("start", *VARIANTS, "expert"):
        yield from sorted(folder.glob(f"{variant}-seed*.json"))


def table(records: Records) -> str:
    """Markdown."""
    sizes = list(next(iter(records.values()))[0]["em"])
    lines = [
        f"| | seeds | steps | {' | '.join(f'EM, N = {size}' for size in sizes)} | minus `rl`, N = {sizes[-1]} |",
        "|---|--:|--:|" + "--:|" * (len(sizes) + 1),
    ]
    for variant, runs in records.items():
        cells = [_cell(runs, size) for size in sizes]
        steps = sum(run["steps"] for run in runs) / len(runs)
        minus = "" if variant in (*ENDS, "rl") or "rl" not in records else _minus(runs, records["rl"], sizes[-1])
        lines.append(f"| {variant} | {len(runs)} | {steps:.0f} | {' | '.join(cells)} | {minus} |")
    return "\n".join(lines)


def _cell(runs: Sequence[Mapping[str, Any]], size: str) -> str:
    values, questions = [run["em"][size] for run in runs], runs[0]["questions"][size]
    over = (
        seeds_interval(values, questions=questions) if len(runs) > 1 else mean_interval(values[0], questions=questions)
    )
    return f"{np.mean(values):.3f} [{over[0]:.3f}, {over[1]:.3f}]"


def _minus(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]], size: str) -> str:
    mine, others = ([run["em"][size] for run in side] for side in (ours, theirs))
    low, high = difference_interval(mine, others, questions=ours[0]["questions"][size])
    return f"{np.mean(mine) - np.mean(others):+.3f} [{low:+.3f}, {high:+.3f}]"


if __name__ == "__main__":
    main()
