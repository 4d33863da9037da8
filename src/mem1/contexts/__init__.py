"""Which tokens the model sees next: `constant` (MEM1), `fold(k)`, `full`, `window(k)`."""

from __future__ import annotations

import re

from mem1.contexts.base import Context, ContextPolicy, next_context
from mem1.contexts.constant import Fold
from mem1.contexts.full import Full
from mem1.contexts.window import Window
from mem1.errors import UserError

__all__ = ["Context", "ContextPolicy", "Fold", "Full", "Window", "context_policy", "next_context"]


def context_policy(name: str) -> ContextPolicy:
    """The policy written as `name`: "constant", "full", "fold(4)", "window(2)".

    Raises UserError for any other name.
    """
    if name == "constant":
        return Fold(1)
    if name == "full":
        return Full()
    match = re.fullmatch(r"(fold|window)\((\d+)\)", name)
    if match is None or int(match[2]) < 1:
        raise UserError(f"unknown context policy {name!r}; known: constant, full, fold(k), window(k) with k >= 1")
    return (Fold if match[1] == "fold" else Window)(int(match[2]))
