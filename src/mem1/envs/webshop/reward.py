"""The reward of a purchase, exactly as WebShop computes it, with everything needed to explain it.

    goal      a blue rug, easy clean, under 30 dollars        product   a blue rug, easy to clean, 25 dollars
    score(product, goal, price=25.0, options={"color": "navy blue"})
    ->  r_type 1.0 x (1 attribute + 1 option + 1 price) / (1 attribute + 1 option + 1)  =  1.0

The rules are those of the original's engine/goal.py and engine/normalize.py, except with `strict=False` and
`reward="minimal"`. Two attributes, or two options, are the same if their token-set ratio is above 85, as in thefuzz.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rapidfuzz.fuzz import token_set_ratio
from rapidfuzz.utils import default_process

from mem1.envs.webshop.catalogue import Goal, Product
from mem1.errors import UserError

THRESHOLD = 85
"""Percentage above which two texts are alike."""

_LATIN_1 = dict.fromkeys(range(128, 256))


def plain(text: str) -> str:
    """Lower case, with spaces for everything but letters and digits, as thefuzz prepares texts.

    It first drops the characters 128 to 255 (accented Latin-1 letters, the non-breaking space), but no later ones.
    """
    return default_process(text.translate(_LATIN_1))


def alike(a: str, b: str) -> bool:
    """Whether two `plain` texts are alike. As in thefuzz, the ratio is rounded first: 85.2 is not above 85.

    alike(plain("Machine Wash"), plain("machine washable"))  ->  True     ratio 85.7
    alike(plain("charging case"), plain("carrying case"))    ->  False    ratio 84.6
    alike(plain("!!"), plain("!!"))                          ->  False    nothing left to compare
    """
    return round(token_set_ratio(a, b)) > THRESHOLD


_WORDS = """
alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal
dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo
ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor
mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand
sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut
wheat white wine yellow
"""
COLORS = tuple(_WORDS.split())


def reduced(value: str) -> str:
    """The first colour word that occurs in the value, else the value: "123 navy blue" -> "blue"."""
    return next((color for color in COLORS if color in value), value)


def reduced_pair(name: str, value: str) -> str:
    """The text that the original compares for an option of a synthetic goal.

        reduced_pair("color", "black")    ->  "black"
        reduced_pair("color", "jet black")->  "('color', 'jet black')"

    It passes the pair to the function for a single value, so "occurs in" means "is one of the two", and only a value
    (or name) that is exactly a colour word is reduced. Any other pair is compared as Python's repr, with quotes, and
    with escapes such as \\xa0 for unprintable characters.
    """
    pair = (name, value)
    return next((color for color in COLORS if color in pair), str(pair))


Reward = Literal["full", "minimal"]
Place = Literal["attributes", "title", "features", "description"]

_TITLE_ALIKE = 0.2
"""A title score above this suffices for the same type; also the score of a goal whose name has no noun."""
_TITLE_FAR = 0.1
"""A title score below this means another type, whatever query and categories say."""
_ASCII_WORD = re.compile("[A-Za-z]+")


def ascii_words(name: str) -> list[str]:
    """Every run of ASCII letters, in lower case, in place of the nouns.

    The original finds nouns with spaCy's en_core_web_sm, whose results depend on its version.
    """
    return [word.lower() for word in _ASCII_WORD.findall(name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeMatch:
    """Evidence that the product is of the requested type."""

    same_query: bool
    """Whether the same search found both when the data were gathered."""
    shared_categories: tuple[str, ...]
    """Category levels that both share, in alphabetical order; two suffice."""
    shared_nouns: tuple[str, ...]
    """Nouns of both names, in alphabetical order."""
    title_score: float
    """Distinct shared nouns / nouns of the goal's name (with repetitions); 0.2 if it has none."""

    @property
    def r_type(self) -> float:
        """Factor of the reward: 1, 0.5, 0.1 or 0."""
        if self.title_score == 0:
            return 0.0
        if self.title_score < _TITLE_FAR:
            return 0.1
        same = self.same_query or len(self.shared_categories) >= 2 or self.title_score > _TITLE_ALIKE
        return 1.0 if same else 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeMatch:
    """One attribute of the goal and where it was found."""

    wanted: str
    place: Place | None
    """None: nowhere."""
    attribute: str = ""
    """The product's attribute, if `place` is "attributes"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionMatch:
    """One option of the goal and the purchased option that matches it."""

    name: str
    """Empty if the goal has only values."""
    wanted: str
    """The value."""
    compared: str
    """The text compared, in lower case without punctuation: "blue" for "navy blue", "color navy blue" for a pair read
    strictly."""
    bought: tuple[str, str] | None
    """(name, value); None: no option matches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The reward of a purchase, part by part."""

    type: TypeMatch
    attributes: tuple[AttributeMatch, ...]
    options: tuple[OptionMatch, ...]
    price: float
    price_upper: float
    """Both in dollars."""

    @property
    def price_ok(self) -> bool:
        """Whether the price is at most the bound."""
        return self.price <= self.price_upper

    @property
    def total(self) -> float:
        """In [0, 1]: r_type x (matched attributes + matched options + price) / (attributes + options + 1)."""
        attributes = sum(match.place is not None for match in self.attributes)
        options = sum(match.bought is not None for match in self.options)
        share = (attributes + options + self.price_ok) / (len(self.attributes) + len(self.options) + 1)
        return share * self.type.r_type


def score(
    product: Product | Mapping[str, Any],
    goal: Goal | Mapping[str, Any],
    *,
    price: float,
    options: Mapping[str, str],
    strict: bool = True,
    reward: Reward = "full",
    nouns: Callable[[str], Sequence[str]] = ascii_words,
) -> Score:
    """Score buying `product` at `price` dollars with the chosen `options` (name -> value) for `goal`.

    Product and goal are records, or mappings with the original's keys, where missing keys count as empty.

    strict=True     Options with names (synthetic goals) are compared as in the original: name and value together,
                    reduced to a colour only if the value is exactly a colour word. "color: jet black" is compared as
                    "color jet black", but "color: black" as "black".
    strict=False    Only values are compared, reduced to colours on both sides, as for goals by people.

    reward="minimal"    The reward of the package webshop_minimal, which MEM1's release reportedly used from September
                        2025 on: it compares all options that the product offers and ignores the chosen ones
                        (get_reward in webshop_minimal/goal.py of WillDreamer/webshop-minimal, at 39d73b9).

    `nouns` returns the nouns of a name in lower case, with repetitions. Raises UserError for any other `reward`.
    """
    product = product if isinstance(product, Product) else Product.from_keys(product)
    goal = goal if isinstance(goal, Goal) else Goal.from_keys(goal)
    if reward not in get_args(Reward):
        raise UserError(f"unknown reward {reward!r} of a purchase; known: {', '.join(get_args(Reward))}")
    offered = [(name, value) for name, values in product.options.items() for value in values]
    return Score(
        type=_type(product, goal, nouns),
        attributes=_attributes(product, goal.attributes),
        options=_options(list(options.items()) if reward == "full" else offered, goal.options, strict),
        price=price,
        price_upper=goal.price_upper,
    )


def _type(product: Product, goal: Goal, nouns: Callable[[str], Sequence[str]]) -> TypeMatch:
    wanted = nouns(goal.name)
    shared = set(wanted) & set(nouns(product.name))
    return TypeMatch(
        same_query=product.query == goal.query,
        shared_categories=tuple(sorted(_levels(product.product_category) & _levels(goal.product_category))),
        shared_nouns=tuple(sorted(shared)),
        title_score=len(shared) / len(wanted) if wanted else _TITLE_ALIKE,
    )


def _levels(path: str) -> set[str]:
    """The levels of a category path; an empty path has one empty level, as in the original."""
    return {level.strip() for level in path.split("\u203a")}


def _attributes(product: Product, wanted: Iterable[str]) -> tuple[AttributeMatch, ...]:
    own = [(attribute, plain(attribute)) for attribute in product.attributes]
    texts: dict[Place, str] = {
        "title": product.title.lower(),
        "features": " ".join(product.bullet_points).lower(),
        "description": product.description.lower(),
    }
    return tuple(_attribute(attribute, own, texts) for attribute in wanted)


def _attribute(wanted: str, own: Iterable[tuple[str, str]], texts: Mapping[Place, str]) -> AttributeMatch:
    compared = plain(wanted)
    for attribute, text in own:
        if alike(text, compared):
            return AttributeMatch(wanted=wanted, place="attributes", attribute=attribute)
    # texts are in lower case but the attribute is not: one with a capital is never found there
    return AttributeMatch(wanted=wanted, place=next((place for place, text in texts.items() if wanted in text), None))


def _options(
    bought: Sequence[tuple[str, str]], wanted: Mapping[str, str] | Sequence[str], strict: bool
) -> tuple[OptionMatch, ...]:
    have = [(pair, plain(reduced(pair[1]))) for pair in bought]
    if isinstance(wanted, Mapping):
        asked = [(n, v, plain(reduced_pair(n, v) if strict else reduced(v))) for n, v in wanted.items()]
    else:
        asked = [("", v, plain(reduced(v))) for v in wanted]
    return tuple(
        OptionMatch(
            name=name,
            wanted=value,
            compared=" ".join(compared.split()),
            bought=next((pair for pair, text in have if alike(text, compared)), None),
        )
        for name, value, compared in asked
    )
