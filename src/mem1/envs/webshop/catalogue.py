"""The contents of a shop: products, instructions for them, and goals, which add options and a price bound.

    human      "i want a pair of cargo pants, and price lower than 40.00 dollars"      options ("orange",)
    synthetic  "Find me cargo pants with color: orange, and size: m, and price lower than 40.00 dollars"
                                                                           options {"color": "orange", "size": "m"}

    goals = shuffled(human_goals(catalogue, prices(catalogue.products, seed=0), seed=0));  split(goals, "test")

The rules for goals are those of the original's engine/goal.py. It draws prices and price bounds without a seed, so two
runs have different goals in the same order; ours are a function of a seed, drawn in the original's order.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from mem1.errors import UserError
from mem1.tasks.compose import PARTS, Part

PRICE_UNKNOWN = 100.0
"""Price in dollars of a product without one (WebShop, engine.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """One buyer's review."""

    score: str = ""
    title: str = ""
    body: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A cleaned product, one field per key of the original's cleaned form. Raises ValueError for prices that are none.

    `name` is the seller's text, `title` the shop's; in the original data they are equal.
    """

    asin: str
    name: str
    title: str
    description: str = ""
    bullet_points: tuple[str, ...] = ()
    """Shown under "Features"."""
    attributes: tuple[str, ...] = ()
    """Claims about the product ("long lasting"): the hidden list that goals are scored by."""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Option name ("color") -> its values, both in lower case."""
    option_images: Mapping[str, str] = field(default_factory=dict)
    """Option value -> URL of its picture, if it has one."""
    pricing: tuple[float, ...] = (PRICE_UNKNOWN,)
    """One price in dollars, or the lowest and the highest."""
    price_tag: str = ""
    """The price as shown: "$877.8" or "$10.0 to $20.0"."""
    category: str = ""
    query: str = ""
    """The search that found the product when the data were gathered."""
    product_category: str = ""
    """Category path, joined by " \u203a "."""
    rating: str = "N.A."
    reviews: tuple[Review, ...] = ()
    main_image: str = ""

    def __post_init__(self) -> None:
        if not 1 <= len(self.pricing) <= 2 or list(self.pricing) != sorted(self.pricing):
            raise ValueError(f"product {self.asin!r}: pricing is one price, or (lowest, highest), not {self.pricing}")
        if not all(0 <= price < math.inf for price in self.pricing):
            raise ValueError(f"product {self.asin!r}: a price is a number of dollars from 0, not {self.pricing}")

    @classmethod
    def from_keys(cls, keys: Mapping[str, Any]) -> Product:
        """Read the original's cleaned keys (`Title`, `BulletPoints`, ...): missing ones have defaults, others are
        ignored. Raises ValueError for one of the wrong type."""
        name, title = keys.get("name"), keys.get("Title")
        pricing = keys.get("pricing") or (PRICE_UNKNOWN,)
        if not isinstance(pricing, (list, tuple)):
            raise ValueError(f"pricing must be a list of one or two prices, not {pricing!r:.80}")
        options, images = keys.get("options") or {}, keys.get("option_to_image") or {}
        return cls(
            asin=str(keys.get("asin", "")),
            name=str(title or "") if name is None else str(name),
            title=str(name or "") if title is None else str(title),
            description=_text(keys, "Description"),
            bullet_points=texts(keys.get("BulletPoints"), "BulletPoints"),
            attributes=texts(keys.get("Attributes"), "Attributes"),
            options={option: texts(values, f"options of {option!r}") for option, values in options.items()},
            option_images={value: _text(images, value) for value in images if images[value]},
            pricing=tuple(sorted(map(float, pricing[:2]))),
            price_tag=_text(keys, "Price"),
            category=_text(keys, "category"),
            query=_text(keys, "query"),
            product_category=_text(keys, "product_category"),
            rating=str(keys.get("Rating") or "N.A."),
            reviews=tuple(
                Review(score=str(r.get("score", "")), title=_text(r, "title"), body=_text(r, "body"))
                for r in keys.get("Reviews") or ()
            ),
            main_image=_text(keys, "MainImage"),
        )

    def to_keys(self) -> dict[str, Any]:
        """The inverse of `from_keys`, for JSON."""
        keys = {_KEYS.get(name, name): getattr(self, name) for name in self.__dataclass_fields__}
        return keys | {"Reviews": [asdict(review) for review in self.reviews]}


def texts(value: Any, what: str) -> tuple[str, ...]:
    """A list of texts; empty for None. Raises ValueError for anything else, a text included."""
    if not (value is None or (isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value))):
        raise ValueError(f"{what} must be a list of texts, not {value!r:.80}")
    return tuple(value or ())


def _text(keys: Mapping[str, Any], name: str) -> str:
    value = keys.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} must be a text, not {value!r:.80}")
    return value or ""


_KEYS = {
    **{"title": "Title", "description": "Description", "bullet_points": "BulletPoints", "attributes": "Attributes"},
    **{"option_images": "option_to_image", "price_tag": "Price", "rating": "Rating", "reviews": "Reviews"},
    "main_image": "MainImage",
}
"""Field of a product -> the original's key, where they differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """An instruction for one product, before a price bound is drawn."""

    text: str
    attributes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Option values that the person asked for, without names. Empty if synthetic: goals then use every combination of
    the product's options."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One product and its instructions."""

    product: Product
    human: tuple[Instruction, ...] = ()
    synthetic: Instruction | None = None
    """None: no synthetic goals are made for it."""


@dataclass(frozen=True)
class Catalogue:
    """Products in the order of their file, with unique asins."""

    products: tuple[Product, ...]
    human: Mapping[str, tuple[Instruction, ...]]
    """asin -> instructions written by people."""
    synthetic: Mapping[str, Instruction]
    """asin -> the text that its synthetic goals begin with."""

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Catalogue:
        """Raises ValueError for a repeated asin."""
        by_asin: dict[str, Entry] = {}
        for entry in entries:
            if entry.product.asin in by_asin:
                raise ValueError(f"product {entry.product.asin!r} occurs twice in the catalogue")
            by_asin[entry.product.asin] = entry
        return cls(
            products=tuple(entry.product for entry in by_asin.values()),
            human={asin: entry.human for asin, entry in by_asin.items() if entry.human},
            synthetic={asin: entry.synthetic for asin, entry in by_asin.items() if entry.synthetic is not None},
        )


MOST_COMBINATIONS = 50_000
"""Most synthetic goals of one product, which take some 40 MB."""
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

    Raises UserError if an instruction has no attributes, or a product more than `MOST_COMBINATIONS`.
    """
    rng = random.Random(seed)
    goals = []
    for product in catalogue.products:
        asked = catalogue.synthetic.get(product.asin)
        if asked is None:
            continue
        if not asked.attributes:
            raise UserError(f"the synthetic instruction of product {product.asin!r} has no attributes to score by")
        if (found := number_of_combinations(product)) > MOST_COMBINATIONS:
            raise UserError(
                f"product {product.asin!r} has {found:,} combinations of its options, each of which is a goal; at most "
                f"{MOST_COMBINATIONS:,} are made: leave some of its options out, or its instruction_text"
            )
        bound, text = _bound(prices[product.asin], rng)
        for options in _combinations(product):
            named = ", and ".join(f"{name}: {value}" for name, value in options.items())
            instruction = asked.text + (f" with {named}" if named else "") + text
            goals.append(_goal(product, asked, instruction, product.title, options, bound))
    return goals


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
