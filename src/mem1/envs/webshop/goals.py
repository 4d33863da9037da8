"""The goals of a catalogue, as WebShop makes them: those that people wrote, and those made from templates.

    human      "i want a pair of cargo pants, and price lower than 40.00 dollars"      options ("orange",)
    synthetic  "Find me cargo pants with color: orange, and size: m, and price lower than 40.00 dollars"
                                                                           options {"color": "orange", "size": "m"}

    goals = shuffled(human_goals(catalogue, prices(catalogue.products, seed=0), seed=0));  split(goals, "test")

The rules are those of the original's engine/goal.py. The original draws prices and price bounds without a seed, so two
runs have different goals in the same order; ours are a function of a seed, drawn in the original's order.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from mem1.envs.webshop.catalogue import Catalogue, Instruction, Product
from mem1.errors import UserError
from mem1.tasks.splits import PARTS, Part

NO_PRICE = 1_000_000.0
"""Price bound of a goal whose instruction names no price (WebShop, goal.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One shopping goal and the criteria it is scored by."""

    asin: str = ""
    """asin of the product it was written for; any product that fits counts the same."""
    instruction: str
    """The text that the shopper reads, including the price."""
    attributes: tuple[str, ...] = ()
    options: Mapping[str, str] | tuple[str, ...] = ()
    """Synthetic goals: option name -> value; goals by people: values only. The original scores the two differently,
    see `score`."""
    price_upper: float = NO_PRICE
    """Highest price in dollars."""
    name: str = ""
    category: str = ""
    query: str = ""
    product_category: str = ""
    weight: float = 1.0
    """Relative probability with which the original draws it."""

    @classmethod
    def from_keys(cls, keys: Mapping[str, Any]) -> Goal:
        """Read the original's keys (`instruction_text`, `goal_options`, ...)."""
        options = keys.get("goal_options") or ()
        return cls(
            asin=keys.get("asin") or "",
            instruction=keys.get("instruction_text") or "",
            attributes=tuple(keys.get("attributes") or ()),
            options=dict(options) if isinstance(options, Mapping) else tuple(options),
            price_upper=float(keys.get("price_upper", NO_PRICE)),
            name=keys.get("name") or "",
            category=keys.get("category") or "",
            query=keys.get("query") or "",
            product_category=keys.get("product_category") or "",
            weight=float(keys.get("weight", 1.0)),
        )


T = TypeVar("T")

KINDS = ("human", "synthetic")
SHUFFLE_SEED = 233
"""Seed of the order of the goals, which defines the published test sets."""
TEST, DEVELOPMENT = 500, 1_000
"""Sizes of these parts, taken in this order; the rest is for training (baseline_models/env.py)."""

_BOUNDS = tuple(10.0 * step for step in range(1, 100))
_NEXT = 4
"""Number of bounds above the price of which two are drawn; the larger is used."""


def prices(products: Iterable[Product], *, seed: int) -> dict[str, float]:
    """asin -> price in dollars: the product's only price, or one drawn uniformly from its range."""
    rng = random.Random(seed)
    return {p.asin: p.pricing[0] if len(p.pricing) == 1 else rng.uniform(*p.pricing) for p in products}


def human_goals(catalogue: Catalogue, prices: Mapping[str, float], *, seed: int) -> list[Goal]:
    """One goal per instruction, in the order of the products; instructions without attributes are skipped."""
    rng = random.Random(seed)
    goals = []
    for product in catalogue.products:
        for asked in catalogue.human.get(product.asin, ()):
            if asked.attributes:
                bound, text = _bound(prices[product.asin], rng)
                goals.append(_goal(product, asked, asked.text.strip(".") + text, product.name, asked.options, bound))
    return goals


def synthetic_goals(catalogue: Catalogue, prices: Mapping[str, float], *, seed: int) -> list[Goal]:
    """One goal per combination of the product's options; all goals of a product share one price bound.

    A goal's weight is the mean, over its attributes, of 1 / number of goals with that attribute. Raises UserError if
    an instruction has no attributes.
    """
    rng = random.Random(seed)
    goals = []
    for product in catalogue.products:
        asked = catalogue.synthetic.get(product.asin)
        if asked is None:
            continue
        if not asked.attributes:
            raise UserError(f"the synthetic instruction of product {product.asin!r} has no attributes to score by")
        bound, text = _bound(prices[product.asin], rng)
        for options in _combinations(product):
            instruction = asked.text + _with(options) + text
            goals.append(_goal(product, asked, instruction, product.title, options, bound))
    return _weighed(goals)


def _goal(
    product: Product,
    asked: Instruction,
    instruction: str,
    name: str,
    options: Mapping[str, str] | tuple[str, ...],
    bound: float,
) -> Goal:
    return Goal(
        asin=product.asin,
        instruction=instruction,
        attributes=asked.attributes,
        options=options,
        price_upper=bound,
        name=name,
        category=product.category,
        query=product.query,
        product_category=product.product_category,
    )


def shuffled(goals: Iterable[T]) -> list[T]:
    """The original's order: `random.seed(233); random.shuffle(goals)`."""
    order = list(goals)
    random.Random(SHUFFLE_SEED).shuffle(order)
    return order


def goals_by_id(catalogue: Catalogue, prices: Mapping[str, float], kind: str, *, seed: int) -> dict[str, Goal]:
    """ "human-7" -> the goal with number 7 of its kind in the original's order; possibly empty.

    Raises UserError for an unknown kind.
    """
    if kind not in KINDS:
        raise UserError(f"unknown kind of goals {kind!r}; known: {', '.join(KINDS)}")
    make = human_goals if kind == "human" else synthetic_goals
    goals = shuffled(make(catalogue, prices, seed=seed))
    return {f"{kind}-{number}": goal for number, goal in enumerate(goals)}


def split(goals: Sequence[T], name: Part) -> Sequence[T]:
    """Part of shuffled goals: 0 to 499 for "test", 500 to 1,499 for "development", the rest for "train".

    A small catalogue fills them in this order: 13 goals are all for "test". Raises UserError for an empty part.
    """
    if name not in PARTS:
        raise UserError(f"unknown split of goals {name!r}; known: {', '.join(PARTS)}")
    first, end = {"test": (0, TEST), "development": (TEST, TEST + DEVELOPMENT), "train": (TEST + DEVELOPMENT, None)}[
        name
    ]
    if first >= len(goals):
        raise UserError(f"no goals for {name!r}: they start after the first {first:,}, and the shop has {len(goals):,}")
    return goals[first:end]


def number_of_combinations(product: Product) -> int:
    """Number of synthetic goals per instruction for the product."""
    return math.prod(map(len, product.options.values()))


def _bound(price: float, rng: random.Random) -> tuple[float, str]:
    """Price bound in dollars and its words in the instruction; none above 970 dollars."""
    above = [bound for bound in _BOUNDS if bound > price][:_NEXT]
    if len(above) < 2:
        return NO_PRICE, ""
    bound = max(rng.sample(above, 2))
    return bound, f", and price lower than {bound:.2f} dollars"


def _combinations(product: Product) -> Iterable[dict[str, str]]:
    """Every choice of one value per option, ordered by option name; one empty choice without options."""
    names = sorted(product.options)
    for values in itertools.product(*(product.options[name] for name in names)):
        yield dict(zip(names, values, strict=True))


def _with(options: Mapping[str, str]) -> str:
    said = ", and ".join(f"{name}: {value}" for name, value in options.items())
    return f" with {said}" if said else ""


def _weighed(goals: Sequence[Goal]) -> list[Goal]:
    having = Counter(attribute for goal in goals for attribute in goal.attributes)
    return [
        replace(goal, weight=sum(1 / having[attribute] for attribute in goal.attributes) / len(goal.attributes))
        for goal in goals
    ]
