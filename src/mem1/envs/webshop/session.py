"""What a shopper may write: `search[words]` or `click[text of a button, a product or an option]`.

    read_action("search[Blue Rug]")          ->  ("search", "blue rug")
    read_action("click[Buy Now], I think")   ->  ("click", "buy now")
    read_action("Action: click[buy now]")    ->  None
    read_action("buy it")                    ->  None

As the original reads it: of the first line, what stands before the last opening bracket that a later `]` closes is
the name, what stands between that bracket and the last `]` is the argument, in lower case. The original does this with
a regular expression that takes quadratic time on a row of brackets; this takes linear time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mem1.envs.webshop.goals import Goal

SEARCH = "search"
CLICK = "click"


def read_action(action: str) -> tuple[str, str] | None:
    """(search or click, argument), or None where it is neither. Never raises.

    The text of a click may hold brackets or line ends, which the original cannot read: "click[size [eu]]".
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
    """What was bought for one goal."""

    asin: str
    price: float
    """Dollars."""
    options: Mapping[str, str]
    """Name of an option -> the value that was chosen; an option left alone does not stand here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One shopper's state. Two equal ones look the same and go on the same way."""

    goals: tuple[Goal, ...]
    """Bought one after the other, in this order."""
    page: PageName = "search"
    query: str = ""
    """Of the last search, in lower case; empty on the search page."""
    results: tuple[str, ...] = ()
    """asins found by it, best first."""
    results_page: int = 1
    """Which ten of them are shown, counted from 1; there is no last one, those beyond the results are empty."""
    asin: str = ""
    """Of the product looked at; empty on the search and the results page."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Chosen for that product, in the order of the clicks."""
    visited: frozenset[str] = frozenset()
    """asins opened since the search page was left."""
    purchases: tuple[Purchase, ...] = ()

    @property
    def done(self) -> bool:
        """Everything is bought; no action changes the session any more."""
        return self.page == "done"

    @property
    def instruction(self) -> str:
        """As every page shows it: the goal's text, or all of them with their numbers."""
        if len(self.goals) == 1:
            return self.goals[0].instruction
        return " ".join(f"{number}. {goal.instruction}" for number, goal in enumerate(self.goals, start=1))
