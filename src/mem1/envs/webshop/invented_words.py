"""The words of invented catalogues: departments, what they sell, what it may be like, and the sentences around it.

All are ordinary words that every catalogue shares. Brands are two words ("Fala Prellov") and asins a word and a number
("HOLA88"): like Atlas's names they belong for ever to the training or to the evaluation half, by a hash.

Attributes are single words, none of which is part of another word of the shop: the reward looks for them anywhere in
a text. Values of options hold a colour word only where they are one: the reward reduces values to such words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mem1.tasks.atlas.names import FIRST_WORDS, LAST_WORDS, Split, split_of


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
    return [f"{a} {b}" for a in _BRAND_FIRST for b in _BRAND_LAST if split_of(a, b) == split]


def asins(split: Split) -> list[str]:
    """All asins of one half, in a fixed order: 4,320 or so for training, 1,440 or so for evaluation."""
    return [f"{word.upper()}{n}" for word in _CODES for n in _NUMBERS if split_of(word, str(n)) == split]


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
