"""A memory: a pure function from the finished exchanges of an agent to what stays of them in its next prompt.

    exchanges 1 2 3, memory window(2)   ->   Selection(kept=(Kept(2), Kept(3)))

An exchange is what the model said in one turn and what it got back. The same `select` serves two renderers: token
contexts of trained policies (`mem1.memory.contexts`) and messages of chat agents (`mem1.messages`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from mem1.protocol import Filled

STATE = "state"
"""A memory asks this of the model with every turn: all that it needs, rewritten. A chat agent is asked for it in a call
of its own, when an exchange leaves that no state covers yet."""


class Exchange(Protocol):
    """What a memory sees of a finished exchange: `mem1.records.Turn`, and an exchange of messages, are such."""

    @property
    def action(self) -> str:
        """Kind of what the model did; "summary": it wrote what the memory had requested, or its state by itself."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Texts of the notes, in order."""
        ...

    @property
    def labelled(self) -> bool:
        """Whether a note may begin with the label of a question, "Q3", as those of a policy do. A chat agent's may be
        about a quarter."""
        ...

    @property
    def words(self) -> str:
        """State, action and result as one text, for retrieval."""
        ...

    @property
    def said_tokens(self) -> int:
        """Tokens that the model wrote."""
        ...

    @property
    def result_tokens(self) -> int:
        """Tokens of what it got back."""
        ...

    @property
    def state_tokens(self) -> int:
        """Tokens of the state's or summary's text; 0: it has none."""
        ...

    def note_tokens(self, position: int) -> int:
        """Tokens of the note at this position, tags included."""
        ...


E = TypeVar("E", bound=Exchange)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept(Generic[E]):
    """An exchange to keep, and how much of it."""

    turn: E
    state_tokens: int | None = None
    """Number of leading tokens of the state's or summary's text to keep; 0: drop a state with its tags; None: all."""
    only_notes: tuple[int, ...] | None = None
    """Positions, among the notes of the turn, of those that are all that stays of what the model said; None: all."""
    result: bool = True
    """Whether to keep its result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection(Generic[E]):
    """The exchanges that a memory keeps, and what it requests of the model now."""

    kept: tuple[Kept[E], ...]
    """In the order of the next prompt."""
    requested_action: str | None = None
    """Kind of action that the model must take now, "summary"; None: its own choice."""
    requested_tokens: int | None = None
    """Tokens that a requested summary should have at most, where the model is told; None: no wish."""


class MemoryPolicy(Protocol):
    """How much of the past stays in the prompt."""

    asks: frozenset[str] = frozenset()
    """What it asks of the model: "state" and "note" with its turns, "summary" when it requests one, "recall" of what
    is out of sight. The protocol must have a tag or a tool for each."""

    @property
    def name(self) -> str:
        """The name in recipes, such as "constant" or "fold(4)"."""
        return type(self).__name__

    def select(self, turns: Sequence[E], /) -> Selection[E]:
        """Select from the finished exchanges, of which there is at least one."""
        ...

    def filled(self, turns: Sequence[Exchange], /) -> Filled | None:
        """(tokens of the memory after these exchanges, the limit on them); None: it has no limit."""
        return None


def keep(turns: Sequence[E]) -> Selection[E]:
    """These exchanges, whole."""
    return Selection(kept=tuple(Kept(turn=turn) for turn in turns))
