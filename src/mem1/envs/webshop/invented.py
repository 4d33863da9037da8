"""Invented catalogues: a shop that needs no external data.

    asked       find me a light roomy tent     (+ with color: teal, and size: s, and price lower than 50.00 dollars)
    HOLA88      Fala Prellov Light School Tent     $24.49     color: teal, red, blue     size: s, l
    features    easy to store / always padded / made to be roomy / stays compact for years
    GOLA64      Fala Prellov Light Travel Tent     $51.25     color: teal, red, blue     size: m
    features    comes in a box / always roomy / a very sturdy design / made to be windproof

A catalogue is a pure function of its seed, its half (training or evaluation) and its size. The halves share only single
words: no brand ("Fala Prellov"), no asin ("HOLA88") and no type of product with the same attributes occurs in both.

Products come in lines of five. What a search sees (title, description, first bullet point, option values of two or more
letters) is nearly the same for a whole line; price, attributes in the other bullet points and the second option differ,
and are seen on the results page, among the features and on the item's page. So any good search finds the product asked
for, but seldom ranks it first.

Attributes are single words, none of which is part of another word of the shop, because the reward looks for them
anywhere in a text. Option values contain a colour word only if they are one, because the reward reduces values to such
words.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mem1.envs.webshop.catalogue import Catalogue, Entry, Instruction, Product, Review
from mem1.errors import UserError
from mem1.tasks.atlas.world import FIRST_WORDS, LAST_WORDS, split_of_name
from mem1.tasks.compose import Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Department:
    """The goods of one department."""

    groups: Mapping[str, tuple[str, ...]]
    """Second category level -> its types of product."""
    attributes: tuple[str, ...]
    uses: tuple[str, ...]
    """Uses that products mention and goals never ask for."""
    options: Mapping[str, tuple[str, ...]]
    """Two options: name -> possible values, which are distinct. Those of the second option have one letter or digit, so
    that a search does not see them."""


_COLORS = ("black", "white", "red", "blue", "green", "pink", "purple", "orange", "yellow", "teal")
_SIZES = ("s", "m", "l")

DEPARTMENTS: Mapping[str, Department] = {
    "outdoor": Department(
        groups={"bags": ("backpack", "duffel"), "camping": ("tent", "hammock", "lantern")},
        attributes=("waterproof", "light", "sturdy", "foldable", "padded", "roomy", "compact", "windproof"),
        uses=("travel", "school", "hiking", "fishing"),
        options={"color": _COLORS, "size": _SIZES},
    ),
    "kitchen": Department(
        groups={"cooking": ("pan", "kettle", "pot"), "storage": ("jar", "bottle")},
        attributes=("heatproof", "unbreakable", "stackable", "rustproof", "insulated", "airtight", "sleek", "heavy"),
        uses=("lunch", "dinner", "camping", "parties"),
        options={"color": _COLORS, "size": _SIZES},
    ),
    "clothing": Department(
        groups={"tops": ("shirt", "jacket", "sweater"), "shoes": ("boot", "sandal")},
        attributes=("soft", "stretchy", "breathable", "warm", "slim", "casual", "washable", "elegant"),
        uses=("work", "school", "parties", "travel"),
        options={"color": _COLORS, "size": _SIZES},
    ),
    "food": Department(
        groups={"snacks": ("cookie", "cracker", "brownie"), "drinks": ("tea", "juice")},
        attributes=("organic", "vegan", "crunchy", "sweet", "salty", "sugarless", "spicy", "rich"),
        uses=("breakfast", "lunch", "gifts", "parties"),
        options={
            "flavor": ("honey", "cherry", "apple", "ginger", "cinnamon", "pepper", "maple", "caramel"),
            "pack": ("2", "4", "6"),
        },
    ),
    "beauty": Department(
        groups={"skin": ("lotion", "soap", "cream"), "hair": ("shampoo", "gel")},
        attributes=("gentle", "soothing", "moisturizing", "foaming", "mild", "oily", "clean", "fresh"),
        uses=("summer", "winter", "travel", "gifts"),
        options={
            "scent": ("rose", "lemon", "mint", "coconut", "jasmine", "vanilla", "cedar", "berry"),
            "size": _SIZES,
        },
    ),
    "home": Department(
        groups={"bedding": ("blanket", "pillow", "quilt"), "rooms": ("lamp", "rug")},
        attributes=("cozy", "fluffy", "modern", "rustic", "durable", "handmade", "quiet", "plush"),
        uses=("summer", "winter", "guests", "gifts"),
        options={"color": _COLORS, "size": _SIZES},
    ),
}

ASKING = ("find me", "i need", "i want")
"""Beginnings of instructions."""
PRAISE = ("made to be {}", "always {}", "stays {} for years", "a very {} design")
"""Bullet points that state an attribute."""
CHATTER = ("easy to store", "comes in a box", "loved by buyers", "new this year")
"""Bullet points without an attribute."""
DESCRIPTION = "This {type} is good for {use}."
REVIEWS = {
    "5.0": ("great", "we love this {type}"),
    "4.0": ("good", "a good {type} for the price"),
    "2.0": ("not for me", "we hoped for more"),
}
"""Score of a review -> its title and body."""

_BRAND_FIRST, _BRAND_LAST = FIRST_WORDS[::5], LAST_WORDS[::5]
_CODES = FIRST_WORDS[1::5] + FIRST_WORDS[3::5]
_NUMBERS = range(10, 100)


def brands(split: Split) -> list[str]:
    """All brands of one half, in a fixed order: about 768 for training, 256 for evaluation."""
    return [f"{a} {b}" for a in _BRAND_FIRST for b in _BRAND_LAST if split_of_name(a, b) == split]


def asins(split: Split) -> list[str]:
    """All asins of one half, in a fixed order: about 4,320 for training, 1,440 for evaluation."""
    return [f"{word.upper()}{n}" for word in _CODES for n in _NUMBERS if split_of_name(word, str(n)) == split]


def shop_words() -> list[str]:
    """Every distinct word of catalogues and instructions in lower case, without numbers.

    A word is a run of letters, so the asin HOLA88 is "hola" and a number; numbers have one or two digits.
    """
    return list(dict.fromkeys(word for text in _texts() for word in re.findall("[a-z]+", text.lower())))


def _texts() -> Iterator[str]:
    for name, department in DEPARTMENTS.items():
        yield from (name, *department.attributes, *department.uses)
        for group, types in department.groups.items():
            yield from (group, *types)
        for option, values in department.options.items():
            yield from (option, *values)
    yield from (text.format("") for text in (*PRAISE, *CHATTER, *ASKING))
    yield from (text.format(type="") for review in REVIEWS.values() for text in review)
    yield DESCRIPTION.format(type="", use="")
    yield from ("a an with and price lower than dollars to", *_BRAND_FIRST, *_BRAND_LAST, *_CODES)


_MODELS = 5
"""Products per line."""
_DOLLARS = (10, 59)
"""Lowest and highest whole dollars of a price: bounds, at most 40 dollars higher, have two digits too."""
_CENTS = (0.25, 0.49, 0.75, 0.99)
_PRICE_RANGES = 0.1
"""Share of products with a price range."""
_REVIEWED = 0.3
_HIDDEN = 3
"""Number of attributes among a product's features."""
_ASKED_HIDDEN = (1, 1, 2)
"""Numbers of these, one of which is drawn, that an instruction asks for besides the one in the title."""
_SHELVES = tuple(
    (name, group, kind)
    for name, department in DEPARTMENTS.items()
    for group, kinds in department.groups.items()
    for kind in kinds
)
"""Every (department, group, type), in the order of the lines."""


