"""The state of a shopper, a value so that a shop stores nothing between actions; and the actions a shopper may write.

    session = shop.start([goal])                  Session(goals=(goal,), page="search")
    session = shop.step(session, "search[rug]")   Session(goals=(goal,), page="results", query="rug", results=...)

    read_action("search[Blue Rug]")          ->  ("search", "blue rug")
    read_action("click[Buy Now], I think")   ->  ("click", "buy now")
    read_action("Action: click[buy now]")    ->  None
    read_action("buy it")                    ->  None

An action is read as in the original: in its first line, the text before the last opening bracket that a later `]`
closes is the name, and the text from there to the last `]` is the argument, in lower case. The original's regular
expression takes quadratic time on a row of brackets; this takes linear time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mem1.envs.webshop.goals import Goal

SEARCH = "search"
CLICK = "click"


def read_action(action: str) -> tuple[str, str] | None:
    """(search or click, argument), or None for anything else. Never raises.

    Unlike in the original, the text of a click may contain brackets or line ends: "click[size [eu]]".
    """
    line = action.partition("\n")[0]
    closing = line.rfind("]")
    # at least one character on either side of the opening bracket
    opening = line.rfind("[", 1, max(closing - 1, 1))
    if opening > 0 and line[:opening] in (SEARCH, CLICK):
        return line[:opening], line[opening + 1 : closing].lower()
    if action.startswith(f"{CLICK}[") and action.endswith("]"):
        return CLICK, action[len(CLICK) + 1 : -1].lower()
    return None


PageName = Literal["search", "results", "item", "description", "features", "reviews", "attributes", "done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchase:
    """A purchase for one goal."""

    asin: str
    price: float
    """Dollars."""
    options: Mapping[str, str]
    """Option name -> chosen value; options that were not chosen are absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One shopper's state. Equal sessions look the same and continue the same way."""

    goals: tuple[Goal, ...]
    """Goals, to be bought in this order."""
    page: PageName = "search"
    query: str = ""
    """Words of the last search in lower case; empty on the search page."""
    results: tuple[str, ...] = ()
    """asins that the search found, best first."""
    results_page: int = 1
    """Page of ten results that is shown, counted from 1; pages beyond the results are empty."""
    asin: str = ""
    """asin of the product in view; empty on the search and results pages."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options chosen for that product, in the order of the clicks."""
    visited: frozenset[str] = frozenset()
    """asins opened since leaving the search page."""
    purchases: tuple[Purchase, ...] = ()

    @property
    def done(self) -> bool:
        """Whether everything is bought; then no action changes the session."""
        return self.page == "done"

    @property
    def instruction(self) -> str:
        """The instruction on every page: the goal's text, or all goals' texts, numbered."""
        if len(self.goals) == 1:
            return self.goals[0].instruction
        return " ".join(f"{number}. {goal.instruction}" for number, goal in enumerate(self.goals, start=1))
