"""A small Atlas with its tokenizer, and rollouts driven by scripts, for the tests of the loop."""

from __future__ import annotations

from collections.abc import Sequence

from mem1.dialogue import TagDialogue
from mem1.engines.base import Engine, Sampling, Script, ScriptedEngine
from mem1.engines.codec import Codec
from mem1.envs.atlas import AtlasTasks
from mem1.envs.base import Environment
from mem1.envs.search import SearchEnvironment
from mem1.memory import memory_policy
from mem1.policy.tokenizers import atlas_tokenizer
from mem1.protocol import PAPER, Tags
from mem1.records import Passage, Question, Task, Trajectory
from mem1.rollout import Budget, Rollout

CODEC = Codec(atlas_tokenizer(PAPER))
SMALL = AtlasTasks(entities=60, worlds=2, questions_per_world=120)
SAMPLING = Sampling(seed=3)


class Shelf:
    """A search engine that finds the same passages whatever the query."""

    def __init__(self, *texts: str) -> None:
        self.passages = [Passage(str(i), "", text) for i, text in enumerate(texts)]

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        return [[(passage, 1.0) for passage in self.passages[:k]] for _ in queries]


def shelf(*texts: str) -> SearchEnvironment:
    return SearchEnvironment({"": Shelf(*texts)}, style="bare")


def task(*golds: str, turns: int = 4, prompt: str = "Q1 a mayor ?") -> Task:
    """One question a gold answer; the prompt is text of its own."""
    questions = tuple(Question(id=f"q{i}", text="a mayor ?", answers=(g,)) for i, g in enumerate(golds, start=1))
    return Task(id="t", questions=questions, prompt=prompt, turn_limit=turns)


def replay(*completions: str) -> Script:
    """Writes these texts one after the other, whatever the context."""
    texts = iter(completions)
    return lambda _context: next(texts)


def rollout(
    script: Script | Engine,
    environment: Environment,
    *,
    context: str = "constant",
    codec: Codec = CODEC,
    tags: Tags = PAPER,
    budget: Budget | None = None,
) -> Rollout:
    return Rollout(
        engine=ScriptedEngine(codec, script) if callable(script) else script,
        dialogue=TagDialogue(codec, tags),
        environment=environment,
        context=memory_policy(context),
        budget=budget or Budget(),
    )


def contexts(trajectory: Trajectory, codec: Codec = CODEC) -> list[str]:
    """What the model read at each turn, as text."""
    return [codec.decode(turn.context_ids) for turn in trajectory.turns]
