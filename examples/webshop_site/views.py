"""The values shown by templates, computed beforehand, and rewards explained in words.

    explain(score)  ->  Explanation(total=0.75, formula="1 x (1 + 1 + 1) / (2 + 1 + 1)", parts=(
                            Part("attribute", "easy clean", True, "like the product's attribute “easy to clean”"),
                            Part("attribute", "machine washable", False, "found nowhere"),
                            Part("option", "color: blue", True, "chosen: color: navy blue"),
                            Part("price", "at most $30.00", True, "paid: $25.00")), ...)

Nothing is judged here: every verdict is that of the `Score`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from mem1.envs.webshop.catalogue import NO_PRICE, Goal, Product
from mem1.envs.webshop.pages import RESULTS_A_PAGE, Element, Session, clickables, read_action
from mem1.envs.webshop.reward import AttributeMatch, OptionMatch, Score, TypeMatch, score
from mem1.envs.webshop.shop import Shop

from .recordings import Recording, Step

_VERDICTS = {
    1.0: "The same type of product: the same search, two categories in common or a title score above 0.2 is enough.",
    0.5: "Another type of product: not the same search, fewer than two categories shared, and a title score of 0.2 or "
    "less.",
    0.1: "Far from the goal: a title score below 0.1, which outweighs search and categories.",
    0.0: "Nothing like the goal: the two names share no word.",
}


@dataclass(frozen=True, slots=True)
class Part:
    """One point of the reward."""

    kind: Literal["attribute", "option", "price"]
    asked: str
    got: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The explained reward of one purchase."""

    total: float
    formula: str
    r_type: float
    verdict: str
    """The reason for `r_type`."""
    evidence: tuple[tuple[str, str], ...]
    """(name, finding) pairs that support the verdict."""
    parts: tuple[Part, ...]


def explain(score: Score) -> Explanation:
    """Everything needed to recompute the reward by hand."""
    attributes = [_attribute(match) for match in score.attributes]
    options = [_option(match) for match in score.options]
    points = f"{sum(part.got for part in attributes)} + {sum(part.got for part in options)} + {score.price_ok:d}"
    bound = "any price" if score.price_upper == NO_PRICE else f"at most {dollars(score.price_upper)}"
    return Explanation(
        total=score.total,
        formula=f"{score.type.r_type:g} \u00d7 ({points}) / ({len(attributes)} + {len(options)} + 1)",
        r_type=score.type.r_type,
        verdict=_VERDICTS[score.type.r_type],
        evidence=tuple(_evidence(score.type)),
        parts=(*attributes, *options, Part("price", bound, score.price_ok, f"paid: {dollars(score.price)}")),
    )


def dollars(amount: float) -> str:
    """$1,027.50"""
    return f"${amount:,.2f}"


def option_text(name: str, value: str) -> str:
    """ "color: blue", or only the value if the option has no name."""
    return f"{name}: {value}" if name else value


def _evidence(match: TypeMatch) -> Iterator[tuple[str, str]]:
    yield "Search that led to it", "the same" if match.same_query else "another"
    yield "Categories in common", " · ".join(category or "(no name)" for category in match.shared_categories) or "none"
    yield "Title score", f"{match.title_score:.2f}, words in common: {', '.join(match.shared_nouns) or 'none'}"


def _attribute(match: AttributeMatch) -> Part:
    if match.place is None:
        return Part("attribute", match.wanted, False, "found nowhere: attributes, title, features, description")
    found = (
        f"like the product's attribute “{match.attribute}”"
        if match.place == "attributes"
        else f"found in the {match.place}"
    )
    return Part("attribute", match.wanted, True, found)


def _option(match: OptionMatch) -> Part:
    asked = option_text(match.name, match.wanted)
    if match.bought is None:
        return Part("option", asked, False, f"no option that was chosen is like “{match.compared}”")
    return Part("option", asked, True, f"chosen: {option_text(*match.bought)} (compared: “{match.compared}”)")


