"""Shoppers without a model: the floor that a policy has to beat.

ScriptedShopper   searches the instruction, opens the first hit within the price, chooses the options it names, buys
RandomShopper     searches the instruction, then clicks at random

session = shop_with(ScriptedShopper(), shop, [goal])
mean_reward(shop, session)  ->  0.6
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mem1.envs.webshop.catalogue import Goal
from mem1.envs.webshop.expert import (
    BACK,
    BUY,
    HEAD,
    TURN_LIMIT,
    Hit,
    Sight,
    bound_in,
    hits,
    look,
    page_of,
    wishes,
)
from mem1.envs.webshop.pages import SEPARATOR, Session, search_for
from mem1.envs.webshop.shop import Shop

Shopper = Callable[[Sight, Sequence[str]], str]
"""(what is in sight, its own earlier actions, oldest first) -> the next action."""


def shop_with(shopper: Shopper, shop: Shop, goals: Sequence[Goal], turn_limit: int = TURN_LIMIT) -> Session:
    """The session once everything is bought or the turns are used up."""
    session, steps = shop.start(goals), list[str]()
    while not session.done and len(steps) < turn_limit:
        steps.append(shopper(look(shop, session, turns_left=turn_limit - len(steps)), tuple(steps)))
        session = shop.step(session, steps[-1])
    return session


def mean_reward(shop: Shop, session: Session) -> float:
    """Mean over the session's goals; a goal without a purchase counts 0."""
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
    """Clicks at random; deterministic given seed, instruction and steps."""

    seed: int

    def __call__(self, sight: Sight, steps: Sequence[str]) -> str:
        if sight.actions.search:
            return search_for(_wish(sight, steps))
        rng = random.Random("/".join((str(self.seed), sight.instruction, *steps)))
        return f"click[{rng.choice(sight.actions.clickables)}]"


def named(options: Mapping[str, Sequence[str]], wish: str) -> dict[str, str]:
    """The value per option that the wish names: as "color: teal", else the longest value that occurs in the wish."""
    wish = wish.lower()
    found: dict[str, str] = {}
    for name, values in options.items():
        labelled = [value for value in values if re.search(rf"{re.escape(f'{name}: {value}')}(?!\w)", wish)]
        bare = [value for value in values if re.search(rf"(?<!\w){re.escape(value)}(?!\w)", wish)]
        if stated := labelled or bare:
            found[name] = max(stated, key=len)
    return found


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
    """The texts between the head and the product's title, which is followed by its price."""
    texts = text.split(SEPARATOR)[HEAD + 1 :]
    prices = [i for i, part in enumerate(texts) if part.startswith("Price:")]
    return iter(texts[: prices[-1] - 1] if prices else ())


def _wish(sight: Sight, steps: Sequence[str]) -> str:
    """The wish of the goal to be bought next."""
    return wishes(sight.instruction)[steps.count(BUY)]


def _best(found: Sequence[Hit], wish: str) -> Hit:
    """The first hit within the price, else the first.

    The number of words that title and wish share would be a worse guide: the search has weighed those already.
    """
    bound = bound_in(wish)
    return next((hit for hit in found if hit.price <= bound), found[0])


def _last_search(steps: Sequence[str]) -> int:
    return max(i for i, step in enumerate(steps) if step.startswith("search["))
