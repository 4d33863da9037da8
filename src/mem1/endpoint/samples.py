"""The samples in an agent's messages: which message the policy wrote, and where its tokens stand in a context.

key_of({"role": "assistant", "content": [{"type": "text", "text": "Oslo"}]})    Key(content="Oslo", calls=())
encoded(chat, [ask, Sampled((7, 8)), ask], [], [3])     ((1, 2, 7, 8, 4), ((3, "text", 2, 4),))
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from mem1.engines.chat_messages import ChatMessages, Sampled
from mem1.engines.chat_replies import Message
from mem1.records import Origin


class Key(NamedTuple):
    """Text of an assistant's message in any framework's spelling."""

    content: str
    calls: tuple[tuple[str, str, str], ...]
    """(id, name, arguments in one spelling)."""


def encoded(
    chat: ChatMessages, given: Sequence[Message | Sampled], tools: Sequence[Message], copied: Sequence[int]
) -> tuple[tuple[int, ...], tuple[Origin, ...]]:
    """The context, and where it holds samples: (number of the call, "text", start, stop)."""
    # in its place, each sample is marked by a number that is no token, and its last one, which may end the message
    samples = [message.ids for message in given if isinstance(message, Sampled)]
    marks = iter(range(-1, -1 - len(samples), -1))
    marked = [
        Sampled((next(marks), *message.ids[-1:])) if isinstance(message, Sampled) and message.ids else message
        for message in given
    ]
    ids: list[int] = []
    origins: list[Origin] = []
    whole = iter(zip((ids for ids in samples if ids), _numbered(samples, copied), strict=True))
    for token in chat.encode(marked, tools):
        if token >= 0:
            ids.append(token)
            continue
        sample, number = next(whole)
        origins.append((number, "text", len(ids), len(ids) + len(sample)))
        ids += sample[:-1]
    return tuple(ids), tuple(origins)


def _numbered(samples: Sequence[tuple[int, ...]], copied: Sequence[int]) -> list[int]:
    return [number for sample, number in zip(samples, copied, strict=True) if sample]


def key_of(message: Message) -> Key:
    """The same for a message and its copies in the spelling of any framework."""
    calls = message.get("tool_calls")
    made = [_call_key(call) for call in calls] if isinstance(calls, Sequence) else []
    return Key(text_of(message.get("content")), tuple(made))


def _call_key(call: Any) -> tuple[str, str, str]:
    call = call if isinstance(call, Mapping) else {}
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    arguments: Any = function.get("arguments")
    with suppress(ValueError, TypeError, RecursionError):
        arguments = json.loads(arguments)
    with suppress(ValueError, TypeError, RecursionError):
        arguments = json.dumps(arguments, sort_keys=True)
    return str(call.get("id")), str(function.get("name")), str(arguments)


def text_of(content: Any) -> str:
    if isinstance(content, Sequence) and not isinstance(content, str):
        return "\n".join(str(part.get("text")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""
