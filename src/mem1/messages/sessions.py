"""What tells conversations apart, and points in them; and a mapping that keeps what is known of the latest.

session_of(transcript)     by the system message and the first task: the same in each call of a conversation
keys_of(transcript, CHAT)  one per exchange: where a state written after it is kept
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, TypeVar

from mem1.messages.assembly import handle_of
from mem1.messages.transcript import Exchange, Form, Message, Transcript, User, is_ask, said

T = TypeVar("T")


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
        if len(self) > self._most:
            self.popitem(last=False)


def session_of(transcript: Transcript) -> str:
    """What tells a conversation from others: its system message and its first task."""
    return _hash([*transcript.system, *_task(transcript)])


def _task(transcript: Transcript) -> list[Message]:
    """The first message of the user, if there is one."""
    return [part.message for part in transcript.parts if isinstance(part, User) and not is_ask(part)][:1]


def exchanges_of(transcript: Transcript) -> list[Exchange]:
    return [part for part in transcript.parts if isinstance(part, Exchange)]


def keys_of(transcript: Transcript, form: Form) -> list[str]:
    """Name of a state written after each exchange: by the task, and all calls and results up to it.

    Ids of calls alone do not tell two runs of a task apart, as some servers count them from 0 in each. The system
    message is left out: some clients put the time of day into it.
    """
    digest = sha256(_hash(_task(transcript)).encode())
    keys: list[str] = []
    for exchange in exchanges_of(transcript):
        names = [handle_of(result, form) for result in exchange.results]
        own = [*(call.id for call in exchange.calls), *names] if exchange.calls else [said(exchange)]
        digest.update("\0".join([*own, ""]).encode("utf-8", "replace"))
        keys.append(digest.hexdigest()[:32])
    return keys


def _hash(messages: Sequence[Message]) -> str:
    return sha256("\0".join(map(identity, messages)).encode("utf-8", "replace")).hexdigest()[:16]


def identity(message: Message) -> str:
    """The message as a text, without marks for the prompt cache, which clients move from call to call."""
    content = message.get("content")
    if isinstance(content, list):
        content = [_unmarked(block) if isinstance(block, Mapping) else block for block in content]
        message = {**message, "content": content}
    return json.dumps(_unmarked(message), sort_keys=True, default=str)


def _unmarked(block: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in block.items() if key != "cache_control"}
