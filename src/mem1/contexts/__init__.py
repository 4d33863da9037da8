"""Which tokens the model sees next: `constant` (MEM1), `fold(k)`, `full`, and what they are compared with."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from mem1.contexts.base import Context, ContextPolicy, Kept, Selection, next_context
from mem1.contexts.capped import Capped
from mem1.contexts.constant import Fold
from mem1.contexts.external import External
from mem1.contexts.full import Full
from mem1.contexts.masked import Masked
from mem1.contexts.nothing import Nothing
from mem1.contexts.summary import Summary
from mem1.contexts.window import Window
from mem1.errors import UserError

__all__ = [
    "KNOWN",
    "Capped",
    "Context",
    "ContextPolicy",
    "External",
    "Fold",
    "Full",
    "Kept",
    "Masked",
    "Nothing",
    "Selection",
    "Summary",
    "Window",
    "context_policy",
    "next_context",
]

_PLAIN: Mapping[str, ContextPolicy] = {"constant": Fold(1), "full": Full(), "masked": Masked(), "none": Nothing()}
_NUMBERED: Mapping[str, Callable[[int], ContextPolicy]] = {
    "capped": Capped,
    "external": External,
    "fold": Fold,
    "summary": Summary,
    "window": Window,
}
KNOWN = "constant, capped(n), fold(k), full, masked, window(k), summary(n), external(k), none"
"""All names; k and n are at least 1."""


def context_policy(name: str) -> ContextPolicy:
    """The policy written as `name`: "constant", "full", "fold(4)", "window(2)".

    Raises UserError for any other name.
    """
    if name in _PLAIN:
        return _PLAIN[name]
    match = re.fullmatch(r"([a-z]+)\(([0-9]{1,9})\)", name)
    if match is None or match[1] not in _NUMBERED or int(match[2]) < 1:
        raise UserError(f"unknown context policy {name!r}; known: {KNOWN}; k and n are at least 1")
    return _NUMBERED[match[1]](int(match[2]))
