"""Errands: several goods bought under one total price, in an invented shop.

    ErrandTasks(level=2).source("evaluation", extended(PAPER, "act")).tasks(objectives=2, count=1, seed=0)
    ->  [Task(id="errand-evaluation-0-l2-17+4", prompt="... Q1 a roomy Fala Prellov tent in size s ... Q2 ...
              The total price may be at most $47.83.", turn_limit=40)]

Several products fit each good, and the limit leaves little above the cheapest ones, so a shopper has to remember which
product was cheapest, where it is in the list, and what has been spent. No page shows the last two, and the results
show no prices:

    Search page | Bought 0 of 2
    Results 1 to 10 of 50 | HOLA88: Fala Prellov Light School Tent | GOLA64: ... | Next >
    HOLA88: Fala Prellov Light School Tent | $24.49 | easy to store | always padded | made to be roomy | stays
        compact for years | color: teal, red, blue | size: s, l | < Prev | Buy Now

Whoever exceeds the limit scores 0 for everything.

The goods of a shop, and the limit:

    goods(invent(0, "evaluation"))[0]
    ->  Good(number=0, text="a roomy Fala Prellov tent in size s", prices={"HOLA88": 2449, "GOLA64": 5125, ...}, ...)
    limit([2449, 1900], slack=0.1)     ->  4783      cents that may be spent where the cheapest cost 24.49 and 19.00

Every good is of one line of the shop, five products of one brand and type. It asks for a feature and an option that
three of the five have, so all goods are equally hard: five pages to read, three prices to compare. Prices are in cents.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

from pydantic import Field

from mem1.configuration.model import Seed
from mem1.envs.base import Environment, Outcome, TaskSource
from mem1.envs.tasks import PROMPT_TOKENS, QUESTION_TOKENS, TasksConfig, TextSizes
from mem1.envs.webshop.catalogue import Catalogue, Goal, Product, prices
from mem1.envs.webshop.env import SOLVED, WebShopEnvironment
from mem1.envs.webshop.invented import asins, invent
from mem1.envs.webshop.pages import BUY_NOW, NEXT, PREVIOUS, RESULTS_A_PAGE, Purchase, Session
from mem1.envs.webshop.shop import Shop
from mem1.envs.webshop.thrift import Shopper, ShopperScript
from mem1.errors import UserError
from mem1.protocol import ACT, Tags
from mem1.records import Question, Task
from mem1.tasks.compose import Split
from mem1.tasks.prompts import PromptChoice, fill

LINE = 5
"""Products of a line."""
FITTING = 3
"""Products of its line that fit a good."""
SLACKS: Mapping[int, float] = {1: 0.25, 2: 0.1, 3: 0.05, 4: 0.01}
"""Level -> share by which the total price may exceed that of the cheapest products."""
_OPTION = {"size": "in size {}", "pack": "in a pack of {}"}
"""Second option of a department -> its words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Good:
    """One thing to buy."""

    number: int
    """Among the goods of its shop, from 0."""
    line: tuple[str, str]
    """(brand, type) of the products: what to search for."""
    feature: str
    option: tuple[str, str]
    """(name, value) to choose."""
    prices: Mapping[str, int]
    """asin -> cents, of every product that fits; no two cost the same."""

    @property
    def text(self) -> str:
        """The good as a buyer asks for it."""
        (brand, kind), (name, value) = self.line, self.option
        article = "an" if self.feature[0] in "aeiou" else "a"
        return f"{article} {self.feature} {brand} {kind} {_OPTION[name].format(value)}"

    @property
    def cheapest(self) -> str:
        """asin of the cheapest product that fits."""
        return min(self.prices, key=self.prices.__getitem__)

    @property
    def goal(self) -> Goal:
        """The goal whose full reward only the products that fit have."""
        brand, kind = self.line
        return Goal(
            asin=self.cheapest,
            instruction=self.text,
            attributes=(brand.lower(), self.feature),
            options=dict([self.option]),
            name=kind,
            query=kind,
        )


def one_price_each(catalogue: Catalogue, *, seed: int) -> Catalogue:
    """The same shop with a single price per product, in whole cents, where it had a range."""
    drawn = {asin: round(price, 2) for asin, price in prices(catalogue.products, seed=seed).items()}
    products = tuple(
        replace(product, pricing=(drawn[product.asin],), price_tag=f"${drawn[product.asin]:.2f}")
        for product in catalogue.products
    )
    return replace(catalogue, products=products)


