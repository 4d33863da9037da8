"""What a memory does with each exchange, and when the model has to write its state: the policies that ship.

    exchanges      1     2     3     4            the newest is 4
    keep           whole whole whole whole        appends, as every agent does without a memory
    mask(2)        mask  mask  whole whole        old results give way to handles; what the model said stays
    window(2)      -     -     whole whole        old exchanges are dropped
    fold(2)        -     -     whole whole        after 3 the model wrote a state, which stands before 3
    notes          note  note  note  whole        an exchange leaves the line that the model noted with it

Sources: MEM1 (arXiv 2506.15841) for a state that replaces the past, written here in a call of its own, as untrained
models do not write it with their actions; Lindenbauer et al. (arXiv 2508.21433) for masking results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from mem1.errors import UserError, closest
from mem1.registry import register

_NEARLY = 0.8
"""Share of the state's bound from which on notes are written anew, so that none is cut off before."""


class Stays(Enum):
    """What stays of an exchange."""

    WHOLE = "whole"
    CALLS = "calls"
    """All that the model said, with handles in the place of results."""
    NOTE = "note"
    """A line in the state."""
    NOTHING = "nothing"


class Past(NamedTuple):
    """Where an exchange stands; counts are of finished exchanges."""

    age: int
    """Exchanges after it; 0: the newest."""
    before_state: int
    """Exchanges from it to the newest state, itself included; 0: it came after the state, or there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """What decides whether a state is due."""

    whole: int
    """Exchanges that stay whole."""
    state_tokens: int
    """Tokens of the state and the notes after it."""
    state_limit: int
    """Tokens at which they are cut."""
    best_k: float
    """Exchanges between two states at which a long run is cheapest; infinite without prices."""


class Policy(Protocol):
    """A memory. Pure: what it decides follows from its arguments."""

    instruction: str = ""
    """Text for the model in every prompt, after the task."""
    oldest_first: bool = False
    """Whether a state that is too long loses its oldest lines, not its last ones."""

    def stays(self, past: Past) -> Stays:
        """What stays of an exchange."""
        ...

    def due(self, present: Present) -> bool:
        """Whether the model should write a state now, before its next turn."""
        return False

    def state_tokens(self, limit: int) -> int:
        """Tokens that a state may have when it is written; `limit` is the bound of states."""
        return limit


@dataclass(frozen=True, slots=True)
class Keep(Policy):
    """Append everything."""

    def stays(self, past: Past) -> Stays:
        return Stays.WHOLE


@dataclass(frozen=True, slots=True)
class Mask(Policy):
    """Handles in the place of all results but those of the last `k` exchanges."""

    k: int

    def stays(self, past: Past) -> Stays:
        return Stays.WHOLE if past.age < self.k else Stays.CALLS


@dataclass(frozen=True, slots=True)
class Window(Policy):
    """Only the last `k` exchanges."""

    k: int

    def stays(self, past: Past) -> Stays:
        return Stays.WHOLE if past.age < self.k else Stays.NOTHING


@dataclass(frozen=True, slots=True)
class Fold(Policy):
    """Append for `k` exchanges; then the model writes a state, and only the newest exchange stays beside it.

    `k = None`, "auto": the k at which a long run is cheapest, by prices and measured sizes; see `mem1.messages.cost`.
    """

    k: int | None

    def stays(self, past: Past) -> Stays:
        return Stays.WHOLE if past.before_state <= 1 else Stays.NOTHING

    def due(self, present: Present) -> bool:
        return present.whole > (present.best_k if self.k is None else self.k)


@dataclass(frozen=True, slots=True)
class Notes(Policy):
    """Only the newest exchange, and a line for each older one, which the model writes with its next action.

    At `tokens` tokens of lines the model writes them anew, at half the length. None: close to the bound of states.
    """

    tokens: int | None = None
    instruction = (
        "Earlier tool results disappear. With each action, write one line <note>...</note>: what the last result "
        "taught you, with names, numbers and paths as they are. Notes stay."
    )
    oldest_first = True

    def stays(self, past: Past) -> Stays:
        if past.age == 0:
            return Stays.WHOLE
        return Stays.NOTHING if past.before_state else Stays.NOTE

    def due(self, present: Present) -> bool:
        return present.state_tokens > self._most(present.state_limit)

    def state_tokens(self, limit: int) -> int:
        return self._most(limit) // 2

    def _most(self, limit: int) -> int:
        nearly = int(_NEARLY * limit)
        return nearly if self.tokens is None else min(self.tokens, nearly)


POLICIES: Mapping[str, Callable[..., Policy]] = {
    "keep": Keep,
    "mask": Mask,
    "window": Window,
    "fold": Fold,
    "notes": Notes,
}
"""Name -> what makes the policy from the arguments in brackets."""
KNOWN = "keep, mask(k), window(k), fold(k), fold(auto), notes, notes(tokens)"
"""The names that ship; numbers are at least 1."""


def policy_of(policy: str | Policy) -> Policy:
    """The policy of a name: "keep", "mask(3)", "fold(auto)", "my_package.memory:Mine(2)"; a policy as it is.

    Raises UserError for an unknown name and for arguments that do not fit.
    """
    if not isinstance(policy, str):
        return policy
    match = re.fullmatch(r"([^()]+?)(?:\(([a-z0-9, ]*)\))?", policy.strip())
    arguments = [word.strip() for word in (match[2] or "").split(",") if word.strip()] if match else []
    try:
        if match is None:
            raise ValueError("write a name, with its numbers in brackets")
        numbers = [None if word == "auto" and match[1] == "fold" else int(word) for word in arguments]
        if any(number is not None and number < 1 for number in numbers):
            raise ValueError("numbers are at least 1")
        names = register.memory.names()
        if ":" not in match[1] and match[1] not in names:
            raise ValueError(f"did you mean {found}?" if (found := closest(policy, names)) else "no such name")
        made = register.memory.get(match[1])(*numbers)
    except (TypeError, ValueError) as error:
        own = [name for name in register.memory.names() if name not in POLICIES]
        raise UserError(
            f"unknown memory {policy!r} ({error}); known: {', '.join([KNOWN, *own])}; or package.module:Name"
        ) from error
    if not callable(getattr(made, "stays", None)) or not callable(getattr(made, "due", None)):
        raise UserError(f"memory {policy!r} is a {type(made).__name__} without stays(past) and due(present)")
    return made
