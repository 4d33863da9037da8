"""What a template shows, worked out beforehand: no template asks the shop or judges anything."""

from __future__ import annotations

from dataclasses import dataclass

from mem1.envs.webshop.action import read_action
from mem1.envs.webshop.goal import Goal
from mem1.envs.webshop.page import Element, clickables
from mem1.envs.webshop.pages import RESULTS_A_PAGE
from mem1.envs.webshop.product import Product
from mem1.envs.webshop.reward import score
from mem1.envs.webshop.session import Session
from mem1.envs.webshop.shop import Shop
from mem1.extras.shop_site.explaining import Explanation, explain
from mem1.extras.shop_site.recordings import Recording, Step


@dataclass(frozen=True, slots=True)
class Listed:
    """A part of a long list: the numbers shown, and where the parts before and after it begin."""

    numbers: range
    total: int
    before: int | None
    after: int | None

    @classmethod
    def of(cls, first: int, total: int, size: int) -> Listed:
        """`size` of them, from `first` on."""
        end = min(first + size, total)
        return cls(range(first, end), total, max(first - size, 0) if first else None, end if end < total else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bought:
    """A purchase with its reward explained, or a goal that nothing was bought for."""

    goal: Goal
    wanted: Product | None
    """What the goal was written for; None: not in this shop."""
    product: Product | None
    """What was bought; None: nothing."""
    options: tuple[tuple[str, str], ...] = ()
    explanation: Explanation | None = None
    """None: nothing was bought."""

    @property
    def reward(self) -> float:
        """0 where nothing was bought."""
        return self.explanation.total if self.explanation else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of the shop."""

    session: Session
    product: Product | None
    """Looked at."""
    hits: tuple[Product, ...]
    """Shown of the results."""
    first: int
    """Number of the first of them, from 1."""
    bought: tuple[Bought, ...]
    """So far."""

    @property
    def template(self) -> str:
        """The four pages about a part of a product have one."""
        page = self.session.page
        return page if page in ("search", "results", "item", "done") else "detail"

    @property
    def more(self) -> bool:
        """Results follow."""
        return self.first - 1 + RESULTS_A_PAGE < len(self.session.results)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One step of a recording, or its end."""

    recording: Recording
    step: Step | None
    """None: the end."""
    elements: tuple[tuple[Element, bool], ...]
    """Of the page before the step, and whether it is what was clicked; empty where the shop cannot tell the page."""
    query: str | None
    """Searched by the step. None: it was no search."""
    idle: bool
    """The action led nowhere."""
    bought: tuple[Bought, ...]
    """At the end, one a goal."""


def of_page(shop: Shop, session: Session) -> Page:
    """What a visitor sees."""
    first = (session.results_page - 1) * RESULTS_A_PAGE
    return Page(
        session=session,
        product=shop.products.get(session.asin),
        hits=tuple(shop.products[asin] for asin in session.results[first : first + RESULTS_A_PAGE]),
        first=first + 1,
        bought=purchases(shop, session)[: len(session.purchases)],
    )


def of_recording(shop: Shop, recording: Recording, at: int) -> Seen:
    """Step `at`, counted from 1; one after the last is the end."""
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
    """One a goal, in their order."""
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
