"""Reinforcement learning against supervised fine-tuning, from the same start, in the same processor time.

    python benchmarks/rl_against_sft.py --minutes 3 --seeds 0 1 2 --out runs/rl-against-sft
    python benchmarks/rl_against_sft.py --minutes 0.1 --seeds 0 --tasks 2 2 2 2 2 --recorded 8 --out runs/small

    rl              GRPO on tasks of two questions, with the settings of atlas-quick
    sft             AdamW on recorded attempts of the scripted expert at such tasks, through `[sft] trajectories`
    distilled       the same on attempts of the policy of `rl`, of the same seed, that answered both questions right
    rl_format       `rl` with the reward `with_format`, one more for an attempt that ends with an answer

All start from the shipped policy, whose habits are bad, draw their tasks from the same worlds, and stop after the first
step that ends past their time: processor time of one process on one thread, without recording and evaluation. Recorded
attempts are in `<out>/<variant>-seed<S>.jsonl`, evaluated ones in `<out>/evaluation`, a record of each run in
`<out>/<variant>-seed<S>.json`; what stands there is not made again, so several processes may share out the seeds
(give --no-table to all but the last). Prints a Markdown table of exact match per question: mean over seeds, and the
95 % interval over seeds and tasks (over tasks, for a row without seeds).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from machine import commit, hardware

from mem1.configuration import load_toml
from mem1.durable import write_file
from mem1.engines.base import Sampling, ScriptedEngine
from mem1.engines.device import flushed_denormals
from mem1.evaluation.compare import over_seeds, paired_difference
from mem1.evaluation.runner import evaluate
from mem1.protocol import PAPER
from mem1.records import Ended, Task, Trajectory
from mem1.training.loop.recipe import Recipe, Sft
from mem1.training.loop.recorded import read_recorded
from mem1.training.loop.rl import RlStage
from mem1.training.loop.supervised import SftStage
from mem1.training.loop.train import make_rollout
from mem1.training.weights.policy import Policy, load_policy, make_policy
from mem1.trajectory_files import read_trajectories, write_trajectories

RECIPE = Path(__file__).parents[1] / "recipes" / "atlas-quick.toml"
SIZES = (1, 2, 4, 8, 16)
TRAINED = 2
"""Questions per task in training, as in the paper."""
STEPS = 100_000
"""Steps of RL, more than time allows."""
VARIANTS = ("rl", "sft", "distilled", "rl_format")


def with_format(task: Task, attempt: Trajectory) -> float:
    """The number of right answers, and 1 for an attempt that ends with an answer in the right tags."""
    return (attempt.reward or 0.0) + (attempt.ended is Ended.ANSWERED)


def main() -> None:
    given = arguments()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    made = {variant: [run(variant, seed, given) for seed in given.seeds] for variant in given.variants}
    if not given.no_table:
        ends = {name: [run(name, 0, given)] for name in ("start", "expert")}
        print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}\n")
        print(table({"start": ends["start"], **made, "expert": ends["expert"]}, given))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0, help="processor time of training, a run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS[:3]))
    parser.add_argument("--recorded", type=int, default=400, help="tasks attempted for a file of recorded attempts")
    parser.add_argument(
        "--tasks", type=int, nargs=len(SIZES), default=[200, 200, 100, 50, 25], help=f"evaluated with {SIZES} questions"
    )
    parser.add_argument("--no-table", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/rl-against-sft"))
    return parser.parse_args()


def run(variant: str, seed: int, given: argparse.Namespace) -> dict[str, object]:
    """A run's record: train and evaluate it, unless it stands there."""
    record = given.out / f"{variant}-seed{seed}.json"
    settings = {"minutes": given.minutes, "recorded": given.recorded, "tasks": given.tasks}
    if record.is_file():
        found = json.loads(record.read_text(encoding="utf-8"))
        if found["settings"] != settings:
            raise SystemExit(f"{record} was made with other settings: {found['settings']}; give another --out")
        return found
    config = recipe(seed, variant)
    policy, steps, seconds = make_policy(config, PAPER), 0, 0.0
    if variant in ("rl", "rl_format"):
        steps, seconds = trained(reinforced(config, policy), given.minutes, f"{variant}, seed {seed}")
        policy.save(given.out / f"{variant}-seed{seed}")
    elif variant != "start" and variant != "expert":
        steps, seconds = trained(fine_tuned(config, policy, variant, given), given.minutes, f"{variant}, seed {seed}")
    measure(config, policy, variant, seed, given)
    done = {"settings": settings, "steps": steps, "seconds": seconds, "commit": commit(), "hardware": hardware()}
    write_file(record, json.dumps(done, indent=1).encode())
    return done


def recipe(seed: int, variant: str) -> Recipe:
    reward = ["tasks.reward=rl_against_sft:with_format"] if variant == "rl_format" else []
    curriculum = f"rl.curriculum=[{{steps={STEPS}, objectives=[{TRAINED}]}}]"
    return load_toml(RECIPE, Recipe, [f"seed={seed}", "workers=1", curriculum, *reward])


