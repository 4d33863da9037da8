"""WebShop in pure Python: products, goals, rewards, pages. Text comparison is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mem1.envs.webshop.catalogue import Catalogue, Instruction, Product
from mem1.envs.webshop.goals import Goal

if TYPE_CHECKING:
    from mem1.envs.webshop.reward import Score, score

__all__ = ["Catalogue", "Goal", "Instruction", "Product", "Score", "score"]


def __getattr__(name: str) -> Any:
    if name in ("Score", "score"):
        from mem1.envs.webshop import reward

        return getattr(reward, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