def goods(catalogue: Catalogue) -> list[Good]:
    """All goods of an invented shop, in a fixed order; it must have a single price per product."""
    lines: defaultdict[tuple[str, str], list[Product]] = defaultdict(list)
    for product in catalogue.products:
        brand = " ".join(product.title.split()[:2])
        lines[brand, product.query].append(product)
    # two lines of the same brand and type are one to a buyer
    whole = ((line, products) for line, products in sorted(lines.items()) if len(products) == LINE)
    wanted = (good for line, products in whole for good in _of_line(line, products))
    return [replace(good, number=number) for number, good in enumerate(wanted)]


def _of_line(line: tuple[str, str], products: Sequence[Product]) -> Iterator[Good]:
    name = list(products[0].options)[1]
    features = sorted({attribute for product in products for attribute in product.attributes})
    values = sorted({value for product in products for value in product.options[name]})
    for feature in features:
        for value in values:
            fitting = [p for p in products if feature in p.attributes and value in p.options[name]]
            cents = {p.asin: round(100 * p.pricing[0]) for p in fitting}
            if len(fitting) == FITTING == len(set(cents.values())):
                yield Good(number=0, line=line, feature=feature, option=(name, value), prices=cents)


def limit(cheapest: Sequence[int], slack: float) -> int:
    """Cents that may be spent, where the cheapest products cost so many."""
    return sum(cheapest) + int(sum(cheapest) * slack)


_DEVELOPMENT = 10_000_000
"""Distance from the seed of the training's shop to that of the development shop."""
_BETWEEN = " | "
_ENOUGH = 7
"""Products per good with which a shop has enough lines, whatever its seed: a line has five, and some share a name."""


@dataclass(frozen=True)
class ErrandEnvironment(WebShopEnvironment):
    """One shop and its goods; the questions of a task are goods, identified by their ids."""

    _: KW_ONLY
    wanted: Mapping[str, Good]
    """Id of a question -> its good."""
    slack: float
    """Share by which the total price may exceed that of the cheapest products."""

    def limit(self, task: Task) -> int:
        """The highest total price in cents."""
        return limit([min(self.wanted[q.id].prices.values()) for q in task.questions], self.slack)

    def score(self, task: Task, answer: str) -> Outcome:
        """Metrics: "em", per good 1 for the full reward, all 0 above the limit; "spent", in dollars. Reward: sum of em.

        Goods that were not bought score 0, and the others count.
        """
        goals = self._goals(task)
        bought = tuple(Purchase(**purchase) for purchase in json.loads(answer or "[]"))
        rewards = self.shop.rewards(Session(goals=goals, purchases=bought))
        spent = sum(round(100 * purchase.price) for purchase in bought)
        kept = spent <= self.limit(task)
        each = (*(float(kept and r >= SOLVED) for r in rewards), *(0.0 for _ in goals[len(rewards) :]))
        return Outcome(sum(each), {"em": each, "spent": spent / 100})

    def show(self, session: Session) -> str:
        """The page in one line: no prices among the results, all of a product on its own page."""
        if session.page in ("search", "done"):
            parts = ["Search page" if session.page == "search" else "Thank you"]
            parts += [f"Bought {len(session.purchases)} of {len(session.goals)}"]
        elif session.page == "results":
            parts = self._results(session)
        elif session.page == "item":
            parts = self._item(session)
        else:
            parts = [element.text.strip() for element in self.shop.page(session)[2:]]
        return _BETWEEN.join(parts)

    def _results(self, session: Session) -> list[str]:
        first = (session.results_page - 1) * RESULTS_A_PAGE
        shown = session.results[first : first + RESULTS_A_PAGE]
        head = f"Results {first + 1} to {first + len(shown)} of {len(session.results)}" if shown else "No results"
        return [
            head,
            *(f"{asin}: {self.shop.products[asin].title}" for asin in shown),
            *[PREVIOUS] * (session.results_page > 1),
            *[NEXT] * (first + len(shown) < len(session.results)),
        ]

    def _item(self, session: Session) -> list[str]:
        product = self.shop.products[session.asin]
        return [
            f"{product.asin}: {product.title}",
            product.price_tag,
            *product.bullet_points,
            *(f"{name}: {', '.join(values)}" for name, values in product.options.items()),
            *(f"chosen: {value}" for value in session.options.values()),
            PREVIOUS,
            BUY_NOW,
        ]


