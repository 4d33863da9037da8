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
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np
import resumable
from resumable import STEPS, Records, cell, finish, minus, scores

from mem1.api import load_recipe
from mem1.engines.base import Completion, Engine
from mem1.engines.device import flushed_denormals
from mem1.engines.local import LocalEngine
from mem1.evaluation.runner import evaluate
from mem1.policy.policy import Policy, load_policy, make_policy
from mem1.policy.protocol import resolve
from mem1.recipe.recipe import Recipe
from mem1.training.rl import RlStage
from mem1.training.train import make_rollout

TRAINED = 2
"""Questions per task."""
ENTRIES = {"openai": "atlas_openai:run", "langchain": "atlas_langchain:run", "agents_sdk": "atlas_agents_sdk:run"}
ARMS = ("own", *ENTRIES)
PLAIN = ('protocol.base="paper"', 'protocol.layout="<{result}> {text} </{result}>"', "budget.force_answer=false")


def main(arguments: Sequence[str] | None = None) -> None:
    given = parser().parse_intermixed_args(arguments)
    finish([Run(arm, seed, given) for seed in given.seeds for arm in given.arms], given, table, ARMS)


def parser() -> argparse.ArgumentParser:
    made = resumable.parser(__doc__, out="runs/agents-elsewhere")
    made.add_argument("--tokens", type=int, default=600_000, help="sampled tokens of training, a run")
    made.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    made.add_argument("--tasks", type=int, default=200, help="evaluated, of two questions")
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


class Run(resumable.Run):
    """One arm and seed."""

    compared = ("recipe", "overrides", "tokens", "tasks")

    @cached_property
    def config(self) -> Recipe:
        curriculum = f"rl.curriculum=[{{steps={STEPS}, objectives=[{TRAINED}]}}]"
        budget = ("budget.completion_per_objective=8", "budget.completion_extra=32")
        arm: tuple[str, ...] = ()
        if self.row in ENTRIES:
            arm = ('chat.calls="tags"', f'agent.entry="{ENTRIES[self.row]}"', "agent.concurrency=96")
        fixed = (f"seed={self.seed}", "workers=1", curriculum, *budget, *PLAIN, *arm)
        return load_recipe(self.given.recipe, *self.given.overrides, *fixed)

    @cached_property
    def tags(self) -> Any:
        return resolve(self.config).tags

    def rollout(self, policy: Policy, source: Any) -> tuple[Any, Timed]:
        engine = Timed(LocalEngine(policy.model, policy.codec, self.tags.stop_strings))
        return make_rollout(self.config, policy, source, engine=engine), engine

    def train(self) -> dict[str, Any]:
        assert self.config.rl is not None
        policy = make_policy(self.config)
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
        policy.save(self.policy_folder)
        return {"trained": vars(used)}

    def evaluate(self) -> dict[str, Any]:
        source = self.config.tasks.source("evaluation", self.tags)
        asked = self.config.evaluation.model_copy(update={"objectives": (TRAINED,), "tasks": self.given.tasks})
        folder = self.given.out / "evaluation" / self.name
        rollout, _ = self.rollout(load_policy(self.policy_folder), source)
        _, found = evaluate(rollout, source, asked, policy=self.row, folder=folder, settings={"run": self.name})
        known, key = scores({str(TRAINED): found[TRAINED]}), str(TRAINED)
        return {"em": known["em"][key], "questions": known["questions"][key], "tasks": known["tasks"]}


def table(records: Records) -> str:
    """Markdown."""
    heads = ("", "seeds", f"EM, N = {TRAINED}", "minus `own`", "tokens", "steps", "log-probs differ by", "ms per call")
    lines = [f"| {' | '.join(heads)} |", f"|---|{'--:|' * (len(heads) - 1)}"]
    ems = {arm: [run["em"] for run in runs] for arm, runs in records.items()}
    for arm, runs in records.items():
        questions = runs[0]["questions"]
        less = "" if arm == "own" or "own" not in ems else minus(ems[arm], ems["own"], questions)
        trained = [run["trained"] for run in runs]
        overhead = sum(t["rollout_s"] - t["engine_s"] for t in trained) / sum(t["calls"] for t in trained)
        cells = (
            *(arm, str(len(runs)), cell(ems[arm], questions), less),
            f"{np.mean([t['tokens'] for t in trained]):,.0f}",
            f"{np.mean([t['steps'] for t in trained]):.0f}",
            f"{max(t['sampler_trainer_max'] for t in trained):.1e}",
            f"{1000 * overhead:.1f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
