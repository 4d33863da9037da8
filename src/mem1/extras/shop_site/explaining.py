"""A reward in words: what was asked for, whether it was got, and by what.

    explain(score)  ->  Explanation(total=0.75, formula="1 x (1 + 1 + 1) / (2 + 1 + 1)", parts=(
                            Part("attribute", "easy clean", True, "like the product's attribute “easy to clean”"),
                            Part("attribute", "machine washable", False, "found nowhere"),
                            Part("option", "color: blue", True, "chosen: color: navy blue"),
                            Part("price", "at most $30.00", True, "paid: $25.00")), ...)

Nothing is judged here: every verdict is the `Score`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from mem1.envs.webshop.goal import NO_PRICE
from mem1.envs.webshop.reward import AttributeMatch, OptionMatch, Place, Score, TypeMatch

_PLACES: Mapping[Place, str] = {
    "title": "stands in the title",
    "features": "stands in the features",
    "description": "stands in the description",
}
_VERDICTS = {
    1.0: "The same type of product: the same search, two categories in common or a title score above 0.2 is enough.",
    0.5: "Another type of product: not the same search, fewer than two categories shared, and a title score of 0.2 or "
    "less.",
    0.1: "Far from what was asked for: a title score below 0.1, which outweighs search and categories.",
    0.0: "Nothing like what was asked for: the two names share no word.",
}


@dataclass(frozen=True, slots=True)
class Part:
    """What one point of the reward was given for."""

    kind: Literal["attribute", "option", "price"]
    asked: str
    got: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One purchase."""

    total: float
    formula: str
    r_type: float
    verdict: str
    """Why the type counts so much."""
    evidence: tuple[tuple[str, str], ...]
    """What the verdict rests on: name and finding."""
    parts: tuple[Part, ...]


def explain(score: Score) -> Explanation:
    """All that a person needs to work the reward out again."""
    attributes = [_attribute(match) for match in score.attributes]
    options = [_option(match) for match in score.options]
    points = (sum(part.got for part in attributes), sum(part.got for part in options), int(score.price_ok))
    possible = (len(attributes), len(options), 1)
    return Explanation(
        total=score.total,
        formula=f"{score.type.r_type:g} \u00d7 ({_sum(points)}) / ({_sum(possible)})",
        r_type=score.type.r_type,
        verdict=_VERDICTS[score.type.r_type],
        evidence=tuple(_evidence(score.type)),
        parts=(*attributes, *options, _price(score)),
    )


def dollars(amount: float) -> str:
    """$1,027.50"""
    return f"${amount:,.2f}"


def option_text(name: str, value: str) -> str:
    """ "color: blue", or the value alone where the option has no name."""
    return f"{name}: {value}" if name else value


def _sum(numbers: tuple[int, ...]) -> str:
    return " + ".join(map(str, numbers))


def _evidence(match: TypeMatch) -> Iterator[tuple[str, str]]:
    yield "Search that led to it", "the same" if match.same_query else "another"
    yield "Categories in common", " · ".join(category or "(no name)" for category in match.shared_categories) or "none"
    yield "Title score", f"{match.title_score:.2f}, words in common: {', '.join(match.shared_nouns) or 'none'}"


def _attribute(match: AttributeMatch) -> Part:
    if match.place is None:
        return Part("attribute", match.wanted, False, "found nowhere: attributes, title, features, description")
    found = f"like the product's attribute “{match.attribute}”" if match.place == "attributes" else _PLACES[match.place]
    return Part("attribute", match.wanted, True, found)


def _option(match: OptionMatch) -> Part:
    asked = option_text(match.name, match.wanted)
    if match.bought is None:
        return Part("option", asked, False, f"no option that was chosen is like “{match.compared}”")
    return Part("option", asked, True, f"chosen: {option_text(*match.bought)} (compared: “{match.compared}”)")


def _price(score: Score) -> Part:
    bound = "any price" if score.price_upper == NO_PRICE else f"at most {dollars(score.price_upper)}"
    return Part("price", bound, score.price_ok, f"paid: {dollars(score.price)}")
