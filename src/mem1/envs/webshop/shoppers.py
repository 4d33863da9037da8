"""What a shopper reads off a page in `text` mode: no field of a product or a goal that the page does not show.

page_of("WebShop [SEP] Instruction: [SEP] find me a rug [SEP] Search")                   ->  "search"
hits(sight)     ->  (Hit(asin="BOLA88", title="Fala Prellov Light School Tent", price=18.99), ...)
offered(sight)  ->  {"color": ("teal", "red"), "size": ("small", "large")}
wishes("1. find me a rug 2. i need a lamp")                           ->  ("find me a rug", "i need a lamp")
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from mem1.envs.webshop.goals import NO_PRICE, Goal
from mem1.envs.webshop.pages import BACK_TO_SEARCH, BUY_NOW, NEXT, PREVIOUS, SEPARATOR
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


TURN_LIMIT = 15
BUY = "click[buy now]"
BACK = "click[< prev]"


class Shopper(Protocol):
    """Anything that goes shopping."""

    def __call__(self, sight: Sight, steps: Sequence[str]) -> str:
        """The next action; `steps` are its own earlier ones, oldest first."""
        ...


def shop_with(shopper: Shopper, shop: Shop, goals: Sequence[Goal], turn_limit: int = TURN_LIMIT) -> Session:
    """Where the shopper stands when everything is bought or the turns are used up."""
    session, steps = shop.start(goals), list[str]()
    while not session.done and len(steps) < turn_limit:
        steps.append(shopper(look(shop, session, turns_left=turn_limit - len(steps)), tuple(steps)))
        session = shop.step(session, steps[-1])
    return session


def mean_reward(shop: Shop, session: Session) -> float:
    """Over the session's goals; one that nothing was bought for counts 0."""
    return sum(shop.rewards(session)) / len(session.goals)


@dataclass(frozen=True, slots=True)
class ScriptedShopper:
    """Reads the prices of the first ten hits and opens one of them; never turns back."""

    def __call__(self, sight: Sight, steps: Sequence[str]) -> str:
        wish = _wish(sight, steps)
        page = page_of(sight.text)
        if page == "search":
            return search_for(wish)
        if page == "results":
            found = hits(sight)
            return f"click[{_best(found, wish).asin}]" if found else "click[back to search]"
        if page == "item":
            clicked = steps[_last_search(steps) :]
            wanted = [f"click[{value}]" for value in named(offered(sight), wish).values()]
            return next((action for action in wanted if action not in clicked and sight.turns_left > 1), BUY)
        return BACK


@dataclass(frozen=True, slots=True)
class RandomShopper:
    """Clicks on anything; the same for the same seed, instruction and steps."""

    seed: int

    def __call__(self, sight: Sight, steps: Sequence[str]) -> str:
        if sight.actions.search:
            return search_for(_wish(sight, steps))
        rng = random.Random("/".join((str(self.seed), sight.instruction, *steps)))
        return f"click[{rng.choice(sight.actions.clickables)}]"


def search_for(words: str) -> str:
    """The action; brackets and line ends, which would end it early, are left out."""
    plain = " ".join(re.sub(r"[\[\]]", " ", words).split())
    return f"search[{plain}]"


def named(options: Mapping[str, Sequence[str]], wish: str) -> dict[str, str]:
    """Per option the value that the wish names: as "color: teal", else the longest that stands in it as it is."""
    wish = wish.lower()
    found: dict[str, str] = {}
    for name, values in options.items():
        labelled = [value for value in values if re.search(rf"{re.escape(f'{name}: {value}')}(?!\w)", wish)]
        bare = [value for value in values if re.search(rf"(?<!\w){re.escape(value)}(?!\w)", wish)]
        if stated := labelled or bare:
            found[name] = max(stated, key=len)
    return found


def _wish(sight: Sight, steps: Sequence[str]) -> str:
    """What is to be bought next."""
    return wishes(sight.instruction)[steps.count(BUY)]


def _best(found: Sequence[Hit], wish: str) -> Hit:
    """The first within the price, else the first.

    Words that title and wish share would be a worse guide: the search has weighed them, those of options included.
    """
    bound = bound_in(wish)
    return next((hit for hit in found if hit.price <= bound), found[0])


def _last_search(steps: Sequence[str]) -> int:
    return max(i for i, step in enumerate(steps) if step.startswith("search["))
