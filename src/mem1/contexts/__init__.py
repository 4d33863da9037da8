"""Which tokens the model sees next: `constant` (MEM1), `notes`, `fold(k)`, `full`, baselines, and your own policies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mem1.contexts.assembly import Context, ContextPolicy, Kept, Selection, next_context
from mem1.contexts.notes import answer_from, memory_spans, notebook
from mem1.contexts.policies import (
    POLICIES,
    Belief,
    Capped,
    Dropout,
    Fold,
    Full,
    Masked,
    NoMemory,
    Notebook,
    Notes,
    RetrievedNotes,
    Summary,
    Window,
)
from mem1.contexts.recall import recalled
from mem1.errors import UserError, suggestion
from mem1.protocol import Filled
from mem1.records import Turn
from mem1.registry import register

__all__ = [
    "KNOWN",
    "Belief",
    "Capped",
    "Context",
    "ContextPolicy",
    "Dropout",
    "Fold",
    "Full",
    "Kept",
    "Masked",
    "NoMemory",
    "Notebook",
    "Notes",
    "RetrievedNotes",
    "Selection",
    "Summary",
    "Window",
    "answer_from",
    "context_policy",
    "memory_spans",
    "next_context",
    "notebook",
    "recalled",
]

KNOWN = (
    "constant, notes, notes(n), notebook(k), dropout(p), capped(n), fold(k), full, masked, window(k), summary(n), "
    "belief, external(k), none"
)
"""The names that ship; k and n are at least 1, p is a percentage."""


def context_policy(name: str) -> ContextPolicy:
    """The policy written as `name`: "constant", "fold(4)", "my_package.memory:FirstAndLast", "my_memory(3)".

    One of your own is an object with `select`, or a class or function that makes one from the numbers in brackets; it
    has the name that the recipe gives it. Raises UserError for an unknown name and for numbers that do not fit.
    """
    match = re.fullmatch(r"([^()]+)(?:\(([0-9, ]*)\))?", name)
    head, written = (match[1], match[2] or "") if match else (name, "")
    numbers = [int(number) for number in written.split(",") if number.strip()]
    if head in POLICIES or (":" not in head and head not in register.context.names()):
        try:
            return POLICIES[head](*numbers)
        except (KeyError, TypeError, ValueError) as error:
            own = ", ".join(n for n in register.context.names() if n not in POLICIES)
            known = f"{KNOWN}{', ' if own else ''}{own}; k and n are at least 1, p is a percentage"
            close = "" if head in POLICIES else suggestion(name, register.context.names())
            raise UserError(
                f"unknown context policy {name!r}{close}; known: {known}; or package.module:Name"
            ) from error
    thing = register.context.get(head)
    try:
        policy = thing(*numbers) if isinstance(thing, type) or not hasattr(thing, "select") else thing
    except (TypeError, ValueError) as error:
        raise UserError(f"context {name!r} cannot be made: {error}") from error
    if not callable(getattr(policy, "select", None)):
        raise UserError(f"context {name!r} is a {type(policy).__name__} without select(turns) -> Selection")
    return _Named(name, policy)


@dataclass(frozen=True)
class _Named(ContextPolicy):
    """A user's own policy under the name that the recipe gives it."""

    called: str
    policy: Any

    @property
    def name(self) -> str:
        return self.called

    @property
    def requested_action(self) -> str | None:  # type: ignore[override]
        return getattr(self.policy, "requested_action", None)

    @property
    def needs_notes(self) -> bool:  # type: ignore[override]
        return getattr(self.policy, "needs_notes", False)

    def select(self, turns: Sequence[Turn]) -> Selection:
        return self.policy.select(turns)

    def filled(self, turns: Sequence[Turn]) -> Filled | None:
        own = getattr(self.policy, "filled", None)  # an object with nothing but select has none
        return None if own is None else own(turns)