@dataclass(frozen=True, slots=True)
class Listed:
    """A page of a long list: the numbers shown, and the starts of the previous and next pages."""

    numbers: range
    total: int
    before: int | None
    after: int | None

    @classmethod
    def of(cls, first: int, total: int, size: int) -> Listed:
        """`size` entries from `first`."""
        end = min(first + size, total)
        return cls(range(first, end), total, max(first - size, 0) if first else None, end if end < total else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bought:
    """A purchase with its explained reward, or a goal without a purchase."""

    goal: Goal
    wanted: Product | None
    """The product that the goal was written for; None: not in this shop."""
    product: Product | None
    """The purchased product; None: nothing was bought."""
    options: tuple[tuple[str, str], ...] = ()
    explanation: Explanation | None = None
    """None: nothing was bought."""

    @property
    def reward(self) -> float:
        """0 without a purchase."""
        return self.explanation.total if self.explanation else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of the shop."""

    session: Session
    product: Product | None
    """The product in view."""
    hits: tuple[Product, ...]
    """The results shown."""
    first: int
    """Number of the first hit shown, from 1."""
    bought: tuple[Bought, ...]
    """Purchases so far."""

    @property
    def template(self) -> str:
        """Name of the template; the four pages about part of a product share one."""
        page = self.session.page
        return page if page in ("search", "results", "item", "done") else "detail"

    @property
    def more(self) -> bool:
        return self.first - 1 + RESULTS_A_PAGE < len(self.session.results)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One step of a recording, or its end."""

    recording: Recording
    step: Step | None
    """None: the end."""
    elements: tuple[tuple[Element, bool], ...]
    """(element, whether it was clicked) for the page before the step; empty if the page cannot be recreated."""
    query: str | None
    """Words that the step searched; None: it was no search."""
    idle: bool
    """Whether the action had no effect."""
    bought: tuple[Bought, ...]
    """At the end: one entry per goal."""


def of_page(shop: Shop, session: Session) -> Page:
    """The page that a visitor sees."""
    first = (session.results_page - 1) * RESULTS_A_PAGE
    return Page(
        session=session,
        product=shop.products.get(session.asin),
        hits=tuple(shop.products[asin] for asin in session.results[first : first + RESULTS_A_PAGE]),
        first=first + 1,
        bought=purchases(shop, session)[: len(session.purchases)],
    )


def of_recording(shop: Shop, recording: Recording, at: int) -> Seen:
    """Step `at`, counted from 1; the number after the last step is the end."""
    sessions = recording.sessions(shop)
    ended = at > len(recording.steps)
    step = None if ended else recording.steps[at - 1]
    if step is None or not sessions:
        bought = purchases(shop, sessions[-1]) if ended and sessions else ()
        return Seen(recording=recording, step=step, elements=(), query=None, idle=False, bought=bought)
    page = shop.page(sessions[at - 1])
    kind, argument = (step.acts and read_action(step.action)) or ("", "")
    clicked = clickables(page).get(argument) if kind == "click" else None
    return Seen(
        recording=recording,
        step=step,
        elements=tuple((element, element is clicked) for element in page),
        query=argument if kind == "search" else None,
        idle=sessions[at] is sessions[at - 1],
        bought=(),
    )


def purchases(shop: Shop, session: Session) -> tuple[Bought, ...]:
    """One entry per goal, in order."""
    bought = list(session.purchases) + [None] * (len(session.goals) - len(session.purchases))
    found = []
    for goal, purchase in zip(session.goals, bought, strict=True):
        wanted = shop.products.get(goal.asin)
        if purchase is None:
            found.append(Bought(goal=goal, wanted=wanted, product=None))
            continue
        product = shop.products[purchase.asin]
        explanation = explain(score(product, goal, price=purchase.price, options=purchase.options))
        options = tuple(purchase.options.items())
        found.append(Bought(goal=goal, wanted=wanted, product=product, options=options, explanation=explanation))
    return tuple(found)
