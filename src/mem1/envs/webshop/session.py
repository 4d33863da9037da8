"""Where a shopper stands: a value, so that a shop keeps nothing between two actions.

session = shop.start([goal])                  Session(goals=(goal,), page="search")
session = shop.step(session, "search[rug]")   Session(goals=(goal,), page="results", query="rug", results=...)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mem1.envs.webshop.goal import Goal

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
