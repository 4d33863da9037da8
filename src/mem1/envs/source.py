"""A source of tasks with the environment that answers them: Atlas worlds, or questions and passages in files.

Both halves are named here, so that training and evaluation can never draw from the same one.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from mem1.configuration import Config
from mem1.envs.qa import QAEnvironment
from mem1.errors import UserError
from mem1.protocol import Tags
from mem1.records import Question, Task
from mem1.retrieval import BM25, Retriever
from mem1.retrieval.http import HttpRetriever, HttpServer
from mem1.retrieval.opening import open_retriever
from mem1.tasks.atlas import AtlasMaterial, World, make_world
from mem1.tasks.atlas.names import Split
from mem1.tasks.compose import TurnLimit, as_composed, check_disjoint, compose
from mem1.tasks.datasets import read_questions, read_tasks
from mem1.tasks.dependencies import Composition, check_depth, compose_dependent
from mem1.tasks.linking import LinkedQuestions


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
    composition: Composition = "independent"
    """How the questions of a task hang together: independent, chain, shared or comparison."""
    depth: int | None = Field(default=None, ge=1)
    """Longest chain of references in a task; None: 1, or 0 with independent questions."""
    top_k: int = Field(default=2, ge=1)
    """Passages shown a search."""
    turn_limit: TurnLimit = TurnLimit()
    first_world: int = 0
    """Seed of the first world; the others follow."""

    def source(self, split: Split, tags: Tags) -> TaskSource:
        """The tasks of one half; no name of the other half's worlds occurs in it."""
        return _Atlas(self, split, tags)

    @model_validator(mode="after")
    def _depth_goes_with_dependence(self) -> AtlasTasks:
        check_depth(self.composition, self.depth)
        return self


class MultihopTasks(Config):
    """Tasks from questions in files, one's own or a public data set in its own format, and passages in a file or on a
    server."""

    kind: Literal["multihop"] = "multihop"
    questions: str
    """File of the evaluation's questions, of any format that `mem1.tasks.datasets` knows."""
    train_questions: str | None = None
    """File of the training's questions; None: evaluation only."""
    corpus: str | None = None
    """File of the passages, searched by BM25, or the folder of an index that `mem1 index` made; None: `retriever` has
    them."""
    retriever: HttpServer | None = None
    """A server that searches the passages; None: `corpus` does."""
    decompose: bool = False
    """Ask the single hops of a question in its place (2WikiMultihopQA and MuSiQue)."""
    composition: Composition | Literal["file"] = "independent"
    """How the questions of a task hang together: independent, chain, shared or comparison; `file`: the files hold
    composed tasks, which are asked as they stand."""
    depth: int | None = Field(default=None, ge=1)
    """Longest chain of references in a task; None: 1, or 0 with independent questions."""
    prompt: str = "mem1"
    top_k: int = Field(default=3, ge=1)
    passage_words: int = Field(default=100, ge=1)
    """Words shown of a passage."""
    turn_limit: TurnLimit = TurnLimit()

    @model_validator(mode="after")
    def _one_collection(self) -> MultihopTasks:
        if (self.corpus is None) == (self.retriever is None):
            raise ValueError(
                'tasks are searched in one place: give corpus = "FILE", or retriever.urls = ["http://HOST:PORT"]'
            )
        return self

    @property
    def collection(self) -> str:
        """What the tasks call it: the file's name, or host and port of the first server."""
        if self.corpus is not None:
            return Path(self.corpus).name
        assert self.retriever is not None
        return urlsplit(self.retriever.urls[0]).netloc

    def source(self, split: Split, tags: Tags) -> TaskSource:
        """The tasks of one half. Raises UserError where a question stands in both halves, or a file is missing."""
        return _Multihop(self, split, tags)

    @model_validator(mode="after")
    def _options_go_together(self) -> MultihopTasks:
        check_depth(self.composition, self.depth)
        if self.composition == "file" and self.decompose:
            raise ValueError("decompose goes with files of questions, not with composed tasks (composition = file)")
        return self


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
        by_world = [self._of_world(i, objectives, per_world, seed) for i in range(len(self.worlds))]
        offset = seed % len(self.worlds)  # a small step does not always draw from the first worlds
        turn = by_world[offset:] + by_world[:offset]
        return [task for tasks in zip(*turn, strict=True) for task in tasks][:count]

    def _of_world(self, index: int, objectives: int, count: int, seed: int) -> list[Task]:
        config, world = self.config, self.worlds[index]
        if config.composition == "independent":
            return compose(
                self._questions[index],
                objectives=objectives,
                count=count,
                seed=seed,
                prompt="plain",
                tags=self.tags,
                turn_limit=config.turn_limit,
                corpus=world.name,
            )
        return compose_dependent(
            AtlasMaterial(world, config.hops),
            dependence=config.composition,
            depth=config.depth or 1,
            objectives=objectives,
            count=count,
            seed=seed,
            prompt="plain",
            tags=self.tags,
            turn_limit=config.turn_limit,
            corpus=world.name,
        )


@dataclass(frozen=True)
class _Multihop(TaskSource):
    config: MultihopTasks
    split: Split
    tags: Tags

    @cached_property
    def questions(self) -> list[Question]:
        """Those of this half; with composed tasks, those of all of them."""
        return _flat(self._groups)

    @cached_property
    def _groups(self) -> list[tuple[Question, ...]]:
        """What the file of this half holds: single questions, or those of each composed task."""
        evaluation = self._read(self.config.questions)
        if self.split == "evaluation":
            return evaluation
        if self.config.train_questions is None:
            raise UserError("tasks.train_questions is missing: training needs questions of its own, in a file")
        train = self._read(self.config.train_questions)
        check_disjoint(_flat(train), _flat(evaluation))
        return train

    def _read(self, path: str) -> list[tuple[Question, ...]]:
        if self.config.composition == "file":
            return read_tasks(path)
        return [(question,) for question in read_questions(path, decompose=self.config.decompose)]

    @cached_property
    def environment(self) -> QAEnvironment:
        return QAEnvironment(
            {self.config.collection: self._retriever()},
            top_k=self.config.top_k,
            passage_words=self.config.passage_words,
        )

    def _retriever(self) -> Retriever:
        if self.config.corpus is not None:
            return open_retriever(self.config.corpus)
        assert self.config.retriever is not None
        server = HttpRetriever(self.config.retriever)
        server.check()  # before anything is sampled, and not after the first round
        return server

    @cached_property
    def _linked(self) -> LinkedQuestions:
        return LinkedQuestions(self.questions)

    def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
        config = self.config
        common: dict[str, Any] = {
            "objectives": objectives,
            "count": count,
            "seed": seed,
            "prompt": config.prompt,
            "tags": self.tags,
            "turn_limit": config.turn_limit,
            "corpus": config.collection,
        }
        if config.composition == "independent":
            return compose(self.questions, **common)
        if config.composition == "file":
            return as_composed(self._groups, **common)
        return compose_dependent(self._linked, dependence=config.composition, depth=config.depth or 1, **common)


def _flat(groups: list[tuple[Question, ...]]) -> list[Question]:
    return [question for group in groups for question in group]