def invent(seed: int, split: Split, products: int = 500) -> Catalogue:
    """The catalogue of this seed; each product has a synthetic instruction.

    Raises UserError for more products than asins, or too few for a line of every type.
    """
    pool, fewest = asins(split), _MODELS * len(_SHELVES)
    if not fewest <= products <= len(pool):
        raise UserError(
            f"an invented catalogue of split {split!r} has {fewest} to {len(pool)} products, not {products}"
        )
    rng = random.Random(f"shop/{split}/{seed}")
    sellers = brands(split)
    lines = (_line(rng, sellers, *shelf) for shelf in itertools.cycle(_SHELVES))
    models = itertools.chain.from_iterable(itertools.repeat(line, _MODELS) for line in lines)
    made = [_product(rng, split, line, asin) for asin, line in zip(rng.sample(pool, products), models, strict=False)]
    rng.shuffle(made)  # a search keeps the order of products with equal scores, which must reveal nothing
    return Catalogue.of(Entry(product, synthetic=_instruction(rng, product)) for product in made)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    department: str
    group: str
    kind: str
    brand: str
    attribute: str
    """The attribute in the title."""
    values: tuple[str, ...]
    """Values of the first option."""


def _line(rng: random.Random, sellers: Sequence[str], department: str, group: str, kind: str) -> _Line:
    known = DEPARTMENTS[department]
    return _Line(
        department=department,
        group=group,
        kind=kind,
        brand=rng.choice(sellers),
        attribute=rng.choice(known.attributes),
        values=_some(rng, next(iter(known.options.values())), 3),
    )


