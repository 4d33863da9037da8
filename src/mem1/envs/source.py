"""A source of tasks with the environment that answers them: Atlas worlds, or questions and passages in files.

Both halves are named here, so that training and evaluation can never draw from the same one.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from pydantic import Field

from mem1.configuration import Config
from mem1.envs.qa import QAEnvironment
from mem1.errors import UserError
from mem1.protocol import Tags
from mem1.records import Question, Task
from mem1.retrieval import BM25
from mem1.retrieval.corpus import open_bm25
from mem1.tasks.atlas import World, make_world
from mem1.tasks.atlas.names import Split
from mem1.tasks.compose import TurnLimit, check_disjoint, compose
from mem1.tasks.datasets import read_questions

if TYPE_CHECKING:
    from mem1.envs.web_source import WebTasks


class TaskSource(Protocol):
    """Where the tasks of one half (training or evaluation) come from."""

    @property
    def environment(self) -> QAEnvironment:
        """Answers the searches of its tasks and scores them."""
        ...

    def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
        """`count` tasks of `objectives` questions; the same for the same seed."""
        ...


class AtlasTasks(Config):
    """Tasks from invented worlds."""

    kind: Literal["atlas"] = "atlas"
    entities: int = Field(default=400, ge=20)
    """Entities, hence passages, of a world."""
    worlds: int = Field(default=16, ge=1)
    """Worlds of each half."""
    questions_per_world: int = Field(default=1500, ge=1)
    hops: tuple[Literal[1, 2], ...] = (1, 2)
    """Kinds of questions, in equal shares."""
    top_k: int = Field(default=2, ge=1)
    """Passages shown a search."""
    turn_limit: TurnLimit = TurnLimit()
    first_world: int = 0
    """Seed of the first world; the others follow."""

    def source(self, split: Split, tags: Tags) -> TaskSource:
        """The tasks of one half; no name of the other half's worlds occurs in it."""
        return _Atlas(self, split, tags)


class MultihopTasks(Config):
    """Tasks from questions and passages in JSONL files: one's own, or a public data set."""

    kind: Literal["multihop"] = "multihop"
    questions: str
    """File of the evaluation's questions."""
    train_questions: str | None = None
    """File of the training's questions; None: evaluation only."""
    corpus: str
    """File of the passages, searched by BM25."""
    prompt: str = "mem1"
    top_k: int = Field(default=3, ge=1)
    passage_words: int = Field(default=100, ge=1)
    """Words shown of a passage."""
    turn_limit: TurnLimit = TurnLimit()

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
        first = self.config.first_world
        return [
            make_world(first + i, split=self.split, entities=self.config.entities) for i in range(self.config.worlds)
        ]

    @cached_property
    def environment(self) -> QAEnvironment:
        indexes = {world.name: BM25.build(world.passages()) for world in self.worlds}
        return QAEnvironment(indexes, top_k=self.config.top_k, style="bare")

    @cached_property
    def _questions(self) -> list[list[Question]]:
        take = self.config.questions_per_world
        return [list(itertools.islice(w.questions(seed=0, hops=self.config.hops), take)) for w in self.worlds]

    def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
        per_world = -(-count // len(self.worlds))
        by_world = [
            compose(
                questions,
                objectives=objectives,
                count=per_world,
                seed=seed,
                prompt="plain",
                tags=self.tags,
                turn_limit=self.config.turn_limit,
                corpus=world.name,
            )
            for world, questions in zip(self.worlds, self._questions, strict=True)
        ]
        offset = seed % len(self.worlds)  # a small step does not always draw from the first worlds
        turn = by_world[offset:] + by_world[:offset]
        return [task for tasks in zip(*turn, strict=True) for task in tasks][:count]


@dataclass(frozen=True)
class FileQuestions(TaskSource):
    """Questions in files, joined into tasks; a subclass says what is searched for their answers."""

    config: MultihopTasks | WebTasks
    split: Split
    tags: Tags

    @cached_property
    def questions(self) -> list[Question]:
        evaluation = read_questions(self.config.questions)
        if self.split == "evaluation":
            return evaluation
        if self.config.train_questions is None:
            raise UserError("tasks.train_questions is missing: training needs questions of its own, in a file")
        train = read_questions(self.config.train_questions)
        check_disjoint(train, evaluation)
        return train

    @property
    @abstractmethod
    def corpus(self) -> str:
        """Name of the collection that the tasks search."""
        ...

    @property
    @abstractmethod
    def prompt(self) -> str:
        """Name of the prompt at the head of every context."""
        ...

    def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
        return compose(
            self.questions,
            objectives=objectives,
            count=count,
            seed=seed,
            prompt=self.prompt,
            tags=self.tags,
            turn_limit=self.config.turn_limit,
            corpus=self.corpus,
        )


@dataclass(frozen=True)
class _Multihop(FileQuestions):
    config: MultihopTasks

    @cached_property
    def environment(self) -> QAEnvironment:
        index = open_bm25(self.config.corpus)
        return QAEnvironment({self.corpus: index}, top_k=self.config.top_k, passage_words=self.config.passage_words)

    @property
    def corpus(self) -> str:
        return Path(self.config.corpus).name

    @property
    def prompt(self) -> str:
        return self.config.prompt
