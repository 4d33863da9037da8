"""Shoppers without a model, the floor that a policy has to leave behind.

ScriptedShopper   search the instruction, open the first hit within the price, choose the options it names, buy
RandomShopper     search the instruction, then click on anything

session = shop_with(ScriptedShopper(), shop, [goal])
shop.rewards(session)  ->  (0.6,)
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mem1.envs.webshop.goal import Goal
from mem1.envs.webshop.reading import Hit, Sight, bound_in, hits, look, offered, page_of, wishes
from mem1.envs.webshop.session import Session
from mem1.envs.webshop.shop import Shop

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
