"""Whole trainings on one GPU, each in minutes and without a download, with their memory beside that of `mem1 plan`.

    python benchmarks/gpu_train.py warm-start --out OUT       a reader from nothing, on clozes (reader/warm-start)
    python benchmarks/gpu_train.py reader --out OUT           the same one by reinforcement learning (reader/train)
    python benchmarks/gpu_train.py reader-eval --out OUT      both at N = 1 to 16
    python benchmarks/gpu_train.py lora --out OUT             ten steps of qwen3-1.7b-lora/grpo with random weights
    ... --size tiny --device cpu                              that it runs

The shipped recipes, with the overrides that are printed. The reader's sizes: 20M (20 million parameters), 30M and 60M;
its learning rates are those of the small one and were not tuned for these. `--corpus` is a folder of documents; the
default, this repository's own documentation, gives few questions. Random weights earn no reward, so `lora` rewards
every second attempt: its numbers show what the steps cost, and nothing about learning. A training that has run for
`--minutes` stops after its step; its policy is what it had learnt by then, and the table says after how many steps.

Measured memory is the most that torch had allocated. The plan is made twice: for the most that the recipe allows, and,
where the run kept attempts, for their sizes.
"""

from __future__ import annotations

import argparse
import gzip
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from gpu import TINY
from machine import commit, hardware

import mem1
from mem1.errors import UserError
from mem1.planning.networks import KNOWN, Setup, made_model
from mem1.planning.plan import make_plan
from mem1.planning.stages import Attempts
from mem1.protocol import PAPER
from mem1.records import Task, Trajectory
from mem1.training.loop.recipe import Recipe
from mem1.training.loop.train import Progress
from mem1.training.ranks.processes import joined
from mem1.training.weights.tokenizers import bpe_tokenizer
from mem1.trajectory_files import read_trajectories

SIZES = {
    "tiny": {"hidden_size": 64, "layers": 3, "heads": 4, "feed_forward": 96, "vocab_size": 512},
    "20M": {"hidden_size": 512, "layers": 5, "heads": 8, "feed_forward": 1536, "vocab_size": 4096},
    "30M": {"hidden_size": 512, "layers": 8, "heads": 8, "feed_forward": 1536, "vocab_size": 8192},
    "60M": {"hidden_size": 640, "layers": 10, "heads": 10, "feed_forward": 1920, "vocab_size": 8192},
}
FEW = ["evaluation.tasks=2"]
"""Overrides of every tiny recipe."""
RL_FEW = [
    *FEW,
    "budget.completion_extra=8",
    "rl.tasks_per_step=2",
    "rl.group_size=2",
    "rl.curriculum=[{steps=1,objectives=[2]}]",
]


def by_number(task: Task, attempt: Trajectory) -> float:
    """Reward of attempts that earn none: every second one is right, so that a group has advantages."""
    return float(attempt.attempt % 2)


def corpus(given: argparse.Namespace) -> Path:
    """The folder of clozes, made when it is first needed."""
    folder: Path = given.out / "clozes"
    if not folder.exists():
        shares = ["--development", "0.2", "--test", "0.1"]  # a small corpus needs larger ones for N = 16
        command = [sys.executable, "-m", "mem1", "data", "cloze", str(given.corpus), "--out", str(folder), *shares]
        subprocess.run(command, check=True)
    return folder


def warm_start(given: argparse.Namespace) -> None:
    sizes = [f"model.new.{name}={value}" for name, value in SIZES[given.size].items()]
    tiny = [*FEW, "sft.steps=2", "sft.tasks=4", "sft.objectives=[1]"] if given.size == "tiny" else []
    train("reader/warm-start", given, "warm-start", f"tasks.corpus={corpus(given)}", *sizes, *tiny)


def reader(given: argparse.Namespace) -> None:
    tiny = RL_FEW if given.size == "tiny" else []
    start = given.out / "warm-start" / "policy"
    train("reader/train", given, "reader", f"tasks.corpus={corpus(given)}", f"model.path={start}", *tiny)


def reader_eval(given: argparse.Namespace) -> None:
    objectives, tasks = ((1, 2), 2) if given.size == "tiny" else ((1, 2, 4, 8, 16), 50)
    print("| policy | N | EM | F1 | turns | peak tokens |\n|---|--:|--:|--:|--:|--:|")
    for name in ("warm-start", "reader"):
        path = given.out / name / "policy"
        recipe = loaded("reader/train", given, f"tasks.corpus={corpus(given)}", f"model.path={path}")
        for row in mem1.evaluate(recipe, path, objectives=objectives, tasks=tasks):
            print(
                f"| {name} | {row.objectives} | {row.em:.2f} [{row.em_low:.2f}, {row.em_high:.2f}] | {row.f1:.2f} "
                f"| {row.turns:.1f} | {row.peak_tokens:.0f} |",
                flush=True,
            )


