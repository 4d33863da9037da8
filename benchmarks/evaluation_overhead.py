"""What evaluating costs besides model and retrieval: turns a second on one core.

    python benchmarks/evaluation_overhead.py                    prints a Markdown table, in half a minute
    python benchmarks/evaluation_overhead.py --profile          and where the time goes

Tasks of Atlas; the engine follows a script (a state of 21 words and a search, and when it must, an answer), and the
environment shows two passages of a world at once: turns as long as those of Atlas's expert. All else is what
`mem1 eval --out` does: contexts, decoding, parsing, spans, observations, scores, records on the disk, the row. Seconds
are those of the processor, not of the clock; the best of the repeats counts. The last column leaves out the engine as
well, which decodes each context and encodes what the script writes: a model in this process does neither.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import tempfile
import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from machine import commit, hardware

from mem1.dialogue import TagDialogue
from mem1.engines.base import Completion, Engine, Sampling, ScriptedEngine
from mem1.engines.codec import Codec
from mem1.envs.atlas import AtlasTasks
from mem1.envs.base import Action, Environment, Observation, Outcome, TaskSource
from mem1.evaluation.runner import evaluate
from mem1.memory import memory_policy
from mem1.policy.folders import policy_folder
from mem1.policy.tokenizers import bpe_tokenizer
from mem1.protocol import PAPER
from mem1.recipe.evaluation import Evaluation
from mem1.records import Task
from mem1.rollout import Rollout
from mem1.tasks.atlas import make_world

STATE = "Moru Kest 's mayor is Duna Stollov . Q1 Ana Brul Q2 Velan Toris now Q3 Duna Stollov 's employer ? Q3 then Q4"
SEARCH = f"<IS> {STATE} </IS> <query> Duna Stollov 's employer </query>"
ANSWER = "Q1 Ana Brul ; Q2 Velan Toris </answer>"


def script(context: str) -> str:
    """Search until the answer must come."""
    return ANSWER if context.rstrip().endswith("<answer>") else SEARCH


class Timed:
    """An engine, and the seconds of the processor that it takes."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.seconds = engine, 0.0

    def complete(
        self, contexts: Sequence[Sequence[int]], *, max_tokens: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        started = time.process_time()
        completions = self.engine.complete(contexts, max_tokens=max_tokens, sampling=sampling)
        self.seconds += time.process_time() - started
        return completions


class AtOnce:
    """Shows two passages after the other, whatever is searched; scores as the source's own environment does."""

    def __init__(self, passages: Sequence[str], scorer: Environment) -> None:
        self.passages, self.scorer = cycle(passages), scorer

    def observe(self, requests: Sequence[Action]) -> list[Observation]:
        return [Observation(text=f"{next(self.passages)}\n{next(self.passages)}") for _ in requests]

    def score(self, task: Task, answer: str) -> Outcome:
        return self.scorer.score(task, answer)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--objectives", type=int, nargs="+", default=[2, 16])
    arguments.add_argument("--contexts", nargs="+", default=["constant", "full"])
    arguments.add_argument("--turns", type=int, default=4000, help="of one measurement, about")
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--profile", action="store_true")
    given = arguments.parse_args()
    source = AtlasTasks(worlds=2).source("evaluation", PAPER)
    passages = [p.text for p in make_world(0, split="evaluation", entities=400).passages()]
    environment = AtOnce(passages, source.environment)
    codecs = {
        "one token a word": Codec.load(policy_folder("shipped")),
        "byte pairs": Codec(bpe_tokenizer([SEARCH, ANSWER, *passages], vocab_size=2000, tags=PAPER)),
    }
    print(f"command: python benchmarks/evaluation_overhead.py; commit {commit()}; {hardware()}\n")
    print(
        "| tokens | context | objectives | turns of a task | tokens of a turn | turns a second | without the engine |"
    )
    print("|---|---|--:|--:|--:|--:|--:|")
    for name, codec in codecs.items():
        for context in given.contexts:
            engine = Timed(ScriptedEngine(codec, script))
            rollout = Rollout(
                engine=engine,
                dialogue=TagDialogue(codec),
                environment=environment,
                context=memory_policy(context),
            )
            for objectives in given.objectives:
                (task,) = source.tasks(objectives=objectives, count=1, seed=0)
                asked = Evaluation(objectives=(objectives,), tasks=max(1, given.turns // task.turn_limit))
                measured = [measure(rollout, engine, source, asked, given.profile) for _ in range(given.repeats)]
                first = measured[0]
                print(
                    f"| {name} | {context} | {objectives} | {first.turns / asked.tasks:.0f} "
                    f"| {first.tokens / first.turns:.0f} | {first.turns / min(m.seconds for m in measured):,.0f} "
                    f"| {first.turns / min(m.seconds - m.of_engine for m in measured):,.0f} |",
                    flush=True,
                )


class Measured(NamedTuple):
    """One evaluation; seconds are the processor's."""

    seconds: float
    of_engine: float
    turns: int
    tokens: int


def measure(rollout: Rollout, engine: Timed, source: TaskSource, asked: Evaluation, profile: bool) -> Measured:
    """Evaluate into a folder of its own."""
    profiler = cProfile.Profile(time.process_time)
    engine.seconds = 0.0
    with tempfile.TemporaryDirectory() as folder:
        if profile:
            profiler.enable()
        started = time.process_time()
        _, found = evaluate(rollout, source, asked, policy="scripted", folder=Path(folder))
        seconds = time.process_time() - started
    if profile:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    turns = [turn for trajectories in found.values() for t in trajectories for turn in t.turns]
    return Measured(seconds, engine.seconds, len(turns), sum(turn.num_tokens for turn in turns))


if __name__ == "__main__":
    main()
