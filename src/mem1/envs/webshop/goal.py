"""What a shopper was asked for: one goal, with the keys of the original.

Goal.from_keys({"instruction_text": "i need a blue rug under 30 dollars", "attributes": ["easy clean"], ...})
->  Goal(instruction="i need a blue rug under 30 dollars", attributes=("easy clean",), ...)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NO_PRICE = 1_000_000.0
"""Upper bound of a goal whose instruction speaks of no price (WebShop, goal.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One shopping goal, and what it is scored by."""

    asin: str = ""
    """Of the product that it was written for; another one that fits is as good."""
    instruction: str
    """The text that the shopper reads, the price included."""
    attributes: tuple[str, ...] = ()
    options: Mapping[str, str] | tuple[str, ...] = ()
    """Synthetic goals: name of the option -> value; goals by people: values alone. The original scores the two in
    different ways, see `score`."""
    price_upper: float = NO_PRICE
    """Largest price in dollars."""
    name: str = ""
    category: str = ""
    query: str = ""
    product_category: str = ""
    weight: float = 1.0
    """Share in which the original draws it."""

    @classmethod
    def from_keys(cls, keys: Mapping[str, Any]) -> Goal:
        """Of the original's form (`instruction_text`, `goal_options`, ...)."""
        options = keys.get("goal_options") or ()
        return cls(
            asin=keys.get("asin") or "",
            instruction=keys.get("instruction_text") or "",
            attributes=tuple(keys.get("attributes") or ()),
            options=dict(options) if isinstance(options, Mapping) else tuple(options),
            price_upper=float(keys.get("price_upper", NO_PRICE)),
            name=keys.get("name") or "",
            category=keys.get("category") or "",
            query=keys.get("query") or "",
            product_category=keys.get("product_category") or "",
            weight=float(keys.get("weight", 1.0)),
        )
