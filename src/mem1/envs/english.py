"""Tasks about invented worlds in English: the families of `mem1 bench`, and worlds to train on.

EnglishTasks(family="update", level=2).source("evaluation", PAPER).tasks(objectives=6, count=8, seed=0)

The environment searches the passages of a task's world. It shows the corrections below them, and ends an attempt whose
query breaks a rule of its section.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar, NamedTuple

from pydantic import Field, model_validator

from mem1.configuration.model import Probability, Seed
from mem1.envs.base import Action, Environment, Observation, Outcome, TaskSource
from mem1.envs.search import SearchEnvironment
from mem1.envs.tasks import PROMPT_TOKENS, QUESTION_TOKENS, QuestionTasks, TextSizes
from mem1.protocol import SEARCH, Tags
from mem1.records import Passage, Task
from mem1.retrieval import BM25, Retriever
from mem1.scoring import normalize
from mem1.tasks.atlas import CLEAN, Laziness
from mem1.tasks.compose import Split
from mem1.tasks.english.expert import EnglishExpert, Searches
from mem1.tasks.english.families import LEVELS, Family, asks_for_rules, rules_of, section_of, tasks_of
from mem1.tasks.english.frames import notice_text, write
from mem1.tasks.english.questions import ALL_ASKED, Asked, Asker
from mem1.tasks.english.solver import Solver
from mem1.tasks.english.world import ENTITIES, EnglishWorld, make_english_world
from mem1.tasks.prompts import PromptChoice

BROKEN = "a query broke a rule: "
"""How the answer of an attempt begins that broke a rule; it scores 0."""
_DEVELOPMENT = 10_000_000
"""Distance from the first training world to the first development world."""
_RESULT_WORDS = 110
"""Typical words of a passage."""
_FACT_WORDS = 80
"""Those of one without remarks."""
_TITLE_WORDS = 3
"""Most words of a normalised title."""


class EnglishTasks(QuestionTasks):
    """Tasks about invented worlds in English."""

    prompts: ClassVar[tuple[str, str, str]] = ("mem1", "mem1-example", "tools")
    kind: str = "english"
    family: Family = "independent"
    """What has to be remembered: independent, chain, shared, constraint, update or budget, which has a turn limit of
    its own."""
    level: int = Field(default=1, ge=1)
    """How hard it is, from 1; what that means depends on the family."""
    entities: int = Field(default=ENTITIES, ge=40, le=700)
    """People, towns, firms and novels of a world, hence passages."""
    worlds: int = Field(default=4, ge=1, le=1000)
    first_world: Seed = 0
    """Seed of the first world; the others follow."""
    surface: Seed = 0
    """Draws how passages and questions are worded, not what they say."""
    remarks: bool = True
    """Whether passages also say what nobody asks for; without, they have a quarter fewer words."""
    asked: tuple[Asked, ...] = Field(default=ALL_ASKED, min_length=1)
    """Kinds of questions: value, past, list, count, odd."""
    two_hops: Probability = 0.4
    """Share of questions that lead through another entity."""
    prompt: PromptChoice | None = None
    """Text at the head of every context. None: as [protocol] and these tasks need it."""
    top_k: int = Field(default=2, ge=1)
    """Passages per search."""
    memory: int | None = Field(default=None, ge=0)
    """Tokens of memory of the scripted solver; None: as many as it likes."""
    laziness: Laziness = CLEAN
    """Habits of the expert in demonstrations: diligent, stop and forget."""
    searches: Searches = "titles"
    """What the expert searches for: titles, or questions where one search answers them."""

    def source(self, split: Split, tags: Tags) -> TaskSource:
        """The tasks of one half; no name of the other half's worlds occurs in it."""
        return EnglishSource(self, split, tags, self.first_world)

    def development(self) -> EnglishTasks:
        return _Development.model_validate(self.model_dump())

    def expert(self, tasks: Sequence[Task], environment: Environment, tags: Tags, *, seed: int) -> Callable[[str], str]:
        assert isinstance(environment, EnglishEnvironment)
        solver = self.solver(tasks, environment)
        return EnglishExpert(solver=solver, tags=tags, laziness=self.laziness, seed=seed, searches=self.searches)

    def solver(self, tasks: Sequence[Task], environment: EnglishEnvironment) -> Solver:
        """The scripted solver of these tasks."""
        return Solver(tasks, environment.worlds, rules=environment.rules, memory=self.memory)

    def texts(self, tags: Tags) -> Iterable[str]:
        yield from super().texts(tags)
        for world in EnglishSource(self, "train", tags, self.first_world).worlds[:4]:
            for written in write(world, surface=self.surface, remarks=self.remarks):
                yield f"{written.passage.title} {written.passage.text}"

    def small(self) -> EnglishTasks:
        return self.model_copy(update={"worlds": 1, "entities": 80})

    def sample(self) -> EnglishTasks:
        return self.model_copy(update={"worlds": 1})

    def text_sizes(self, objectives: int) -> TextSizes:
        words = _RESULT_WORDS if self.remarks else _FACT_WORDS
        return TextSizes(PROMPT_TOKENS + QUESTION_TOKENS * objectives, int(1.4 * words) * self.top_k)

    @model_validator(mode="after")
    def _family_has_the_level(self) -> EnglishTasks:
        if self.level > LEVELS[self.family]:
            raise ValueError(f"family {self.family} has levels 1 to {LEVELS[self.family]}, not {self.level}")
        return self


