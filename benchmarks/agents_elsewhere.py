"""An agent written elsewhere against our own loop: trained from the same start, on as many sampled tokens.

    python benchmarks/agents_elsewhere.py --seeds 0 1 2 --out runs/agents-elsewhere
    python benchmarks/agents_elsewhere.py --tokens 5000 --seeds 0 --tasks 8 --out runs/try rl.tasks_per_step=2
    python benchmarks/agents_elsewhere.py --print runs/agents-elsewhere

    own             our loop, with constant memory
    openai          the same agent with the plain openai client (atlas_openai.py)
    langchain       with LangChain (atlas_langchain.py)
    agents_sdk      with the OpenAI Agents SDK (atlas_agents_sdk.py)

All train the recipe's policy by its [rl] on tasks of two questions until they have sampled `--tokens`, and are
evaluated greedily, each by its own means. Results have no hint and no answer is forced, since the agents know neither.

`<out>/<arm>-seed<S>.json` records a run with its exact match on every question; one that stands there is not made
again, and one that was killed after its training is only evaluated, so the command can be repeated at any time.
Prints a Markdown table: exact match as mean over seeds with its 95 % interval, the difference from `own`, tokens, the
largest difference between the log-probabilities of sampler and trainer, and the overhead: wall time of the rollouts
beyond the engine's, per call of the policy, for all that happens at the same time. The three frameworks need
`pip install openai langchain langchain-openai openai-agents`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from machine import commit, hardware

from mem1.api import load_recipe
from mem1.durable import write_file
from mem1.engines.base import Completion, Engine
from mem1.engines.device import flushed_denormals
from mem1.engines.local import LocalEngine
from mem1.evaluation.intervals import difference_interval, mean_interval, seeds_interval
from mem1.evaluation.metrics import em_by_question
from mem1.evaluation.runner import evaluate
from mem1.protocol import vocabulary
from mem1.tasks.compose import question_keys
from mem1.training.loop.recipe import Recipe
from mem1.training.loop.rl import RlStage
from mem1.training.loop.train import make_rollout
from mem1.training.weights.policy import Policy, load_policy, make_policy

TRAINED = 2
"""Questions per task."""
STEPS = 100_000
"""More than the tokens allow."""
ENTRIES = {"openai": "atlas_openai:run", "langchain": "atlas_langchain:run", "agents_sdk": "atlas_agents_sdk:run"}
ARMS = ("own", *ENTRIES)
PLAIN = ('vocabulary.base="paper"', 'vocabulary.layout="<{result}> {text} </{result}>"', "budget.force_answer=false")


def main(arguments: Sequence[str] | None = None) -> None:
    given = parser().parse_intermixed_args(arguments)
    if given.print is not None:
        print(table(read_records(given.print)))
        return
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    for seed in given.seeds:
        for arm in given.arms:
            Run(arm, seed, given).finish()
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}\n")
    print(table(read_records(given.out)))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("overrides", nargs="*", metavar="key=value", help="settings of the recipe")
    made.add_argument("--recipe", default="atlas-quick")
    made.add_argument("--tokens", type=int, default=600_000, help="sampled tokens of training, a run")
    made.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    made.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    made.add_argument("--tasks", type=int, default=200, help="evaluated, of two questions")
    made.add_argument("--out", type=Path, default=Path("runs/agents-elsewhere"))
    made.add_argument("--print", type=Path, metavar="FOLDER", help="only print the table of the records in it")
    return made


@dataclass
class Timed:
    """An engine that counts its time."""

    engine: Engine
    seconds: float = 0.0

    def complete(self, contexts: Sequence[Sequence[int]], **options: Any) -> list[Completion]:
        started = time.perf_counter()
        try:
            return self.engine.complete(contexts, **options)
        finally:
            self.seconds += time.perf_counter() - started


@dataclass
class Trained:
    """What training has used."""

    steps: int = 0
    tokens: int = 0
    calls: int = 0
    rollout_s: float = 0.0
    engine_s: float = 0.0
    sampler_trainer_max: float = 0.0
    em: list[float] = field(default_factory=list)
    """Of the attempts of each step."""


@dataclass(frozen=True)
class Run:
    """One arm and seed."""

    arm: str
    seed: int
    given: argparse.Namespace

    @property
    def name(self) -> str:
        return f"{self.arm}-seed{self.seed}"

    @property
    def record(self) -> Path:
        return self.given.out / f"{self.name}.json"

    @property
    def settings(self) -> dict[str, Any]:
        """What a record must agree with to be used again."""
        return {name: getattr(self.given, name) for name in ("recipe", "overrides", "tokens", "tasks")}

    @cached_property
    def config(self) -> Recipe:
        curriculum = f"rl.curriculum=[{{steps={STEPS}, objectives=[{TRAINED}]}}]"
        budget = ("budget.completion_per_objective=8", "budget.completion_extra=32")
        arm: tuple[str, ...] = ()
        if self.arm in ENTRIES:
            arm = ('chat.calls="tags"', f'agent.entry="{ENTRIES[self.arm]}"', "agent.concurrency=96")
        fixed = (f"seed={self.seed}", "workers=1", curriculum, *budget, *PLAIN, *arm)
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
            policy = make_policy(self.config, self.tags)
            used = self.train(policy)
            policy.save(self.given.out / self.name)
            done = {"settings": self.settings, "trained": vars(used), "commit": commit(), "hardware": hardware()}
            self._write(done)
        self._write({**done, **self.evaluated(load_policy(self.given.out / self.name))})

    @cached_property
    def tags(self) -> Any:
        return vocabulary(self.config.vocabulary)

    def _write(self, record: Mapping[str, Any]) -> None:
        write_file(self.record, json.dumps(record).encode())

    def rollout(self, policy: Policy, source: Any) -> tuple[Any, Timed]:
        engine = Timed(LocalEngine(policy.model, policy.codec, self.tags.stop_strings))
        return make_rollout(self.config, policy, source, self.tags, engine=engine), engine

    def train(self, policy: Policy) -> Trained:
        assert self.config.rl is not None
        source = self.config.tasks.source("train", self.tags)
        rollout, engine = self.rollout(policy, source)
        stage, used = RlStage(policy, self.config.rl, rollout, source, self.seed), Trained()
        while used.tokens < self.given.tokens:
            with flushed_denormals():
                row = stage.step(used.steps)
            attempts = [attempt for group in stage.groups for attempt in group.trajectories]
            used.steps += 1
            used.tokens += sum(attempt.num_completion_tokens for attempt in attempts)
            used.calls += sum(len(attempt.turns) for attempt in attempts)
            used.rollout_s += stage.timings["rollout"]
            used.engine_s = engine.seconds
            difference, em = cast(float, row["sampler_trainer_max"] or 0.0), cast(float, row["em"])
            used.sampler_trainer_max = max(used.sampler_trainer_max, difference)
            used.em.append(em)
            print(f"{self.name}: step {used.steps}, {used.tokens:,} tokens, em {em:.3f}", file=sys.stderr)
        return used

    def evaluated(self, policy: Policy) -> dict[str, Any]:
        """Exact match by task and question; which questions are the same, and a digest of the tasks."""
        source = self.config.tasks.source("evaluation", self.tags)
        asked = self.config.evaluation.model_copy(update={"objectives": (TRAINED,), "tasks": self.given.tasks})
        folder = self.given.out / "evaluation" / self.name
        rollout, _ = self.rollout(policy, source)
        _, found = evaluate(rollout, source, asked, policy=self.arm, folder=folder, settings={"run": self.name})
        attempts = found[TRAINED]
        keys = [question_keys(attempt.task) for attempt in attempts if attempt.task is not None]
        numbers: dict[str, int] = {}
        return {
            "em": [em_by_question(attempt) for attempt in attempts],
            "questions": [[numbers.setdefault(key, len(numbers)) for key in task] for task in keys],
            "tasks": hashlib.blake2b(repr(keys).encode(), digest_size=8).hexdigest(),
        }


Records = dict[str, list[dict[str, Any]]]
"""Finished runs by arm, in the order of the rows."""


def read_records(folder: Path) -> Records:
    """The finished runs of a folder. Raises SystemExit if there are none, or runs on different tasks."""
    found: Records = {}
    for arm in ARMS:
        for path in sorted(folder.glob(f"{arm}-seed*.json")):
            record = json.loads(path.read_text(encoding="utf-8"))
            if "em" in record:
                found.setdefault(arm, []).append(record)
    if not found:
        raise SystemExit(f"{folder} has no finished run")
    if len({record["tasks"] for runs in found.values() for record in runs}) > 1:
        raise SystemExit(f"the runs in {folder} attempted different tasks")
    return found


def table(records: Records) -> str:
    """Markdown."""
    heads = ("", "seeds", f"EM, N = {TRAINED}", "minus `own`", "tokens", "steps", "log-probs differ by", "ms per call")
    lines = [f"| {' | '.join(heads)} |", f"|---|{'--:|' * (len(heads) - 1)}"]
    for arm, runs in records.items():
        minus = "" if arm == "own" or "own" not in records else _minus(runs, records["own"])
        trained = [run["trained"] for run in runs]
        overhead = sum(t["rollout_s"] - t["engine_s"] for t in trained) / sum(t["calls"] for t in trained)
        cells = (
            *(arm, str(len(runs)), _em(runs), minus),
            f"{np.mean([t['tokens'] for t in trained]):,.0f}",
            f"{np.mean([t['steps'] for t in trained]):.0f}",
            f"{max(t['sampler_trainer_max'] for t in trained):.1e}",
            f"{1000 * overhead:.1f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _em(runs: Sequence[Mapping[str, Any]]) -> str:
    values, questions = [run["em"] for run in runs], runs[0]["questions"]
    over = (
        seeds_interval(values, questions=questions) if len(runs) > 1 else mean_interval(values[0], questions=questions)
    )
    return f"{np.mean(values):.3f} [{over[0]:.3f}, {over[1]:.3f}]"


def _minus(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> str:
    mine, others = ([run["em"] for run in side] for side in (ours, theirs))
    low, high = difference_interval(mine, others, questions=ours[0]["questions"])
    return f"{np.mean(mine) - np.mean(others):+.3f} [{low:+.3f}, {high:+.3f}]"


if __name__ == "__main__":
    main()