def lora(given: argparse.Namespace) -> None:
    folder, clozes = given.out / "random", corpus(given)
    if not (folder / "config.json").exists():
        network = TINY if given.size == "tiny" else KNOWN["qwen3-1.7b"]
        made_model(network).save_pretrained(folder)
        with gzip.open(clozes / "train.jsonl.gz", "rt", encoding="utf-8") as lines:
            bpe_tokenizer(lines, vocab_size=8192, tags=PAPER).save(str(folder / "tokenizer.json"))
    questions = [
        f"tasks.{key}={clozes}/{part}.jsonl.gz" for key, part in (("questions", "test"), ("train_questions", "train"))
    ]
    steps = RL_FEW if given.size == "tiny" else ["rl.curriculum=[{steps=10,objectives=[2]}]"]
    more = [f"tasks.corpus={clozes}", *questions, "tasks.reward=gpu_train:by_number", f"model.path={folder}"]
    more.append("distributed=null")  # one GPU: the policy samples as it is trained, without a copy
    train("qwen3-1.7b-lora/grpo", given, "lora", *more, *steps)


def loaded(name: str, given: argparse.Namespace, *overrides: str) -> Recipe:
    more = [f"model.device={given.device}", "workers=1", *overrides]
    print(f"recipe {name} {' '.join(more)}")
    return mem1.load_recipe(name, *more)


def train(name: str, given: argparse.Namespace, folder: str, *overrides: str) -> None:
    """Train the recipe into a folder of `--out`; prints time, the last metrics, and memory beside the plan's."""
    recipe, out = loaded(name, given, *overrides), given.out / folder
    until = time.monotonic() + 60 * given.minutes
    done: list[Progress] = []

    def on_step(progress: Progress) -> None:
        done.append(progress)
        if time.monotonic() > until and progress.step < progress.steps:
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C: this step was the last

    if given.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    with joined(grouped=recipe.distributed is not None, device=given.device) as ranks:
        finished = mem1.train(recipe, out, on_step=on_step, ranks=ranks)
    wall = time.perf_counter() - started
    if not finished.complete:
        finished.policy.save(out / "policy")
    measured = "-" if given.device == "cpu" else f"{torch.cuda.max_memory_allocated() / 1e9:.2f}"
    steady = sorted(p.seconds for p in done[1:]) or [done[0].seconds]
    print(
        "\n| part | parameters | steps | wall, s | median step, s | measured, GB | plan, GB | plan for its sizes, GB |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    cells = [
        folder,
        f"{finished.policy.model.num_parameters():,}",
        f"{done[-1].step} of {done[-1].steps}",
        f"{wall:.0f}",
        f"{steady[len(steady) // 2]:.2f}",
        measured,
        planned(recipe),
        planned(recipe, kept(out)),
    ]
    print(f"| {' | '.join(cells)} |")
    numbers = {key: value for key, value in done[-1].metrics.items() if isinstance(value, float)}
    print("last step:", ", ".join(f"{key} {value:.4g}" for key, value in numbers.items()))


def kept(out: Path) -> Sequence[Trajectory]:
    """The attempts that a run kept."""
    files = sorted((out / "trajectories").glob("*.jsonl"))
    return [t for file in files for t in read_trajectories(file) if t.turns]


def planned(recipe: Recipe, attempts: Sequence[Trajectory] | None = None) -> str:
    """Gigabytes of the largest stage, for the most that the recipe allows or for these attempts."""
    if attempts is not None and not attempts:
        return "-"
    known = Attempts() if attempts is None else Attempts(recorded=tuple(attempts))
    plan = make_plan(recipe, setup=Setup.of(recipe), attempts=known)
    return f"{max(stage.memory.peak for stage in plan.stages) / 1e9:.2f}"


PARTS = {"warm-start": warm_start, "reader": reader, "reader-eval": reader_eval, "lora": lora}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, default=Path(__file__).parents[1] / "docs")
    parser.add_argument("--size", choices=list(SIZES), default="30M")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=8.0, help="after which a training stops")
    given = parser.parse_args()
    on = torch.cuda.get_device_name() if given.device != "cpu" else hardware()
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {on}, torch {torch.__version__}")
    given.out.mkdir(parents=True, exist_ok=True)
    try:
        PARTS[given.part](given)
    except UserError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