def _product(rng: random.Random, split: Split, line: _Line, asin: str) -> Product:
    department = DEPARTMENTS[line.department]
    hidden = _hidden(rng, split, line, department)
    use, other_use = rng.sample(department.uses, 2)
    title = f"{line.brand} {line.attribute} {use} {line.kind}".title()
    several = 2 if rng.random() < _PRICE_RANGES else 1
    pricing = tuple(sorted(rng.randint(*_DOLLARS) + rng.choice(_CENTS) for _ in range(several)))
    first, second = department.options
    reviews = _reviews(rng, line.kind)
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
        product_category=" \u203a ".join((line.department, line.group, line.kind)).title(),
        rating=f"{sum(float(r.score) for r in reviews) / len(reviews):.1f}" if reviews else "N.A.",
        reviews=reviews,
    )


def _hidden(rng: random.Random, split: Split, line: _Line, department: Department) -> list[str]:
    """Attributes that, with the line's own, occur together for this type of product in this half only."""
    others = [attribute for attribute in department.attributes if attribute != line.attribute]
    while True:
        drawn = rng.sample(others, _HIDDEN)
        if split_of_name(line.kind, " ".join(sorted((line.attribute, *drawn)))) == split:
            return drawn


def _features(rng: random.Random, attributes: Sequence[str]) -> tuple[str, ...]:
    """Bullet points; the first, which a search sees, states no attribute."""
    frames = rng.sample(PRAISE, len(attributes))
    return rng.choice(CHATTER), *(frame.format(a) for frame, a in zip(frames, attributes, strict=True))


def _some(rng: random.Random, values: Sequence[str], count: int) -> tuple[str, ...]:
    """`count` of the values, in their usual order."""
    kept = rng.sample(values, count)
    return tuple(value for value in values if value in kept)


def _reviews(rng: random.Random, kind: str) -> tuple[Review, ...]:
    if rng.random() >= _REVIEWED:
        return ()
    scores = rng.sample(tuple(REVIEWS), rng.randint(1, 2))
    return tuple(Review(score=s, title=REVIEWS[s][0], body=REVIEWS[s][1].format(type=kind)) for s in scores)


def _instruction(rng: random.Random, product: Product) -> Instruction:
    shown, *hidden = product.attributes
    wanted = [shown, *rng.sample(hidden, rng.choice(_ASKED_HIDDEN))]
    rng.shuffle(wanted)
    article = "an" if wanted[0][0] in "aeiou" else "a"
    text = f"{rng.choice(ASKING)} {article} {' '.join(wanted)} {product.query}"
    return Instruction(text=text, attributes=tuple(wanted))
