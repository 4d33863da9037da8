"""What a prompt gives up beyond results and exchanges where it does not fit, and how a message is shortened.

"The harbour was built in 1901 by the council of the town ..."
"The harbour was[... 7,514 tokens of this message were left out ...]the last ship left."
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mem1.messages.bounds import MESSAGE_TOKENS, Bounds, tokens_of
from mem1.messages.transcript import MAPPING, PLACE, Message, is_image

_THOUGHTS = frozenset(("reasoning_content", "reasoning", "reasoning_details", "reasoning_text", "thinking"))
_SIGNS = frozenset(
    ("signature", "thought_signature", "thoughtSignature", "encrypted_content", "data", "thinking_blocks")
)
_IMAGE_GONE = "[an image was left out]"
_LINE = 24
"""Tokens of the line about what is missing of a message."""


@dataclass(slots=True, kw_only=True)
class Cuts:
    """What leaves a prompt, by index of the part."""

    reminders: Mapping[int, frozenset[int]] = field(default_factory=dict[int, frozenset[int]])
    """Message of the user -> positions of outdated reminders, which leave with the exchange before it."""
    thoughts: set[int] = field(default_factory=set[int])
    """Exchanges that lose unsigned thoughts."""
    notes: dict[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])
    """Exchanges of which lines are left, beside those that the memory chose."""
    results: dict[int, int] = field(default_factory=dict[int, int])
    """Exchange -> tokens of each of its results."""
    images: dict[int, int] = field(default_factory=dict[int, int])
    """Exchange -> images of its results that stay, the newest first."""
    users: dict[int, int] = field(default_factory=dict[int, int])
    """Message of the user -> its tokens."""
    gone: set[int] = field(default_factory=set[int])
    """Messages of the user."""
    system: int | None = None
    """Tokens of each system message."""
    state: int | None = None
    """Tokens of the state."""
    said: list[str] = field(default_factory=list[str])
    """What was done, in words."""


def without_unsigned_thoughts(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages without thoughts that nobody signed; one with a signature stays as it is."""
    return tuple([_without_unsigned(message) for message in messages])


def _without_unsigned(message: Message) -> Message:
    content = message.get("content")
    blocks = [] if isinstance(content, str) or not content else list(content)
    others = [block for block in blocks if not isinstance(block, MAPPING) or block.get("type") != "thinking"]
    if message.get("role") != "assistant" or not (_THOUGHTS & message.keys() or len(others) < len(blocks)):
        return message
    if PLACE in message or _signed(message):  # a framework's own message is shown as it is
        return message
    left = {key: value for key, value in message.items() if key not in _THOUGHTS}
    if len(others) < len(blocks):
        left["content"] = others
    return left if left.get("content") or left.get("tool_calls") else message


def _signed(value: Any) -> bool:
    if isinstance(value, MAPPING):
        return any(part and (key in _SIGNS or _signed(part)) for key, part in value.items())
    return isinstance(value, list | tuple) and any(_signed(part) for part in value)


def cut_message(message: Message, limit: int, bounds: Bounds, text_type: str) -> Message:
    """The message with about `limit` tokens: its images go first, oldest first; then the middle of its texts."""
    beyond = tokens_of([message], bounds.count) - limit
    if beyond <= 0:
        return message
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": _middle_cut(content, max(0, limit - MESSAGE_TOKENS), bounds)}
    left: list[Mapping[str, Any]] = []
    for part in content or ():
        if beyond > 0 and is_image(part):
            gone = {"type": text_type, "text": _IMAGE_GONE}
            beyond -= tokens_of([part], bounds.count) - tokens_of([gone], bounds.count)
            part = gone
        left.append(part)
    if beyond > 0:
        sizes = [0 if is_image(part) else bounds.count(part["text"]) for part in left]
        most = level(sizes, beyond, _LINE)
        for at, part in enumerate(left):
            if sizes[at] > most:
                left[at] = {**part, "text": _middle_cut(part["text"], most, bounds)}
    return {**message, "content": left}


def level(sizes: Sequence[int], save: int, least: int) -> int:
    """The most tokens of each, so that all together save as many; not below `least`."""
    low, high = least, max((*sizes, least))
    while low < high:
        middle = (low + high + 1) // 2
        if sum(max(0, size - middle) for size in sizes) >= save:
            low = middle
        else:
            high = middle - 1
    return low


def _middle_cut(text: str, limit: int, bounds: Bounds) -> str:
    """A text of about `limit` tokens: its beginning and its end; at least a little of both."""
    whole = bounds.count(text)
    if whole <= limit:
        return text
    room = max(2 * _LINE // 3, limit - _LINE)
    kept = len(text) * room // whole
    while True:
        start, end = text[: -(-2 * kept // 3)], text[len(text) - kept // 3 :] if kept >= 3 else ""
        missing = whole - bounds.count(start) - bounds.count(end)
        short = f"{start}[... {max(0, missing):,} tokens of this message were left out ...]{end}"
        if bounds.count(short) <= max(limit, 2 * _LINE) or kept < 3:
            break
        kept = min(kept - 1, kept * 9 // 10)
    return short if bounds.count(short) < whole else text