def reinforced(config: Recipe, policy: Policy) -> RlStage:
    assert config.rl is not None
    source = config.tasks.source("train", PAPER)
    return RlStage(policy, config.rl, make_rollout(config, policy, source, PAPER), source, config.seed)


def fine_tuned(config: Recipe, policy: Policy, variant: str, given: argparse.Namespace) -> SftStage:
    """A stage on the attempts that the run's file has; it is recorded first."""
    path = given.out / f"{variant}-seed{config.seed}.jsonl"
    if not path.is_file():
        teacher = None if variant == "sft" else load_policy(given.out / f"rl-seed{config.seed}")
        write_trajectories(path, recorded(config, policy, teacher, given.recorded))
    # a constant rate, since time ends the run
    sft = Sft(
        steps=10 + int(300 * given.minutes),  # more than time allows
        trajectories=(str(path),),
        min_reward=TRAINED,
        tokens=4096,
        pack_tokens=4096,
        optimizer="adamw",
        learning_rate=1e-3,
        decay=0.0,
    )
    found = read_recorded(sft, policy.codec, policy.chat_template, PAPER)
    print(f"{path.name}: {found}", file=sys.stderr)
    return SftStage(policy, sft, lambda: found.trajectories, config.seed)


def recorded(config: Recipe, policy: Policy, teacher: Policy | None, tasks: int) -> list[Trajectory]:
    """Attempts at training tasks, sampled by the teacher; None: the scripted expert's."""
    source = config.tasks.source("train", PAPER)
    asked = source.tasks(objectives=TRAINED, count=tasks, seed=config.seed + 17)
    rollout = make_rollout(config, teacher or policy, source, PAPER)
    if teacher is None:
        expert = config.tasks.expert(asked, source.environment, PAPER, seed=config.seed)
        rollout = replace(rollout, engine=ScriptedEngine(policy.codec, expert))
    return rollout(asked, sampling=Sampling(seed=config.seed))


def trained(stage: RlStage | SftStage, minutes: float, name: str) -> tuple[int, float]:
    """Steps until the time is over, and seconds of processor time."""
    steps, seconds = 0, 0.0
    while seconds < minutes * 60 and steps < stage.steps:
        started = time.process_time()
        with flushed_denormals():
            row = stage.step(steps)
        steps, seconds = steps + 1, seconds + time.process_time() - started
        print(f"{name}: step {steps}, {seconds:.0f} s, {row.get('em', row['loss']):.3f}", file=sys.stderr)
    return steps, seconds


def measure(config: Recipe, policy: Policy, variant: str, seed: int, given: argparse.Namespace) -> None:
    """Attempt the evaluation tasks, which are the same for all; what an earlier process attempted is kept."""
    source = config.tasks.source("evaluation", PAPER)
    rollout = make_rollout(config, policy, source, PAPER)
    for size, tasks in zip(SIZES, given.tasks, strict=True):
        asked = config.evaluation.model_copy(update={"objectives": (size,), "tasks": tasks})
        if variant == "expert":
            shown = source.tasks(objectives=size, count=tasks, seed=asked.seed)
            expert = config.tasks.expert(shown, source.environment, PAPER, seed=0)
            rollout = replace(rollout, engine=ScriptedEngine(policy.codec, expert))
        # a folder of its own: a process holds the folder that it writes to
        folder = given.out / "evaluation" / f"{variant}-seed{seed}"
        evaluate(rollout, source, asked, policy=variant, folder=folder, settings={"run": f"{variant}-{seed}"})


def attempts(variant: str, seeds: Sequence[int], size: int, given: argparse.Namespace) -> list[list[Trajectory]]:
    folders = [given.out / "evaluation" / f"{variant}-seed{seed}" for seed in seeds]
    return [read_trajectories(folder / f"{variant}-{size}.jsonl") for folder in folders]


def table(made: dict[str, list[dict[str, object]]], given: argparse.Namespace) -> str:
    """Markdown."""
    lines = ["| | steps | " + " | ".join(f"EM, N = {size}" for size in SIZES) + f" | minus `rl`, N = {SIZES[-1]} |"]
    lines.append("|---|--:|" + "--:|" * (len(SIZES) + 1))
    for variant, runs in made.items():
        seeds = given.seeds if variant in VARIANTS else [0]
        cells = []
        for size in SIZES:
            found = over_seeds(attempts(variant, seeds, size, given))
            low, high = found.over_both or found.over_tasks
            cells.append(f"{found.mean:.3f} [{low:.3f}, {high:.3f}]")
        steps = sum(int(str(one["steps"])) for one in runs) / len(runs)
        lines.append(f"| {variant} | {steps:.0f} | {' | '.join(cells)} | {_minus_rl(variant, made, given)} |")
    return "\n".join(lines)


def _minus_rl(variant: str, made: dict[str, list[dict[str, object]]], given: argparse.Namespace) -> str:
    if variant not in VARIANTS or variant == "rl" or "rl" not in made:
        return ""
    ours, theirs = (attempts(name, given.seeds, SIZES[-1], given) for name in (variant, "rl"))
    found = paired_difference(ours, theirs)
    return f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


if __name__ == "__main__":
    main()
