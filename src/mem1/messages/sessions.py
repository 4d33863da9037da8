"""Keys of conversations and of points in them, what is known of one, and a mapping that keeps the latest.

keys_of(messages)        one per message: the hash of everything up to and including it, in whole
newest(known, keys)      what is known at the last of these points at which something is
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar

from mem1.messages.digests import add, add_message
from mem1.messages.transcript import Message

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The record of a conversation after a call."""

    state: str | None = None
    """As it was shown."""
    left_out: int = 0
    """Results that were not shown whole."""
    cut: tuple[str, ...] = ()
    """What else was cut for the bound of the prompt, in words."""
    failures: int = 0
    """To write a state, since the last one."""
    asks_from: int = 0
    """Exchange from which on a state is asked for again."""
    pauses: bool = False
    """Whether requests for states need a word of the assistant's before them."""
    appends: int | None = None
    """Exchange until which appending is cheaper; None: that was never told."""
    scale: float = 1.0
    """Tokens that the provider counts for each one that was estimated."""
    beside: int = 0
    """Tokens of the last prompt that the estimate of its messages missed: tools, above all."""


class Latest(OrderedDict[str, T]):
    """A mapping that keeps the entries used last."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __getitem__(self, key: str) -> T:
        self.move_to_end(key)
        return super().__getitem__(key)

    def __setitem__(self, key: str, value: T) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)

    def get(self, key: str, default: Any = None) -> Any:
        """As `__getitem__`, which dict.get passes by: what is looked up is used."""
        try:
            return self[key]
        except KeyError:
            return default


def keys_of(messages: Sequence[Message], owner: str = "") -> list[str]:
    """Name of the conversation up to and including each message: what is kept under it belongs to exactly these.

    `owner`: whose it is, where the messages do not tell.
    """
    digest, keys = sha256(), list[str]()
    add(digest, owner)
    for message in messages:
        add_message(digest, message)
        keys.append(digest.hexdigest()[:32])
    return keys


def newest(known: Mapping[str, T], keys: Sequence[str]) -> tuple[int, T] | None:
    """(number of messages, what is known of them), of the most messages of which anything is."""
    for number in range(len(keys), 0, -1):
        found = known.get(keys[number - 1])
        if found is not None:
            return number, found
    return None
