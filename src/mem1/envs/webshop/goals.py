"""What a shopper was asked for: one goal, with the keys of the original.

Goal.from_keys({"instruction_text": "i need a blue rug under 30 dollars", "attributes": ["easy clean"], ...})
->  Goal(instruction="i need a blue rug under 30 dollars", attributes=("easy clean",), ...)
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from mem1.envs.webshop.catalogue import Catalogue, Product
from mem1.errors import UserError
from mem1.tasks.splits import PARTS, Part

NO_PRICE = 1_000_000.0
"""Upper bound of a goal whose instruction speaks of no price (WebShop, goal.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One shopping goal, and what it is scored by."""

    asin: str = ""
    """Of the product that it was written for; another one that fits is as good."""
    instruction: str
    """The text that the shopper reads, the price included."""
    attributes: tuple[str, ...] = ()
    options: Mapping[str, str] | tuple[str, ...] = ()
    """Synthetic goals: name of the option -> value; goals by people: values alone. The original scores the two in
    different ways, see `score`."""
    price_upper: float = NO_PRICE
    """Largest price in dollars."""
    name: str = ""
    category: str = ""
    query: str = ""
    product_category: str = ""
    weight: float = 1.0
    """Share in which the original draws it."""

    @classmethod
    def from_keys(cls, keys: Mapping[str, Any]) -> Goal:
        """Of the original's form (`instruction_text`, `goal_options`, ...)."""
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
"""Of the order of the goals, by which published test sets are defined."""
TEST, DEVELOPMENT = 500, 1_000
"""Goals of each, in this order, from the first on; the rest is for training (baseline_models/env.py)."""

_BOUNDS = tuple(10.0 * step for step in range(1, 100))
_NEXT = 4
"""Bounds, from the first one above the price, of which two are drawn and the larger is taken."""


def prices(products: Iterable[Product], *, seed: int) -> dict[str, float]:
    """asin -> dollars that the product costs: its one price, or one drawn uniformly between its two."""
    rng = random.Random(seed)
    return {p.asin: p.pricing[0] if len(p.pricing) == 1 else rng.uniform(*p.pricing) for p in products}


def human_goals(catalogue: Catalogue, prices: Mapping[str, float], *, seed: int) -> list[Goal]:
    """One goal an instruction, in the order of the products; instructions without attributes make none."""
    rng = random.Random(seed)
    goals = []
    for product in catalogue.products:
        for asked in catalogue.human.get(product.asin, ()):
            if asked.attributes:
                bound, text = _bound(prices[product.asin], rng)
                goals.append(
                    Goal(
                        asin=product.asin,
                        instruction=asked.text.strip(".") + text,
                        attributes=asked.attributes,
                        options=asked.options,
                        price_upper=bound,
                        name=product.name,
                        category=product.category,
                        query=product.query,
                        product_category=product.product_category,
                    )
                )
    return goals


def synthetic_goals(catalogue: Catalogue, prices: Mapping[str, float], *, seed: int) -> list[Goal]:
    """One goal a combination of the product's options; all of a product have one price bound.

    A goal weighs the mean, over its attributes, of 1 / goals with that attribute. Raises UserError where an instruction
    has no attributes.
    """
    rng = random.Random(seed)
    goals = []
    for product in catalogue.products:
        asked = catalogue.synthetic.get(product.asin)
        if asked is None:
            continue
        if not asked.attributes:
            raise UserError(f"the synthetic instruction of product {product.asin!r} has no attributes to be scored by")
        bound, text = _bound(prices[product.asin], rng)
        for options in _combinations(product):
            goals.append(
                Goal(
                    asin=product.asin,
                    instruction=asked.text + _with(options) + text,
                    attributes=asked.attributes,
                    options=options,
                    price_upper=bound,
                    name=product.title,
                    category=product.category,
                    query=product.query,
                    product_category=product.product_category,
                )
            )
    return _weighed(goals)


def shuffled(goals: Iterable[T]) -> list[T]:
    """In the order in which the original numbers them: `random.seed(233); random.shuffle(goals)`."""
    order = list(goals)
    random.Random(SHUFFLE_SEED).shuffle(order)
    return order


def goals_by_id(catalogue: Catalogue, prices: Mapping[str, float], kind: str, *, seed: int) -> dict[str, Goal]:
    """ "human-7" -> the goal that the original numbers 7 among those of its kind, in that order; perhaps none.

    Raises UserError for an unknown kind.
    """
    if kind not in KINDS:
        raise UserError(f"unknown kind of goals {kind!r}; known: {', '.join(KINDS)}")
    make = human_goals if kind == "human" else synthetic_goals
    goals = shuffled(make(catalogue, prices, seed=seed))
    return {f"{kind}-{number}": goal for number, goal in enumerate(goals)}


def split(goals: Sequence[T], name: Part) -> Sequence[T]:
    """Of shuffled goals: 0 to 499 for "test", 500 to 1,499 for "development", the others for "train".

    A small catalogue fills them in this order: 13 goals are all for "test". Raises UserError where none is left.
    """
    if name not in PARTS:
        raise UserError(f"unknown split of goals {name!r}; known: {', '.join(PARTS)}")
    first, end = {"test": (0, TEST), "development": (TEST, TEST + DEVELOPMENT), "train": (TEST + DEVELOPMENT, None)}[
        name
    ]
    if first >= len(goals):
        raise UserError(f"no goals for {name!r}: they begin after {first:,}, and the shop has {len(goals):,}")
    return goals[first:end]


def number_of_combinations(product: Product) -> int:
    """Synthetic goals that one instruction for the product makes."""
    return math.prod(map(len, product.options.values()))


def _bound(price: float, rng: random.Random) -> tuple[float, str]:
    """Price bound in dollars, and what the instruction says of it; above 970 dollars there is none."""
    above = [bound for bound in _BOUNDS if bound > price][:_NEXT]
    if len(above) < 2:
        return NO_PRICE, ""
    bound = max(rng.sample(above, 2))
    return bound, f", and price lower than {bound:.2f} dollars"


def _combinations(product: Product) -> Iterable[dict[str, str]]:
    """Every choice of one value an option, the options by name; of a product without options the empty one."""
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
