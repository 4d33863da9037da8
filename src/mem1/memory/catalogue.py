"""The one list of memories: for recipes, for `mem1 eval`, for chat agents, for the benchmark.

memory_policy("fold(4)")                            ->  Fold(4)
memory_policy("my_package.memory:FirstAndLast")     ->  a memory of your own
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mem1.errors import UserError, suggestion
from mem1.memory.policies import POLICIES
from mem1.memory.selection import E, Exchange, MemoryPolicy, Selection
from mem1.protocol import Filled
from mem1.registry import register

KNOWN = (
    "constant, fold(k), notes, notes(n), notebook(k), full, window(k), masked(k), archive(k), discard_all(n), "
    "summary(n), capped(n), belief, external(k), dropout(p), none; for chat agents also fold(auto)"
)
"""The names that ship; k and n are at least 1, p is a percentage."""


def memory_policy(name: str | MemoryPolicy) -> MemoryPolicy:
    """The memory written as `name`: "constant", "fold(4)", "my_package.memory:FirstAndLast", "my_memory(3)"; one as it
    is.

    One of your own is an object with `select`, or a class or function that makes one from the numbers in brackets; it
    has the name that the recipe gives it. Raises UserError for an unknown name and for numbers that do not fit.
    """
    if not isinstance(name, str):
        if not callable(getattr(name, "select", None)):
            raise UserError(f"{name!r:.40} is no memory; give a name, or an object with select(turns) -> Selection")
        return name
    match = re.fullmatch(r"([^()]+?)(?:\(([a-z0-9, ]*)\))?", name.strip())
    if match is None and ":" in name:
        raise UserError(f"memory {name!r}: only numbers stand in its brackets, without names: package.module:Name(2)")
    head, written = (match[1], match[2] or "") if match else (name, "")
    shipped = head in POLICIES or (":" not in head and head not in register.memory.names())
    try:
        numbers = [_number(word.strip(), head) for word in written.split(",") if word.strip()]
        if shipped:
            return POLICIES[head](*numbers)
    except (KeyError, TypeError, ValueError) as error:
        own = [n for n in register.memory.names() if n not in POLICIES]
        close = "" if head in POLICIES else suggestion(name, register.memory.names())
        raise UserError(
            f"unknown memory {name!r}{close}; known: {', '.join([KNOWN, *own])}; or package.module:Name; k and n are "
            "at least 1, p is a percentage"
        ) from error
    thing = register.memory.get(head)
    try:
        policy = thing(*numbers) if isinstance(thing, type) or not hasattr(thing, "select") else thing
    except (TypeError, ValueError) as error:
        raise UserError(f"memory {name!r} cannot be made: {error}") from error
    if not callable(getattr(policy, "select", None)):
        raise UserError(f"memory {name!r} is a {type(policy).__name__} without select(turns) -> Selection")
    return _Named(name, policy)


def _number(word: str, head: str) -> int | None:
    return None if word == "auto" and head == "fold" else int(word)


@dataclass(frozen=True)
class _Named(MemoryPolicy):
    """A user's own memory under the name that the recipe gives it."""

    called: str
    policy: Any

    @property
    def name(self) -> str:
        return self.called

    @property
    def asks(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset(getattr(self.policy, "asks", ()))

    def select(self, turns: Sequence[E], /) -> Selection[E]:
        return self.policy.select(turns)

    def filled(self, turns: Sequence[Exchange], /) -> Filled | None:
        own = getattr(self.policy, "filled", None)  # an object with nothing but select has none
        return None if own is None else own(turns)