class _Development(EnglishTasks):
    """Worlds with names of the training half that training never draws."""

    def source(self, split: Split, tags: Tags) -> TaskSource:
        if split == "train":
            return super().source(split, tags)
        return EnglishSource(self, "train", tags, self.first_world + _DEVELOPMENT)


@dataclass(frozen=True)
class EnglishSource(TaskSource):
    """The tasks of some worlds."""

    config: EnglishTasks
    split: Split
    tags: Tags
    first: int

    @cached_property
    def worlds(self) -> list[EnglishWorld]:
        return [asker.world for asker in self.askers]

    @cached_property
    def environment(self) -> EnglishEnvironment:
        retrievers = {world.name: _library(key) for world, key in zip(self.worlds, self._keys, strict=True)}
        return EnglishEnvironment(
            SearchEnvironment(retrievers, top_k=self.config.top_k, reward=self.config.own_reward),
            worlds={world.name: world for world in self.worlds},
            rules=self.config.level if self.config.family == "constraint" else 0,
        )

    @cached_property
    def askers(self) -> list[Asker]:
        """One for each world."""
        return [_asker(key, self.config.two_hops, self.config.asked) for key in self._keys]

    @property
    def _keys(self) -> list[_Key]:
        config = self.config
        updates = config.level if config.family == "update" else 0
        made = (config.entities, updates, config.surface, config.remarks)
        return [_Key(self.first + i, self.split, *made) for i in range(config.worlds)]

    def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
        config, per_world = self.config, -(-count // len(self.worlds))
        by_world = [
            tasks_of(
                config.family,
                config.level,
                asker,
                config.template(self.tags, asker.world.name),
                objectives=objectives,
                count=per_world,
                seed=seed,
            )
            for asker in self.askers
        ]
        return [task for tasks in zip(*by_world, strict=True) for task in tasks][:count]


class _Key(NamedTuple):
    """What a world and its passages follow from; families share them."""

    seed: int
    split: Split
    entities: int
    updates: int
    surface: int
    remarks: bool


@lru_cache(maxsize=64)
def _world(key: _Key) -> EnglishWorld:
    return make_english_world(key.seed, split=key.split, entities=key.entities, updates=key.updates)


@lru_cache(maxsize=64)
def _asker(key: _Key, two_hops: float, asked: tuple[Asked, ...]) -> Asker:
    return Asker(_world(key), key.surface, two_hops, asked)


@lru_cache(maxsize=64)
def _library(key: _Key) -> ByTitle:
    return ByTitle.build(_world(key), key.surface, remarks=key.remarks)


@dataclass(frozen=True)
class ByTitle(Retriever):
    """Puts passages whose title is in the query first, and shows the corrections below those that carry one."""

    retriever: Retriever
    titles: Mapping[str, Passage]
    """Normalised title, or another name -> passage."""
    notices: Mapping[str, str]
    """Id of a passage -> text below it."""

    @classmethod
    def build(cls, world: EnglishWorld, surface: int, *, remarks: bool = True) -> ByTitle:
        """Searches the passages of a world."""
        passages = [written.passage for written in write(world, surface=surface, remarks=remarks)]
        titles = {normalize(passage.title): passage for passage in passages}
        for passage in passages:
            if nickname := world.entities[passage.title].nickname:
                titles[normalize(nickname)] = passage
        notices = {world.passage_ids[name]: notice_text(notice) for name, notice in world.notices.items()}
        return cls(BM25.build(passages), titles, notices)

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        return [
            self._first(query, found, k)
            for query, found in zip(queries, self.retriever.search(queries, k), strict=True)
        ]

    def _first(self, query: str, found: Sequence[tuple[Passage, float]], k: int) -> list[tuple[Passage, float]]:
        words = normalize(query).split()
        spans = (
            " ".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, min(i + _TITLE_WORDS, len(words)) + 1)
        )
        named = {p.id: (p, math.inf) for p in map(self.titles.get, spans) if p is not None}
        ordered = [*named.values(), *(one for one in found if one[0].id not in named)]
        return [(self._shown(passage), score) for passage, score in ordered[:k]]

    def _shown(self, passage: Passage) -> Passage:
        notice = self.notices.get(passage.id)
        return passage if notice is None else replace(passage, text=f"{passage.text} {notice}")


@dataclass(frozen=True)
class EnglishEnvironment:
    """Searches worlds; with rules, it shows them to a search for their section and ends attempts that break one."""

    search: SearchEnvironment
    worlds: Mapping[str, EnglishWorld]
    """By name, which is the name of a task's collection."""
    rules: int = 0
    """Rules of each task."""

    def observe(self, actions: Sequence[Action]) -> list[Observation]:
        """One observation per search. Raises UserError for another kind of action."""
        own = [self._ruled(action) if self.rules and action.kind == SEARCH else None for action in actions]
        others = iter(self.search.observe([a for a, done in zip(actions, own, strict=True) if done is None]))
        return [next(others) if done is None else done for done in own]

    def score(self, task: Task, answer: str) -> Outcome:
        """Exact matches, or their share; a broken rule is no answer."""
        return self.search.score(task, "" if answer.startswith(BROKEN) else answer)

    def _ruled(self, action: Action) -> Observation | None:
        section = section_of(action.task.seed)
        rules = rules_of(action.task.seed, self.rules)
        if asks_for_rules(action.argument, section):
            return Observation(
                text=f"Doc 1 (Title: Rules of section {section}) {' '.join(rule.text for rule in rules)}"
            )
        broken = next((rule for rule in rules if not rule.keeps(action.argument)), None)
        if broken is None:
            return None
        return Observation(text=f"This query breaks a rule. {broken.text}", answer=BROKEN + broken.text, ended=True)
