"""Invented catalogues: the shop that needs no data of others.

    BALIS17   Balen Brandov Light Travel Backpack   $24.49     color: teal, red     size: small, large
    features      made to be waterproof / comes in a box / stays padded for years
    description   This backpack is roomy and good for school.
    asked         find me a light roomy backpack     (+ with color: teal, and size: small, and price lower than 50.00 …)

A catalogue is a pure function of its seed, its half (training or evaluation) and its size. Nothing of one half occurs
in the other: no brand, no asin, and no type of product with the same four attributes. Single words are shared.

Of the four attributes of a product one stands in its title, one in its description and two among its features, so a
shopper that wants to be sure must open pages. A type has some 17 products in a catalogue of 500; two of its products
share many attributes and options, and seldom all that was asked for.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from mem1.envs.webshop.catalogue import Catalogue, Instruction
from mem1.envs.webshop.invented_words import (
    ASKING,
    CHATTER,
    DEPARTMENTS,
    DESCRIPTION,
    PRAISE,
    REVIEWS,
    Department,
    asins,
    brands,
)
from mem1.envs.webshop.product import Product, Review
from mem1.errors import UserError
from mem1.tasks.atlas.names import Split, split_of

_DOLLARS = (10, 59)
"""Lowest and highest whole dollars of a price: bounds, at most 40 dollars higher, have two digits, too."""
_CENTS = (0.25, 0.49, 0.75, 0.99)
_PRICE_RANGES = 0.2
"""Share of products with a lowest and a highest price."""
_REVIEWED = 0.3
_MODELS = 5
"""Products of one line."""
_HIDDEN_WANTED = (1, 1, 2)
"""Attributes that an instruction asks for besides that in the title; one of these."""
_SHELVES = tuple(
    (name, group, kind)
    for name, department in DEPARTMENTS.items()
    for group, types in department.groups.items()
    for kind in types
)
"""Every (department, group, type); products go round them."""


def invent(seed: int, split: Split, products: int = 500) -> Catalogue:
    """The catalogue of this seed. Raises UserError where there are not enough asins or fewer products than types."""
    pool = asins(split)
    if not len(_SHELVES) <= products <= len(pool):
        raise UserError(
            f"an invented catalogue of split {split!r} has {len(_SHELVES)} to {len(pool)} products, not {products}"
        )
    rng = random.Random(f"shop/{split}/{seed}")
    codes = iter(rng.sample(pool, products))
    made: list[Product] = []
    for shelf in itertools.cycle(_SHELVES):
        line = _line(rng, split, *shelf)
        made += [_product(rng, split, line, asin) for asin in itertools.islice(codes, _MODELS)]
        if len(made) == products:
            break
    rng.shuffle(made)  # else the order, which settles equal scores of a search, would tell the type
    asked = {product.asin: _instruction(rng, product) for product in made}
    return Catalogue(products=tuple(made), human={}, synthetic=asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """What the models of one line have in common."""

    department: str
    group: str
    kind: str
    brand: str
    attribute: str
    """Stands in the title."""
    values: tuple[str, ...]
    """Of the first option."""


def _line(rng: random.Random, split: Split, department: str, group: str, kind: str) -> _Line:
    known = DEPARTMENTS[department]
    return _Line(
        department=department,
        group=group,
        kind=kind,
        brand=rng.choice(brands(split)),
        attribute=rng.choice(known.attributes),
        values=_some(rng, next(iter(known.options.values())), 3),
    )


def _product(rng: random.Random, split: Split, line: _Line, asin: str) -> Product:
    department = DEPARTMENTS[line.department]
    hidden = _attributes(rng, split, line, department)
    use, other_use = rng.sample(department.uses, 2)
    title = f"{line.brand} {line.attribute} {use} {line.kind}".title()
    pricing = _pricing(rng)
    reviews = _reviews(rng, line.kind)
    first, second = department.options
    return Product(
        asin=asin,
        name=title,
        title=title,
        description=DESCRIPTION.format(type=line.kind, use=other_use),
        bullet_points=_features(rng, hidden),
        attributes=(line.attribute, *hidden),
        options={first: line.values, second: _some(rng, department.options[second], rng.choice((1, 2)))},
        pricing=pricing,
        price_tag=" to ".join(f"${price:.2f}" for price in pricing),
        category=line.department,
        query=line.kind,
        product_category=" › ".join((line.department, line.group, line.kind)).title(),
        rating=f"{sum(float(r.score) for r in reviews) / len(reviews):.1f}" if reviews else "N.A.",
        reviews=reviews,
    )


def _attributes(rng: random.Random, split: Split, line: _Line, department: Department) -> list[str]:
    """Three more attributes; with the line's own, this type of product has these four in this half only."""
    others = [attribute for attribute in department.attributes if attribute != line.attribute]
    while True:
        drawn = rng.sample(others, 3)
        if split_of(line.kind, " ".join(sorted((line.attribute, *drawn)))) == split:
            return drawn


def _pricing(rng: random.Random) -> tuple[float, ...]:
    lowest = rng.randint(*_DOLLARS) + rng.choice(_CENTS)
    highest = rng.randint(*_DOLLARS) + rng.choice(_CENTS)
    return (lowest, highest) if rng.random() < _PRICE_RANGES and lowest < highest else (lowest,)


def _features(rng: random.Random, attributes: list[str]) -> tuple[str, ...]:
    """Bullet points: one an attribute and one about nothing, in any order."""
    frames = rng.sample(PRAISE, len(attributes))
    return rng.choice(CHATTER), *(frame.format(a) for frame, a in zip(frames, attributes, strict=True))


def _some(rng: random.Random, values: tuple[str, ...], count: int) -> tuple[str, ...]:
    """So many of the values, in their usual order."""
    kept = rng.sample(values, count)
    return tuple(value for value in values if value in kept)


def _reviews(rng: random.Random, kind: str) -> tuple[Review, ...]:
    if rng.random() >= _REVIEWED:
        return ()
    scores = rng.sample(tuple(REVIEWS), rng.randint(1, 2))
    return tuple(Review(score=s, title=REVIEWS[s][0], body=REVIEWS[s][1].format(type=kind)) for s in scores)


def _instruction(rng: random.Random, product: Product) -> Instruction:
    shown, *others = product.attributes
    wanted = (shown, *rng.sample(others, rng.choice(_HIDDEN_WANTED)))
    article = "an" if wanted[0][0] in "aeiou" else "a"
    return Instruction(text=f"{rng.choice(ASKING)} {article} {' '.join(wanted)} {product.query}", attributes=wanted)
