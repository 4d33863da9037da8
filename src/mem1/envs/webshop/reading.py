"""What a shopper reads off a page in `text` mode: no field of a product or a goal that the page does not show.

page_of("WebShop [SEP] Instruction: [SEP] find me a rug [SEP] Search")                   ->  "search"
hits(sight)     ->  (Hit(asin="BOLA88", title="Fala Prellov Light School Tent", price=18.99), ...)
offered(sight)  ->  {"color": ("teal", "red"), "size": ("small", "large")}
wishes("1. find me a rug 2. i need a lamp")                           ->  ("find me a rug", "i need a lamp")
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from mem1.envs.webshop.goal import NO_PRICE
from mem1.envs.webshop.page import SEPARATOR
from mem1.envs.webshop.pages import BACK_TO_SEARCH, BUY_NOW, NEXT, PREVIOUS
from mem1.envs.webshop.session import Session
from mem1.envs.webshop.shop import Actions, Shop

_BOUND = re.compile(r"price lower than ([\d.]+) dollars$")
_PRICE = re.compile(r"\$([\d.]*\d)")
_HEAD = 3
"""Texts before what is a page's own: "Instruction:", the instruction, "Back to Search"."""
_BUTTONS = {text.lower() for text in (BACK_TO_SEARCH, NEXT, PREVIOUS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """All that a shopper has before it when it decides."""

    instruction: str
    text: str
    actions: Actions
    turns_left: int
    """This one included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A product on the results page."""

    asin: str
    title: str
    price: float
    """Dollars; the middle of a range; 0 where none is shown."""


def look(shop: Shop, session: Session, *, turns_left: int) -> Sight:
    """What is seen from here."""
    return Sight(
        instruction=session.instruction,
        text=shop.observe(session, "text"),
        actions=shop.actions(session),
        turns_left=turns_left,
    )


def page_of(text: str) -> Literal["search", "results", "item", "detail"]:
    """Which page this is; "detail" is any that an item leads to."""
    texts = text.split(SEPARATOR)
    if texts[0] == "WebShop":
        return "search"
    if any(part.startswith("Page ") for part in texts[_HEAD : _HEAD + 1]):
        return "results"
    return "item" if texts[-1] == BUY_NOW else "detail"


def own_text(text: str) -> str:
    """What the page says itself, in lower case: the head, which repeats the instruction, left out."""
    return " ".join(text.split(SEPARATOR)[_HEAD:]).lower()


def hits(sight: Sight) -> tuple[Hit, ...]:
    """The products of a results page, best first."""
    texts = sight.text.split(SEPARATOR)[_HEAD:]
    links = set(sight.actions.clickables) - _BUTTONS
    return tuple(
        Hit(asin=asin, title=title, price=price_in(price))
        for asin, title, price in zip(texts, texts[1:], texts[2:], strict=False)
        if asin.lower() in links
    )


def price_in(text: str) -> float:
    """ "$20.0 to $30.0" -> 25.0; 0 where no price stands."""
    shown = [float(price) for price in _PRICE.findall(text)]
    return sum(shown) / len(shown) if shown else 0.0


def offered(sight: Sight) -> dict[str, tuple[str, ...]]:
    """The options of an item page: name -> values that can be clicked."""
    values: dict[str, tuple[str, ...]] = {}
    name = ""
    for text in _option_texts(sight.text):
        if text.lower() in sight.actions.clickables:
            values[name] = (*values.get(name, ()), text)
        else:
            name = text
    return values


def _option_texts(text: str) -> Iterator[str]:
    """Between the head and the product's title, which stands before its price."""
    texts = text.split(SEPARATOR)[_HEAD + 1 :]
    prices = [i for i, part in enumerate(texts) if part.startswith("Price:")]
    return iter(texts[: prices[-1] - 1] if prices else ())


def wishes(instruction: str) -> tuple[str, ...]:
    """One a goal; several are numbered."""
    if not instruction.startswith("1. "):
        return (instruction,)
    found, number = [], 2
    rest = instruction.removeprefix("1. ")
    while (mark := f" {number}. ") in rest:
        wish, rest = rest.split(mark, 1)
        found.append(wish)
        number += 1
    return (*found, rest)


def bound_in(wish: str) -> float:
    """Dollars that may be spent; `NO_PRICE` where the wish speaks of none."""
    bound = _BOUND.search(wish)
    return float(bound[1]) if bound else NO_PRICE