class ErrandTasks(TasksConfig):
    """Several goods under one total price, in an invented shop."""

    prompts: ClassVar[tuple[str, str, str]] = ("bench-errand", "bench-errand", "bench-errand-tools")
    asks: ClassVar[tuple[str, ...]] = (ACT,)
    kind: str = "errand"
    level: int = Field(default=2, ge=1, le=len(SLACKS))
    """How much the total price may exceed that of the cheapest products: 1: by a quarter, 2: by a tenth, 3: by a
    twentieth, 4: by a hundredth."""
    products: int = Field(default=500, ge=150, le=1_000_000)
    """Products of the shop."""
    seed: Seed = 0
    """Seed of the shop. Training and evaluation share no brand and no product, whatever the seeds."""
    evaluated: Literal["test", "development"] = "test"
    """Shop of the evaluation; development: another one with the names of the training half."""
    prompt: PromptChoice | None = None
    """Text at the head of every context. None: as [protocol] and these tasks need it."""
    memory: int | None = Field(default=None, ge=0)
    """Tokens of memory of the scripted shopper, whose notes need 25; with fewer it writes none. None: as many as it
    likes."""
    turns_per_good: int = Field(default=20, ge=1)
    """Turns of a task per good; 14 are enough to open all five products that come into question and to buy one."""

    def source(self, split: Split, tags: Tags) -> ErrandSource:
        """The tasks of one half. Raises UserError where the tags have no actions of a shop."""
        if ACT not in tags.action_tags:
            raise UserError(f"the tags {tags.name!r} have no actions of a shop; leave out protocol.actions")
        return ErrandSource(self, split, tags)

    def expert(self, tasks: Sequence[Task], environment: Environment, tags: Tags, *, seed: int) -> Callable[[str], str]:
        return ShopperScript(Shopper(self.memory, seed), tags)

    def development(self) -> ErrandTasks:
        return self.model_copy(update={"evaluated": "development"})

    def small(self) -> ErrandTasks:
        return self.model_copy(update={"products": 150})

    def turns(self, objectives: int) -> int:
        return self.turns_per_good * objectives

    def text_sizes(self, objectives: int) -> TextSizes:
        return TextSizes(PROMPT_TOKENS + QUESTION_TOKENS * objectives, 200)


@dataclass(frozen=True)
class ErrandSource(TaskSource):
    """One half's shop and the goods to buy in it."""

    config: ErrandTasks
    half: Split
    tags: Tags

    @cached_property
    def environment(self) -> ErrandEnvironment:
        config = self.config
        seed = config.seed + _DEVELOPMENT * self._development
        catalogue = one_price_each(invent(seed, self._names, config.products), seed=seed)
        wanted = {f"{self.name}-{good.number}": good for good in goods(catalogue)}
        return ErrandEnvironment(
            Shop.build(catalogue.products, {product.asin: product.pricing[0] for product in catalogue.products}),
            {number: good.goal for number, good in wanted.items()},
            wanted=wanted,
            slack=SLACKS[config.level],
        )

    @property
    def name(self) -> str:
        """Name of the shop: its tasks' ids begin with it."""
        return f"errand-{'development' if self._development else self.half}-{self.config.seed}"

    @property
    def _development(self) -> bool:
        return self.half == "evaluation" and self.config.evaluated == "development"

    @property
    def _names(self) -> Split:
        """The half whose names the shop has."""
        return "train" if self._development else self.half

    @cached_property
    def _lines(self) -> list[list[tuple[Question, int]]]:
        """The goods of each line as questions, with the lowest price in cents."""
        lines: dict[tuple[str, str], list[tuple[Question, int]]] = {}
        for name, good in self.environment.wanted.items():
            question = Question(id=name, text=good.text, answers=(good.cheapest,), source=self.name)
            lines.setdefault(good.line, []).append((question, min(good.prices.values())))
        return list(lines.values())

    def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
        """Every task draws its lines anew, and of each one good; no task has two goods of a line."""
        lines = self._lines
        if objectives > len(lines):
            enough, most = _ENOUGH * objectives, len(asins(self._names))
            larger = f"or a larger shop (tasks.products = {enough})"
            if enough > most:
                larger = f"or at most {most // _ENOUGH} with the largest shop of this half (tasks.products = {most})"
            raise UserError(
                f"an errand of {objectives} goods needs as many lines of products, and the shop of "
                f"{self.config.products} products has {len(lines)}; take at most {len(lines)} goods, {larger}"
            )
        rng = random.Random(f"{self.name}/{objectives}/{seed}")
        return [self._task([rng.choice(line) for line in rng.sample(lines, objectives)]) for _ in range(count)]

    def _task(self, drawn: Sequence[tuple[Question, int]]) -> Task:
        config, questions = self.config, tuple(question for question, _ in drawn)
        most = limit([price for _, price in drawn], SLACKS[config.level])
        listed = [f"Q{number} {question.text}" for number, question in enumerate(questions, start=1)]
        listed += [f"The total price may be at most ${most / 100:.2f}."]
        numbers = "+".join(question.id.rpartition("-")[2] for question in questions)
        return Task(
            id=f"{self.name}-l{config.level}-{numbers}",
            questions=questions,
            prompt=fill(config.own_prompt(self.tags), "\n".join(listed), self.tags),
            turn_limit=config.turns_per_good * len(questions),
            corpus=self.name,
        )
