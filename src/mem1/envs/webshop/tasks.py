"""Tasks in a shop: a catalogue's goals, one or several to a task, with the shop that they are bought in.

WebShopTasks().source("train", extended(PAPER, "act")).tasks(objectives=2, count=1, seed=0)
->  [Task(id="synthetic-17+synthetic-4", prompt="Q1 find me a light tent ... Q2 i need ...", turn_limit=30)]
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import ClassVar, Literal

from pydantic import Field

from mem1.configuration.model import Seed
from mem1.envs.base import Environment, TaskSource
from mem1.envs.tasks import TasksConfig, must_exist
from mem1.envs.webshop.catalogue import Catalogue, Goal, goals_by_id, prices, split
from mem1.envs.webshop.env import Pages, WebShopEnvironment
from mem1.envs.webshop.expert import Laziness, ShopExpert, demonstrate, noted_apart
from mem1.envs.webshop.files import load
from mem1.envs.webshop.invented import invent
from mem1.envs.webshop.reward import score
from mem1.envs.webshop.shop import Shop
from mem1.errors import UserError
from mem1.protocol import ACT, Tags
from mem1.records import Question, Task
from mem1.tasks.compose import Split
from mem1.tasks.prompts import ByPrompt, PromptChoice, render

CORPUS = "shop"
FEWEST_PRODUCTS = 150
"""Products of the smallest invented shop."""
_DEVELOPMENT = 10_000_000
"""Distance from the seed of the training's invented shop to that of the development shop."""


class WebShopTasks(TasksConfig):
    """Shopping in an invented shop, or in one of the original's data."""

    kind: str = "webshop"
    rewards: ClassVar[tuple[str, ...]] = ("full", "minimal")
    prompts: ClassVar[tuple[str, str, str]] = ("shop", "shop", "tools-shop")
    asks: ClassVar[tuple[str, ...]] = (ACT,)
    catalogue: str | None = None
    """Folder or file that `mem1 webshop load` wrote, or the original's; None: an invented shop."""
    products: int = Field(default=500, ge=1, le=1_000_000)
    """Products of the invented shop."""
    goals: Literal["synthetic", "human"] = "synthetic"
    """Whose instructions: made of templates, or written by people."""
    evaluated: Literal["test", "development"] = "test"
    """Goals of the evaluation: in the original's data 0 to 499, or 500 to 1,499, and training has the others; the
    development goals of an invented shop are those of another shop with the names of the training half."""
    seed: Seed = 0
    """Seed of the invented shop, of prices drawn from ranges, and of price bounds."""
    pages: Pages = "text"
    """text, text_rich or html, as the original shows them; short: text without the instruction."""
    list_actions: bool = False
    """List the actions that are possible below every page."""
    show_attributes: bool = False
    """Item pages lead to the attributes that goals are scored by."""
    reward: str = "full"
    """full: WebShop's; minimal: webshop_minimal's, which ignores the chosen options; or one of your own, as
    package.module:name."""
    laziness: Laziness = Laziness()
    """Habits of the expert in demonstrations."""
    strict: bool = True
    """Options of synthetic goals compared with their names, as the original does; false: their values alone."""
    prompt: PromptChoice | None = None
    """Text at the head of every context. None: as [protocol] and these tasks need it."""
    turns_per_goal: int = Field(default=15, ge=1)

    def source(self, split: Split, tags: Tags) -> WebShopSource:
        """The tasks of one half. Raises UserError where the tags have no actions of a shop."""
        if ACT not in tags.action_tags:
            raise UserError(f"the tags {tags.name!r} have no actions of a shop; leave out protocol.actions")
        return WebShopSource(self, split, tags)

    def expert(self, tasks: Sequence[Task], environment: Environment, tags: Tags, *, seed: int) -> Callable[[str], str]:
        assert isinstance(environment, WebShopEnvironment)
        return ShopScript(ShopExpert(laziness=self.laziness, seed=seed), environment, tasks, tags)

    def development(self) -> WebShopTasks:
        return self.model_copy(update={"evaluated": "development"})

    def small(self) -> WebShopTasks:
        return self.model_copy(update={"catalogue": None, "goals": "synthetic", "products": FEWEST_PRODUCTS})

    def check_tasks(self) -> str | None:
        if self.catalogue is None:
            return None
        must_exist(self.catalogue, "tasks.catalogue", "mem1 webshop load writes one")
        return f"{self.catalogue}; its goals are read when the run begins"

    def turns(self, objectives: int) -> int:
        return self.turns_per_goal * objectives


