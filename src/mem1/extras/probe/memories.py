"""Memories of agents, whose prompts are what is retained: mem1's, other packages', and functions of your own.

    Remembered(Ours("fold(8)", write), head).compress(Kept(), pieces, 2_000)   ->   Kept("what the model would see")

These take messages rather than text, and have their own limits: what they retain may be more or less than the tokens
that others are allowed, so a table says how many they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from mem1.errors import UserError
from mem1.extras.probe.compressors import Kept
from mem1.extras.probe.pieces import Piece, pieces_of
from mem1.extras.probe.writers import Write
from mem1.memory import MemoryPolicy
from mem1.messages import Bounds, Memory, recall
from mem1.messages.bounds import LEAST

Message = Mapping[str, Any]
_MARK, _DROPPED = "[result of ", " was dropped"
_HANDLE = re.compile(r"\br[0-9a-f]{8}\b")


class Shortener(Protocol):
    """Something that shortens conversations."""

    def shown(self, messages: Sequence[Message], /) -> list[Message]:
        """What the model sees next of the conversation so far, which only grows from call to call."""
        ...


class Ours:
    """A memory of mem1."""

    def __init__(self, policy: str | MemoryPolicy, write: Write | None, tokens: int) -> None:
        self._memory = Memory(policy, write=write, bounds=Bounds(state=max(LEAST["state"], tokens)))

    def shown(self, messages: Sequence[Message]) -> list[Message]:
        return list(self._memory.prompt(messages))


class Replacing:
    """A function from a history to a shorter one, which the agent then goes on with, as most frameworks do."""

    def __init__(self, shorten: Callable[[list[Message]], Sequence[Message]], name: str = "a memory") -> None:
        """`name`: of the function, in messages."""
        self._shorten, self._name = shorten, name
        self._history: list[Message] = []
        self._taken = 0

    def shown(self, messages: Sequence[Message]) -> list[Message]:
        """Raises UserError where the function returns no messages."""
        self._history += messages[self._taken :]
        self._taken = len(messages)
        found = self._shorten(list(self._history))
        listed = isinstance(found, Sequence) and all(isinstance(each, Mapping) and "role" in each for each in found)
        if not listed:
            raise UserError(
                f"{self._name} returned {found!r:.80}; a memory takes a list of chat messages and returns a shorter one"
            )
        self._history = list(found)
        return self._history


class Tracking:
    """A function from the whole conversation to what the model sees of it, which itself knows what it has shortened."""

    def __init__(
        self,
        shorten: Callable[[Sequence[Message]], list[Message]],
        behind: Callable[[Sequence[Message]], str] = lambda shown: "",
    ) -> None:
        """`behind`: the texts that the model can open by what it is shown, besides mem1's handles."""
        self.shown, self.behind = shorten, behind


class Remembered:
    """A shortener as a compressor, which is called before each turn of the model."""

    def __init__(self, shortener: Shortener, head: Sequence[Message]) -> None:
        """`head`: the messages up to the task."""
        self._shortener = shortener
        self._head = list(head)
        self._messages = list(head)

    def compress(self, kept: Kept, pieces: Sequence[Piece], tokens: int) -> Kept:
        for piece in pieces:
            if piece.role == "said":
                self._shortener.shown(self._messages)
            self._messages.append(piece.given)
        shown = self._shortener.shown(self._messages)
        own = [message for message in shown if message not in self._head]
        text = "\n".join(piece.text for piece in pieces_of(own, 0))
        behind = self._shortener.behind(shown) if isinstance(self._shortener, Tracking) else ""
        return Kept(_without_marks(text), "\n".join([behind, *self._recalled(text)]))

    def _recalled(self, text: str) -> list[str]:
        """All texts that mem1's handles return."""
        found: list[str] = []
        for handle in sorted(set(_HANDLE.findall(text))):
            try:
                found.append(str(recall(self._messages, handle)))
            except UserError:
                continue  # a word that only looks like a handle
        return found


def _without_marks(text: str) -> str:
    """The text without what mem1 puts in the place of results, which has numbers of its own."""
    first, *rest = text.split(_MARK)
    kept = [first]
    for part in rest:
        inside, _, after = part.partition("]")
        kept.append(after if _DROPPED in inside else f"{_MARK}{part}")
    return "".join(kept)
