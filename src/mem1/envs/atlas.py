"""Tasks from invented worlds: facts, the passages that state them, and questions about them.

AtlasTasks(worlds=2).source("train", PAPER).tasks(objectives=2, count=4, seed=0)   ->   two tasks from each world
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pydantic import Field, model_validator

from mem1.configuration.model import Seed
from mem1.envs.base import Environment, TaskSource
from mem1.envs.search import SearchEnvironment
from mem1.envs.tasks import QuestionTasks, TextSizes
from mem1.protocol import Tags
from mem1.records import Question, Task
from mem1.retrieval import BM25
from mem1.tasks.atlas import AtlasMaterial, Expert, Laziness, World, make_world
from mem1.tasks.compose import Composition, Split, check_depth, compose_as
from mem1.tasks.prompts import PromptChoice

_DEVELOPMENT = 10_000_000
"""Distance from the first training world to the first development world, so that training never draws one."""


class AtlasTasks(QuestionTasks):
    """Tasks from invented worlds."""

    kind: str = "atlas"
    entities: int = Field(default=400, ge=20, le=100_000)
    """Entities, hence passages, of a world."""
    worlds: int = Field(default=16, ge=1, le=10_000)
    """Worlds of each half."""
    questions_per_world: int = Field(default=1500, ge=1)
    hops: tuple[Literal[1, 2], ...] = Field(default=(1, 2), min_length=1)
    """Kinds of questions, in equal shares."""
    composition: Composition = "independent"
    """How the questions of a task depend on one another: independent, chain, shared or comparison."""
    depth: int | None = Field(default=None, ge=1)
    """Longest chain of references in a task; None: 1, or 0 with independent questions."""
    reach: int | None = Field(default=None, ge=1)
    """Largest distance of a question from one that it refers to, as far as its group allows; None: any. With `excerpt`,
    3 keeps questions that refer to one another in one excerpt of four."""
    prompt: PromptChoice | None = None
    """Text at the head of every context. None: as [protocol] and these tasks need it."""
    top_k: int = Field(default=2, ge=1)
    """Passages per search."""
    laziness: Laziness = Laziness()
    """Habits of the expert in demonstrations."""
    excerpt: int | None = Field(default=None, ge=1)
    """Demonstrations begin anywhere in a task of more questions and stop after this many, so that they teach to read
    long lists but not to keep more answers; None: they do every task from its beginning to its end."""
    labels: int | None = Field(default=None, ge=1)
    """Each task draws the labels of its questions from Q1 to this one, in increasing order, so that no label says how
    many questions are left; None: Q1 to QN."""
    first_world: Seed = 0
    """Seed of the first world; the others follow."""
    evaluated: Literal["test", "development"] = "test"
    """Which worlds an evaluation uses. Make every choice (settings, checkpoints, designs) on development worlds, which
    have names of the training half in worlds that training never draws; use the test worlds once, for the result."""

    def source(self, split: Split, tags: Tags) -> TaskSource:
        """The tasks of one half; no name of the other half's worlds occurs in it."""
        return _Atlas(self, split, tags)

    def development(self) -> AtlasTasks:
        return self.model_copy(update={"evaluated": "development"})

    def expert(self, tasks: Sequence[Task], environment: Environment, tags: Tags, *, seed: int) -> Callable[[str], str]:
        return Expert(tags=tags, laziness=self.laziness, seed=seed, excerpt=self.excerpt)

    def small(self) -> AtlasTasks:
        return self.model_copy(update={"worlds": 1, "entities": 60, "questions_per_world": 60})

    def sample(self) -> AtlasTasks:
        return self.model_copy(update={"worlds": 1})

    def text_sizes(self, objectives: int) -> TextSizes:
        return TextSizes(prompt=20 + 20 * objectives, result=16 * self.top_k)

    @model_validator(mode="after")
    def _depth_goes_with_dependence(self) -> AtlasTasks:
        check_depth(self.composition, self.depth)
        if self.reach is not None and self.composition == "independent":
            raise ValueError("reach applies to the compositions chain, shared and comparison, not to independent")
        return self


@dataclass(frozen=True)
class _Atlas(TaskSource):
    config: AtlasTasks
    split: Split
    tags: Tags

    @cached_property
    def worlds(self) -> list[World]:
        config, first, names = self.config, self.config.first_world, self.split
        if self.split == "evaluation" and config.evaluated == "development":
            first, names = first + _DEVELOPMENT, "train"
        return [make_world(first + i, split=names, entities=config.entities) for i in range(config.worlds)]

    @cached_property
    def environment(self) -> SearchEnvironment:
        indexes = {world.name: BM25.build(world.passages()) for world in self.worlds}
        return SearchEnvironment(indexes, top_k=self.config.top_k, style="bare", reward=self.config.own_reward)

    @cached_property
    def _questions(self) -> list[list[Question]]:
        take = self.config.questions_per_world
        return [list(itertools.islice(w.questions(seed=0, hops=self.config.hops), take)) for w in self.worlds]

    def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
        config, per_world = self.config, -(-count // len(self.worlds))
        by_world = [
            compose_as(
                config.composition,
                config.depth,
                questions=questions,
                material=AtlasMaterial(world, config.hops),
                form=config.template(self.tags, world.name, labels=config.labels),
                objectives=objectives,
                count=per_world,
                seed=seed,
                reach=config.reach,
            )
            for world, questions in zip(self.worlds, self._questions, strict=True)
        ]
        offset = seed % len(self.worlds)  # a small step does not always draw from the first worlds
        turn = by_world[offset:] + by_world[:offset]
        return [task for tasks in zip(*turn, strict=True) for task in tasks][:count]
