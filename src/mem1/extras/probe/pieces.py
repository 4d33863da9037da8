"""A transcript as pieces of text, one for each message, which compressors shorten to a number of tokens.

    pieces_of(transcript.messages, 2)   ->   (Piece("user", "[user] Stay below 300 requests.", 4),
                                              Piece("said", '[assistant] I look. search({"query": "limits"})', 5),
                                              Piece("result", "[result of search] The limits are ...", 6))

The first message of the user is the task; it and what stands before it are no pieces: every memory keeps them as they
are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from mem1.messages.bounds import estimated
from mem1.messages.transcript import texts
from mem1.messages.writing import one_text

Role = Literal["user", "said", "result"]


@dataclass(frozen=True)
class Piece:
    """A message as text."""

    role: Role
    text: str
    message: int
    """Index of the message."""
    given: Mapping[str, Any] = field(repr=False, default_factory=dict[str, Any])
    """The message itself."""

    @cached_property
    def tokens(self) -> int:
        return estimated(self.text)


def start_of(messages: Sequence[Mapping[str, Any]]) -> int:
    """Number of messages up to the task; every conversation that providers take has one."""
    return next(at for at, message in enumerate(messages, start=1) if message["role"] == "user")


def pieces_of(messages: Sequence[Mapping[str, Any]], start: int) -> tuple[Piece, ...]:
    """All messages from `start` on, in order."""
    names: dict[str, str] = {}
    found: list[Piece] = []
    for at, message in enumerate(messages):
        text = one_text(texts(message.get("content")))
        if message["role"] in ("tool", "function"):
            name = names.get(message.get("tool_call_id", "")) or message.get("name", "a tool")
            piece = Piece("result", f"[result of {name}] {text}", at, message)
        elif message["role"] == "assistant":
            calls = list(_calls(message))
            names |= {call: name for call, name, _ in calls}
            parts = [text, *(f"{name}({given})" for _, name, given in calls)]
            piece = Piece("said", f"[assistant] {' '.join(part for part in parts if part)}", at, message)
        else:
            piece = Piece("user", f"[user] {text}", at, message)
        if at >= start:
            found.append(piece)
    return tuple(found)


def _calls(message: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(id, name, what is given) of each call, a custom one and one from before there were tools too."""
    for call in message.get("tool_calls") or ():
        custom = call.get("custom")
        yield (call["id"], custom["name"], custom["input"]) if custom else (call["id"], *_function(call["function"]))
    if old := message.get("function_call"):
        yield "", *_function(old)


def _function(call: Mapping[str, Any]) -> tuple[str, str]:
    return call["name"], call["arguments"]


def exchanges(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """The model's turn with the results of its calls, and what the user says behind them."""
    found: list[Piece] = []
    for piece in pieces:
        if piece.role == "said" and found:
            yield found
            found = []
        found.append(piece)
    if found:
        yield found


def newest(text: str, tokens: int) -> str:
    """The end of a text, at most so many tokens, from a word's beginning on."""
    if estimated(text) <= tokens:
        return text
    start = bisect_left(range(len(text)), True, key=lambda start: estimated(text[start:]) <= tokens)
    return text[start:].partition(" ")[2] if start and not text[start - 1].isspace() else text[start:]
