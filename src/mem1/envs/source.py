"""A source of tasks with the environment that answers them: Atlas worlds, or questions and passages in files.

Both halves are named here, so that training and evaluation can never draw from the same one.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from mem1.configuration import Config
from mem1.configuration.numbers import Seed
from mem1.envs.file_questions import FileQuestions, QuestionFiles, TaskSource
from mem1.envs.qa import QAEnvironment, RewardOf
from mem1.protocol import Tags
from mem1.records import Question, Task
from mem1.retrieval import BM25, Retriever
from mem1.retrieval.client import HttpRetriever, HttpServer
from mem1.retrieval.combine import Snippets
from mem1.retrieval.open_index import open_retriever
from mem1.tasks.atlas import AtlasMaterial, World, make_world
from mem1.tasks.compose import TaskTemplate, TurnLimit
from mem1.tasks.dependencies import Composition, check_depth, compose_as
from mem1.tasks.splits import Split

_DEVELOPMENT = 10_000_000
"""Distance from the first training world to the first development world, so that training never draws one."""


class AtlasTasks(Config):
    """Tasks from invented worlds."""

    kind: Literal["atlas"] = "atlas"
    entities: int = Field(default=400, ge=20, le=100_000)
    """Entities, hence passages, of a world."""
    worlds: int = Field(default=16, ge=1, le=10_000)
    """Worlds of each half."""
    questions_per_world: int = Field(default=1500, ge=1)
    hops: tuple[Literal[1, 2], ...] = Field(default=(1, 2), min_length=1)
    """Kinds of questions, in equal shares."""
    composition: Composition = "independent"
    """How the questions of a task hang together: independent, chain, shared or comparison."""
    depth: int | None = Field(default=None, ge=1)
    """Longest chain of references in a task; None: 1, or 0 with independent questions."""
    top_k: int = Field(default=2, ge=1)
    """Passages shown a search."""
    turn_limit: TurnLimit = TurnLimit()
    reward: RewardOf = "sum"
    """Of a task of N questions, sum: the number of exact matches, in [0, N], so that larger tasks weigh more outside
    the group-normalised algorithms; mean: their share, in [0, 1]."""
    first_world: Seed = 0
    """Seed of the first world; the others follow."""
    evaluated: Literal["test", "development"] = "test"
    """Which worlds an evaluation uses. Make every choice (settings, checkpoints, designs) on development worlds, which
    have names of the training half in worlds that training never draws; use the test worlds once, for the result."""

    def source(self, split: Split, tags: Tags) -> TaskSource:
        """The tasks of one half; no name of the other half's worlds occurs in it."""
        return _Atlas(self, split, tags)

    @model_validator(mode="after")
    def _depth_goes_with_dependence(self) -> AtlasTasks:
        check_depth(self.composition, self.depth)
        return self


class MultihopTasks(QuestionFiles):
    """Tasks from questions in files, one's own or a public data set in its own format, and passages in a file or on a
    server."""

    kind: Literal["multihop"] = "multihop"
    corpus: str | None = None
    """File of the passages, searched by BM25, or the folder of an index that `mem1 index` made; None: `retriever` has
    them."""
    retriever: HttpServer | None = None
    """A server that searches the passages; None: `corpus` does."""
    prompt: str = "mem1"
    top_k: int = Field(default=3, ge=1)
    passage_words: int = Field(default=100, ge=1)
    """Words shown of a passage."""
    snippet_words: int | None = Field(default=None, ge=1)
    """Words shown of a passage around the best match of the query; None: its first `passage_words`."""

    @model_validator(mode="after")
    def _one_collection(self) -> MultihopTasks:
        if (self.corpus is None) == (self.retriever is None):
            raise ValueError(
                'tasks are searched in one place: give corpus = "FILE", or retriever.urls = ["http://HOST:PORT"]'
            )
        return self

    def source(self, split: Split, tags: Tags) -> TaskSource:
        """The tasks of one half. Raises UserError where a question stands in both halves, or a file is missing."""
        return _Multihop(self, split, tags)


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
    def environment(self) -> QAEnvironment:
        indexes = {world.name: BM25.build(world.passages()) for world in self.worlds}
        return QAEnvironment(indexes, top_k=self.config.top_k, style="bare", reward=self.config.reward)

    @cached_property
    def _questions(self) -> list[list[Question]]:
        take = self.config.questions_per_world
        return [list(itertools.islice(w.questions(seed=0, hops=self.config.hops), take)) for w in self.worlds]

    def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
        per_world = -(-count // len(self.worlds))
        by_world = [self._of_world(i, objectives, per_world, seed) for i in range(len(self.worlds))]
        offset = seed % len(self.worlds)  # a small step does not always draw from the first worlds
        turn = by_world[offset:] + by_world[:offset]
        return [task for tasks in zip(*turn, strict=True) for task in tasks][:count]

    def _of_world(self, index: int, objectives: int, count: int, seed: int) -> list[Task]:
        config, world = self.config, self.worlds[index]
        return compose_as(
            config.composition,
            config.depth,
            questions=self._questions[index],
            material=AtlasMaterial(world, config.hops),
            form=TaskTemplate(prompt="plain", tags=self.tags, turn_limit=config.turn_limit, corpus=world.name),
            objectives=objectives,
            count=count,
            seed=seed,
        )


@dataclass(frozen=True)
class _Multihop(FileQuestions):
    config: MultihopTasks

    @cached_property
    def environment(self) -> QAEnvironment:
        return QAEnvironment(
            {self.corpus: self._searched()},
            top_k=self.config.top_k,
            passage_words=self.config.passage_words,
            reward=self.config.reward,
        )

    def _searched(self) -> Retriever:
        words = self.config.snippet_words
        return self._retriever() if words is None else Snippets(self._retriever(), words)

    def _retriever(self) -> Retriever:
        if self.config.corpus is not None:
            return open_retriever(self.config.corpus)
        assert self.config.retriever is not None
        return HttpRetriever.open(self.config.retriever)

    @property
    def corpus(self) -> str:
        """The file's name, or host and port of the first server."""
        if self.config.corpus is not None:
            return Path(self.config.corpus).name
        assert self.config.retriever is not None
        return urlsplit(self.config.retriever.urls[0]).netloc

    @property
    def prompt(self) -> str:
        return self.config.prompt
