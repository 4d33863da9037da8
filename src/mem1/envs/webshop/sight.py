"""What a shopper can read off a page in `text` mode, without access to fields that the page does not show.

page_of("WebShop [SEP] Instruction: [SEP] find me a rug [SEP] Search")                   ->  "search"
hits(sight)     ->  (Hit(asin="BOLA88", title="Fala Prellov Light School Tent", price=18.99), ...)
wishes("1. find me a rug 2. i need a lamp")                           ->  ("find me a rug", "i need a lamp")
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from mem1.envs.webshop.goals import NO_PRICE
from mem1.envs.webshop.pages import BACK_TO_SEARCH, BUY_NOW, NEXT, PREVIOUS, SEPARATOR
from mem1.envs.webshop.session import Session
from mem1.envs.webshop.shop import Actions, Shop

TURN_LIMIT = 15
BUY = "click[buy now]"
BACK = "click[< prev]"
HEAD = 3
"""Number of texts before a page's own: "Instruction:", the instruction, "Back to Search"."""
_BOUND = re.compile(r"price lower than ([\d.]+) dollars$")
_PRICE = re.compile(r"\$([\d.]*\d)")
_BUTTONS = {text.lower() for text in (BACK_TO_SEARCH, NEXT, PREVIOUS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Everything a shopper knows when it decides."""

    instruction: str
    text: str
    actions: Actions
    turns_left: int
    """Including this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A product on the results page."""

    asin: str
    title: str
    price: float
    """Dollars: the middle of a range, 0 if none is shown."""


def look(shop: Shop, session: Session, *, turns_left: int) -> Sight:
    """The sight at this point of a session."""
    return Sight(
        instruction=session.instruction,
        text=shop.observe(session, "text"),
        actions=shop.actions(session),
        turns_left=turns_left,
    )


def page_of(text: str) -> Literal["search", "results", "item", "detail"]:
    """Kind of page; "detail" is any page that an item links to."""
    texts = text.split(SEPARATOR)
    if texts[0] == "WebShop":
        return "search"
    if any(part.startswith("Page ") for part in texts[HEAD : HEAD + 1]):
        return "results"
    return "item" if texts[-1] == BUY_NOW else "detail"


def own_text(text: str) -> str:
    """The page's own text in lower case, without the head, which repeats the instruction."""
    return " ".join(text.split(SEPARATOR)[HEAD:]).lower()


def hits(sight: Sight) -> tuple[Hit, ...]:
    """The products of a results page, best first."""
    texts = sight.text.split(SEPARATOR)[HEAD:]
    links = set(sight.actions.clickables) - _BUTTONS
    return tuple(
        Hit(asin=asin, title=title, price=price_in(price))
        for asin, title, price in zip(texts, texts[1:], texts[2:], strict=False)
        if asin.lower() in links
    )


def price_in(text: str) -> float:
    """ "$20.0 to $30.0" -> 25.0; 0 without a price."""
    shown = [float(price) for price in _PRICE.findall(text)]
    return sum(shown) / len(shown) if shown else 0.0


def wishes(instruction: str) -> tuple[str, ...]:
    """The wishes in an instruction, one per goal; several are numbered."""
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
    """Highest price in dollars that the wish allows; `NO_PRICE` if it names none."""
    bound = _BOUND.search(wish)
    return float(bound[1]) if bound else NO_PRICE


def search_for(words: str) -> str:
    """The search action for these words, without brackets and line ends, which would end it early."""
    plain = " ".join(re.sub(r"[\[\]]", " ", words).split())
    return f"search[{plain}]"
