"""The words of invented catalogues: departments, what they sell, what it may be like, and the sentences around it.

All are ordinary words that every catalogue shares. Brands are two words ("Fala Prellov") and asins a word and a number
("HOLA88"): like Atlas's names they belong for ever to the training or to the evaluation half, by a hash.

Attributes are single words, none of which is part of another word of the shop: the reward looks for them anywhere in
a text. Values of options hold a colour word only where they are one: the reward reduces values to such words.
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
from mem1.tasks.splits import Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Department:
    """What one department sells."""

    groups: Mapping[str, tuple[str, ...]]
    """Second level of the categories -> the types of product in it."""
    attributes: tuple[str, ...]
    uses: tuple[str, ...]
    """Said of a product, never asked for."""
    options: Mapping[str, tuple[str, ...]]
    """Two options: name -> the values that a product may come in. No two options share a value; those of the second
    have one letter or digit, so a search does not see them."""


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
"""How an instruction begins."""
PRAISE = ("made to be {}", "always {}", "stays {} for years", "a very {} design")
"""Bullet points that state an attribute."""
CHATTER = ("easy to store", "comes in a box", "loved by buyers", "new this year")
"""Bullet points that state none."""
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
    """All brands of one half, in a fixed order: 768 or so for training, 256 or so for evaluation."""
    return [f"{a} {b}" for a in _BRAND_FIRST for b in _BRAND_LAST if split_of_name(a, b) == split]


def asins(split: Split) -> list[str]:
    """All asins of one half, in a fixed order: 4,320 or so for training, 1,440 or so for evaluation."""
    return [f"{word.upper()}{n}" for word in _CODES for n in _NUMBERS if split_of_name(word, str(n)) == split]


def shop_words() -> list[str]:
    """Every word of the catalogues and their instructions in lower case, numbers apart, each once.

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
"""Products of one line."""
_DOLLARS = (10, 59)
"""Lowest and highest whole dollars of a price: bounds, at most 40 dollars higher, have two digits, too."""
_CENTS = (0.25, 0.49, 0.75, 0.99)
_PRICE_RANGES = 0.1
"""Share of products with a lowest and a highest price."""
_REVIEWED = 0.3
_HIDDEN = 3
"""Attributes among the features of a product."""
_ASKED_HIDDEN = (1, 1, 2)
"""How many of these an instruction asks for, besides the one in the title; one of the numbers is drawn."""
_SHELVES = tuple(
    (name, group, kind)
    for name, department in DEPARTMENTS.items()
    for group, kinds in department.groups.items()
    for kind in kinds
)
"""Every (department, group, type); lines go round them."""


def invent(seed: int, split: Split, products: int = 500) -> Catalogue:
    """The catalogue of this seed; each product has a synthetic instruction.

    Raises UserError where there are not enough asins, or too few products for a line of every type.
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
    rng.shuffle(made)  # equal scores of a search keep the order of the products, which should tell nothing
    return Catalogue.of(Entry(product, synthetic=_instruction(rng, product)) for product in made)


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
    pricing = _pricing(rng)
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
    """Attributes that, with the line's own, this type of product has in this half only."""
    others = [attribute for attribute in department.attributes if attribute != line.attribute]
    while True:
        drawn = rng.sample(others, _HIDDEN)
        if split_of_name(line.kind, " ".join(sorted((line.attribute, *drawn)))) == split:
            return drawn


def _pricing(rng: random.Random) -> tuple[float, ...]:
    prices = [rng.randint(*_DOLLARS) + rng.choice(_CENTS) for _ in range(2 if rng.random() < _PRICE_RANGES else 1)]
    return tuple(sorted(prices))


def _features(rng: random.Random, attributes: Sequence[str]) -> tuple[str, ...]:
    """Bullet points; that about nothing comes first, since the first is the one that a search sees."""
    frames = rng.sample(PRAISE, len(attributes))
    return rng.choice(CHATTER), *(frame.format(a) for frame, a in zip(frames, attributes, strict=True))


def _some(rng: random.Random, values: Sequence[str], count: int) -> tuple[str, ...]:
    """So many of the values, in their usual order."""
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
