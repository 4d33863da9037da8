"""Runs for tests of reports: attempts of experts in Atlas under every memory, and hostile texts."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from mem1.dialogue import TagDialogue
from mem1.engines.base import Sampling, ScriptedEngine
from mem1.engines.codec import Codec
from mem1.envs.atlas import AtlasTasks
from mem1.envs.base import TaskSource
from mem1.evaluation.metrics import summarize
from mem1.evaluation.report.rows import Attempts, Run
from mem1.evaluation.tokens import ModelShape
from mem1.memory import memory_policy
from mem1.policy.tokenizers import atlas_tokenizer
from mem1.protocol import PAPER
from mem1.records import Question, Task, Trajectory, Turn
from mem1.rollout import Rollout
from mem1.tasks.atlas import Expert, Laziness

CODEC = Codec(atlas_tokenizer(PAPER))
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028 &amp; é"
"""Must be shown as it stands here."""
SHAPE = ModelShape(parameters=1000, output_parameters=100, layers=2, width=8)
LAZY = Laziness(stop=1.0, shortcut=1.0)


def atlas() -> TaskSource:
    return AtlasTasks(entities=60, worlds=1, questions_per_world=60).source("evaluation", PAPER)


def attempts(
    source: TaskSource, objectives: int, *, context: str = "constant", laziness: Laziness | None = None, count: int = 3
) -> list[Trajectory]:
    """An expert's attempts at the first `count` tasks."""
    engine = ScriptedEngine(CODEC, Expert(tags=PAPER, laziness=laziness or Laziness()))
    rollout = Rollout(
        engine=engine, dialogue=TagDialogue(CODEC), environment=source.environment, context=memory_policy(context)
    )
    return rollout(source.tasks(objectives=objectives, count=count, seed=0), sampling=Sampling())


def run_of(*parts: tuple[str, Sequence[Trajectory]], name: str = "a", family: str = "f", decode=CODEC.decode) -> Run:
    """A run of (policy, its trajectories at one size)."""
    return Run(
        name=name,
        family=family,
        facts={"seed": "0"},
        curve=CURVE,
        attempts=[
            Attempts(
                row=summarize(
                    trajectories,
                    policy=policy,
                    context=trajectories[0].context,
                    objectives=trajectories[0].task.objectives if trajectories[0].task else 0,
                    shape=SHAPE,
                ),
                trajectories=trajectories,
            )
            for policy, trajectories in parts
        ],
        decode=decode,
    )


CURVE = [{"step": i, "reward": i / 50, "em": i / 100, "turns": 4.0, "peak_tokens": 90 + i} for i in range(50)]


# Words by their number, joined by blanks: a tokenizer to see through.
WORDS = ["Where?", "<IS>", "Oslo", "</IS>", "<query>", "mayor", "</query>", "found-it", HOSTILE, "<answer>", "Bergen"]


def decode_words(ids: Sequence[int]) -> str:
    return " ".join(WORDS[i] for i in ids)


def hostile_attempt(*, em: float = 1.0, objectives: int = 1) -> Trajectory:
    """A search, then a forced answer; the second context keeps state, query and a hostile result."""
    questions = tuple(Question(id=str(i), text=f"Where {i} <b>?", answers=("Oslo",)) for i in range(objectives))
    kept = {"prompt": (0, 1), "state": (1, 4), "query": (4, 7), "result": (7, 9)}
    return Trajectory(
        turns=(
            Turn(
                context_ids=(0,),
                completion_ids=(1, 2, 3, 4, 5, 6),
                observation_ids=(7, 8),
                state="Oslo",
                action="search",
                content="mayor",
                observation=f"found-it {HOSTILE}",
                context_spans={"prompt": (0, 1)},
                completion_spans={"state": (0, 3), "action": (3, 6)},
            ),
            Turn(
                context_ids=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
                completion_ids=(10,),
                action="answer",
                content="Bergen",
                prefilled=True,
                context_spans=kept,
                context_origins=((1, "state", 1, 4), (1, "query", 4, 7), (1, "result", 7, 9)),
            ),
        ),
        task=Task(id="t", questions=questions, prompt="Where?", turn_limit=2),
        answer="Bergen",
        reward=em,
        metrics={"em": (em,) * objectives, "f1": (em,) * objectives},
        context="constant",
    )


def random_run(trajectories: int, *, turns: int = 5, seed: int = 0) -> Run:
    """Attempts at two questions in random words, which compress worse than language: 120 tokens a result."""
    rng = random.Random(seed)
    vocabulary = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(3000)]

    def draw(count: int) -> tuple[int, ...]:
        return tuple(rng.choices(range(3000), k=count))

    def one(number: int) -> Trajectory:
        prompt, done = draw(40), []
        for _ in range(turns):
            last = done[-1] if done else None
            kept = last.completion_ids + last.observation_ids if last else ()
            words = draw(30)
            state = " ".join(vocabulary[i] for i in words)
            done.append(
                Turn(
                    context_ids=prompt + kept,
                    completion_ids=words + draw(6),
                    observation_ids=draw(120),
                    state=state,
                    action="search",
                    content="x",
                    context_spans={"prompt": (0, 40)},
                    context_origins=((len(done), "state", 40, 70), (len(done), "query", 70, 76)) if last else (),
                    completion_spans={"state": (0, 30), "action": (30, 36)},
                )
            )
        done[-1] = dataclasses.replace(done[-1], action="answer", observation_ids=())
        questions = tuple(Question(id=f"{number}-{i}", text=f"Question {i} of {number}?", answers=("x",)) for i in "ab")
        task = Task(id=str(number), questions=questions, prompt="p", turn_limit=9)
        scores = (1.0, float(number % 2))
        return Trajectory(
            turns=tuple(done), task=task, reward=sum(scores), metrics={"em": scores, "f1": scores}, context="constant"
        )

    def decode(ids: Sequence[int]) -> str:
        return " ".join(vocabulary[i] for i in ids)

    return run_of(("trained", [one(i) for i in range(trajectories)]), decode=decode)
