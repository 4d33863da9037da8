"""Keys of conversations and of points in them, what is known of one, and a mapping that keeps the latest.

keys_of(messages)        one per message: the hash of everything up to and including it, in whole
trail_of(messages, ..)   the same, of a conversation that goes on: only what is new is hashed
newest(known, keys)      what is known at the last of these points at which something is
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

from mem1.messages.digests import add, add_message
from mem1.messages.transcript import Message

T = TypeVar("T")
_TEXT = {str}


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
    """Tokens that the provider counts for each one of a message's estimate."""
    dense: float = 1.0
    """The same, if all that it counted last were messages."""
    beside: int = 0
    """Tokens of the last prompt that the estimate of its messages missed: tools, above all."""

    def sent_with(self, beside: int | None) -> int:
        """Tokens that are sent with messages, as the caller says, or else as they were missed."""
        return self.beside if beside is None else beside


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
        if key not in self:  # as most are not, and an error takes longer
            return default
        try:
            return self[key]
        except KeyError:  # another thread has just taken it out
            return default


class Trail(NamedTuple):
    """The keys of a conversation, and what they were made of."""

    owner: str
    keys: list[str]
    copies: list[Any]
    """Of the first messages, as they were: their texts themselves, in dictionaries and lists that nobody else changes.
    They are made where a conversation goes on, so that those that take turns do not pay for them."""
    hashes: list[Any]
    """One for each key, to go on from."""


class _Exactly:
    """A number in a copy, which equals itself alone: 1 is neither True nor 1.0. What is no JSON equals nothing."""

    __slots__ = ("shown", "type")

    def __init__(self, value: Any) -> None:
        self.type, self.shown = type(value), repr(value) if isinstance(value, int | float) else None

    def __eq__(self, other: object) -> bool:
        return type(other) is self.type and self.shown is not None and repr(other) == self.shown

    __hash__ = None  # type: ignore[assignment]


def keys_of(messages: Sequence[Message], owner: str = "") -> list[str]:
    """Name of the conversation up to and including each message: what is kept under it belongs to exactly these.

    `owner`: whose it is, where the messages do not tell.
    """
    return [_key(digest) for digest in _digests(_begun(owner), messages)]


def trail_of(messages: Sequence[Message], owner: str, before: Trail | None) -> Trail:
    """The keys; those of messages with which `before`, the call before, begins, too, are taken from there."""
    known = 0
    if before is not None and before.owner == owner:
        for old, new in zip(before.copies, messages, strict=False):
            if old != new:
                break
            known += 1
    if before is None or not known:
        trail, digest = Trail(owner, [], [], []), _begun(owner)
    else:
        trail = Trail(owner, before.keys[:known], before.copies[:known], before.hashes[:known])
        digest = trail.hashes[-1].copy()
    new = messages[known:]
    for after in _digests(digest, new):
        trail.keys.append(_key(after))
        trail.hashes.append(after.copy())
    if before is None or set(before.keys[-1:]) & set(trail.keys):
        trail.copies.extend(map(_copy, new))
    return trail


def _begun(owner: str) -> Any:
    digest = sha256()
    add(digest, owner)
    return digest


def _digests(digest: Any, messages: Sequence[Message]) -> Iterator[Any]:
    """The hash after each message: the same object every time."""
    for message in messages:
        add_message(digest, message)
        yield digest


def _key(digest: Any) -> str:
    return digest.hexdigest()[:32]


def _copy(value: Any) -> Any:
    kind = type(value)
    if kind is str or value is None:
        return value
    if kind is dict and set(map(type, value)) <= _TEXT:
        return {key: each if type(each) is str else _copy(each) for key, each in value.items()}
    if kind is list or kind is tuple:
        return kind([_copy(each) for each in value])
    return _Exactly(value)


def newest(known: Mapping[str, T], keys: Sequence[str]) -> tuple[int, T] | None:
    """(number of messages, what is known of them), of the most messages of which anything is."""
    for number in range(len(keys), 0, -1):
        found = known.get(keys[number - 1])
        if found is not None:
            return number, found
    return None