@dataclass(frozen=True)
class WebShopSource(TaskSource):
    """One half of a shop's goals, and the shop."""

    config: WebShopTasks
    half: Split
    tags: Tags

    @cached_property
    def catalogue(self) -> Catalogue:
        config = self.config
        if config.catalogue is not None:
            return load(config.catalogue)
        if self.half == "evaluation" and config.evaluated == "development":
            return invent(config.seed + _DEVELOPMENT, "train", config.products)
        return invent(config.seed, self.half, config.products)

    @cached_property
    def _prices(self) -> dict[str, float]:
        return prices(self.catalogue.products, seed=self.config.seed)

    @cached_property
    def environment(self) -> WebShopEnvironment:
        config = self.config
        shop = Shop.build(
            self.catalogue.products,
            self._prices,
            scorer=partial(score, strict=config.strict, reward="minimal" if config.own_reward == "minimal" else "full"),
            show_attributes=config.show_attributes,
        )
        return WebShopEnvironment(shop, self._goals, pages=config.pages, list_actions=config.list_actions)

    @cached_property
    def _goals(self) -> dict[str, Goal]:
        """Goals of this half, with ids that number them among all goals of their kind."""
        config = self.config
        goals = goals_by_id(self.catalogue, self._prices, config.goals, seed=config.seed)
        if not goals:
            raise UserError(f"the shop has no {config.goals} goals; choose others (tasks.goals)")
        if config.catalogue is None:
            return goals
        return dict(split(list(goals.items()), config.evaluated if self.half == "evaluation" else "train"))

    def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
        """Goals in a seeded order: each is used once before any is repeated."""
        ids = list(self._goals)
        if objectives > len(ids):
            raise UserError(f"a task of {objectives} goals cannot be made of {len(ids)}")
        drawn: list[str] = []
        rng = random.Random(f"webshop/{self.half}/{objectives}/{seed}")
        while len(drawn) < objectives * count:
            whole = len(ids) - len(ids) % objectives  # no goal is repeated in a task
            drawn += rng.sample(ids, whole)
        return [self._task(drawn[i : i + objectives]) for i in range(0, objectives * count, objectives)]

    def _task(self, ids: list[str]) -> Task:
        questions = tuple(
            Question(id=one, text=goal.instruction, answers=(goal.asin,), source=CORPUS)
            for one, goal in ((one, self._goals[one]) for one in ids)
        )
        return Task(
            id="+".join(ids),
            questions=questions,
            prompt=render(self.config.own_prompt(self.tags), questions, self.tags),
            turn_limit=self.config.turns_per_goal * len(ids),
            corpus=CORPUS,
        )


@dataclass(frozen=True, slots=True)
class ShopScript:
    """Writes the next completion from the text of a context. Raises ValueError for goals that are not invented."""

    expert: ShopExpert
    environment: WebShopEnvironment
    tasks: Sequence[Task]
    tags: Tags
    _by_prompt: ByPrompt[tuple[int, tuple[str, ...]]] = field(init=False, repr=False)
    """(turn limit, completions) of each task."""

    def __post_init__(self) -> None:
        scripts = ((task.prompt, (task.turn_limit, self._completions(task))) for task in self.tasks)
        object.__setattr__(self, "_by_prompt", ByPrompt(scripts, lambda text: "".join(text.lower().split())))

    def __call__(self, context: str) -> str:
        """The completion for this context. Raises StopIteration for an unknown task."""
        (limit, completions), rest = self._by_prompt.find(context)
        left = re.findall(rf"\[{self.tags.hint.lower()}\]\D*(\d+)turn", rest)
        return completions[limit - int(left[-1]) if left else 0]

    def _completions(self, task: Task) -> tuple[str, ...]:
        goals = [self.environment.goals[question.id] for question in task.questions]
        _, decisions = demonstrate(self.expert, self.environment.shop, goals, task.turn_limit)
        if self.tags.note is None:
            return tuple(self._written(d.state, (), d.action) for d in decisions)
        before = ("", *(d.state for d in decisions))
        noted = [noted_apart(d.state, earlier) for d, earlier in zip(decisions, before, strict=False)]
        return tuple(self._written(*state_notes, d.action) for state_notes, d in zip(noted, decisions, strict=True))

    def _written(self, state: str, notes: Sequence[str], action: str) -> str:
        blocks = [(self.tags.state, state)] if state else []
        blocks += [(self.tags.note or "", note) for note in notes]
        blocks.append((self.tags.action_tags[ACT], action))
        return " ".join(f"<{tag}> {text} </{tag}>" for tag, text in blocks)
