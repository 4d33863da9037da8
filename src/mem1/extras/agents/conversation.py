"""A framework's own messages as a memory reads them, and back.

    own         HumanMessage         AIMessage       ToolMessage
    read        {user, 0}            {assistant, 1}  {tool, 2}      each with its place
    memory      {user + state, 0}    {assistant, 1}  {tool, 2}
    written     copy with the state  AIMessage       ToolMessage    those unchanged are the same objects

So whatever a framework keeps on its messages stays: ids, metadata, signed thinking, artifacts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mem1.errors import UserError
from mem1.memory import MemoryPolicy
from mem1.messages import Memory
from mem1.messages.endings import CUT, FILTERED, unfinished
from mem1.messages.transcript import PLACE, Message

M = TypeVar("M")
_ENDINGS = ("finish_reason", "stop_reason", "done_reason", "stopReason")
"""Keys of providers for why a reply ended; the Responses API has a status with details."""


def memory_of(policy: str | MemoryPolicy, settings: Mapping[str, Any], form: str = "chat") -> Memory:
    """The memory with these settings of `mem1.messages.Memory`. Raises UserError for a `write` among them."""
    if "write" in settings:
        raise UserError(
            "a memory of an agent has no `write`: the agent's own model writes its states, or a `writer` beside it"
        )
    return Memory(policy, form=form, **settings)


def ending_in(answer: Mapping[str, Any]) -> Any:
    """Why a reply ended, in the word of the provider's answer or of what a framework keeps of it; None: not said."""
    details = answer.get("incomplete_details") or {}
    return next(filter(None, [details.get("reason"), *map(answer.get, _ENDINGS)]), None)


def finished(message: Message, ended: Any, memory: Memory) -> Message:
    """What the model said when it was asked for a state. Raises UserError where that came to no end.

    `ended`: why, in the framework's word.
    """
    word = str(ended).lower()
    if why := unfinished(message, memory.bounds, cut=word in CUT, filtered=word in FILTERED):
        raise UserError(why)
    return message


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[M]):
    """How the messages of a framework become those of a form of `mem1.messages.forms`, and back."""

    read: Callable[[M], Message]
    copied: Callable[[M, Message], M]
    """A copy of a message with the content of the second one; of the model's, it lacks a thought in the text."""
    made: Callable[[Message], M]
    """What mem1 adds: a message of the user, or the result of a call that nobody answered."""
    form: str = "chat"


@dataclass(frozen=True, slots=True)
class Conversation(Generic[M]):
    """A conversation in a framework's own messages."""

    kind: Kind[M]
    own: Sequence[M]
    read: tuple[Message, ...]
    """The same for a memory, each with its place."""

    @classmethod
    def of(cls, kind: Kind[M], own: Sequence[M]) -> Conversation[M]:
        """The conversation of these messages, which are not changed."""
        return cls(kind, own, tuple([{**kind.read(message), PLACE: at} for at, message in enumerate(own)]))

    def written(self, shown: Sequence[Message]) -> list[M]:
        """Messages that a memory made of `read`, as the framework's own."""
        return [self._own(message) for message in shown]

    def recall(self, memory: Memory, handle: str, start: int = 0) -> Any:
        """What a memory has behind a handle; see `Memory.recall`."""
        return memory.recall(handle, start, messages=self.read)

    def _own(self, message: Message) -> M:
        at = message.get(PLACE)
        if at is None:
            return self.kind.made(message)
        if all(message.get(key) is self.read[at].get(key) for key in ("content", "output")):
            return self.own[at]
        return self.kind.copied(self.own[at], {key: value for key, value in message.items() if key != PLACE})
