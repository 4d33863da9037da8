"""When two attributes, or two options, are the same: token-set ratio above 85, as the original asks thefuzz.

alike(plain("Machine Wash"), plain("machine washable"))  ->  True     ratio 85.7
alike(plain("charging case"), plain("carrying case"))    ->  False    ratio 84.6
alike(plain("!!"), plain("!!"))                          ->  False    nothing is left to compare
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rapidfuzz.fuzz import token_set_ratio
from rapidfuzz.utils import default_process

from mem1.envs.webshop.catalogue import Product
from mem1.envs.webshop.goals import Goal
from mem1.errors import UserError

THRESHOLD = 85
"""Percent; more than this is alike."""

_LATIN_1 = dict.fromkeys(range(128, 256))


def plain(text: str) -> str:
    """Lower case, all but letters and digits as spaces, as thefuzz prepares both sides.

    It first leaves out the characters 128 to 255 (the accented letters of Latin-1, the hard space), and no later ones.
    """
    return default_process(text.translate(_LATIN_1))


def alike(a: str, b: str) -> bool:
    """Of two `plain` texts. Rounded to whole percent before it is compared, as thefuzz does: 85.2 is not above 85."""
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
    """The first colour word of the list that stands in the value, else the value itself."""
    return next((color for color in COLORS if color in value), value)


def reduced_pair(name: str, value: str) -> str:
    """What the original compares in place of an option of a synthetic goal.

    It hands the pair itself to the function for one value: "stands in" then means "is one of the two", so that only a
    value (or name) that is exactly a colour word is reduced. Any other pair is compared as Python writes it, with
    quotes, and with escapes such as \\xa0 for what cannot be printed.
    """
    pair = (name, value)
    return next((color for color in COLORS if color in pair), str(pair))


Reward = Literal["full", "minimal"]
Place = Literal["attributes", "title", "features", "description"]

_TITLE_ALIKE = 0.2
"""A title score above this is enough for a product of the same type; that of a goal whose name has no noun."""
_TITLE_FAR = 0.1
"""A title score below this is another type, whatever the query and the categories say."""
_ASCII_WORD = re.compile("[A-Za-z]+")


def ascii_words(name: str) -> list[str]:
    """Every run of ASCII letters, in lower case: what stands in for the nouns.

    The original asks spaCy's en_core_web_sm for nouns and proper nouns; its answers change with its version.
    """
    return [word.lower() for word in _ASCII_WORD.findall(name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeMatch:
    """Whether the product is of the kind that was asked for."""

    same_query: bool
    """Both were found by the same search when the data were gathered."""
    shared_categories: tuple[str, ...]
    """Levels of the category path that both have, in alphabetical order; two are enough."""
    shared_nouns: tuple[str, ...]
    """Of the two names, in alphabetical order."""
    title_score: float
    """Shared nouns (each once) / nouns of the goal's name (each as often as it stands); 0.2 if it has none."""

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
    """One attribute of the goal, and where it was found."""

    wanted: str
    place: Place | None
    """None: nowhere."""
    attribute: str = ""
    """Of the product, where `place` is "attributes"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionMatch:
    """One option of the goal, and which of the options bought it was found in."""

    name: str
    """Empty where the goal has values alone."""
    wanted: str
    """The value."""
    compared: str
    """What of the two was compared, in lower case without signs: "blue" of a "navy blue", "color navy blue" of a pair
    read strictly."""
    bought: tuple[str, str] | None
    """Name and value; None: no option is like it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a purchase is worth, part by part."""

    type: TypeMatch
    attributes: tuple[AttributeMatch, ...]
    options: tuple[OptionMatch, ...]
    price: float
    price_upper: float
    """Both in dollars."""

    @property
    def price_ok(self) -> bool:
        """A price at the bound is within it."""
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
    """Of buying `product`, at `price` dollars, with the chosen `options` (name -> value), for `goal`.

    Product and goal are records or mappings with the original's own keys, where keys that are missing count as empty.

    strict=True     A goal's options that have names (synthetic goals) are compared as the original does, name and
                    value together, and reduced to a colour only where the value is exactly a colour word: a goal
                    "color: jet black" is compared as "color jet black", one "color: black" as "black".
    strict=False    Values alone are compared, reduced to colours on both sides, as for goals by people.

    reward="minimal"    What the package webshop_minimal gives, which MEM1's release is said to have used from September
                        2025 on: all the options that the product offers are compared, and those chosen are ignored
                        (get_reward in webshop_minimal/goal.py of WillDreamer/webshop-minimal, at 39d73b9).

    `nouns` are those of a name, in lower case, as often as they stand. Raises UserError for another `reward`.
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
    """Of a path; of an empty one the empty level, as in the original."""
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
    # the text is in lower case and the attribute as it stands: one with a capital is never found there
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
