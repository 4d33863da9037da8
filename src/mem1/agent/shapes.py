"""Shapes of messages that a server asks for, beside the order of roles (mem1.agent.roles), learnt from its refusals.

    shapes_in("Invalid value for 'content': expected a string, got null")               ->  (with_texts, with_words)
    shapes_in("Tool call id was c1 but must be a-z, A-Z, 0-9, with a length of 9")      ->  (short_ids,)
    short_ids([{"role": "tool", "tool_call_id": "call_1", ...}])      ->  [{"role": "tool", "tool_call_id": "b4Qm2..."}]

What changes is what the server sees, and never the conversation.
"""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from mem1.messages.folding import PAUSE
from mem1.messages.transcript import Message

Shape = Callable[[Sequence[Message]], list[Message]]
_LETTERS = string.ascii_letters + string.digits
_ID = 9
"""Letters of an id that Mistral takes, and with it all others."""
_IDS = re.compile(
    r"call.?ids? .{0,80}(?:must be|length)|"
    r"(?:tool_calls?\b.{0,20}\b|call_|tool_use[._])id\b.{0,40}(?:too long|length|pattern)",
    re.IGNORECASE,
)
_FILLED = re.compile(
    r"non.?empty|(?:not|cannot|can't) be (?:empty|blank)|content is (?:empty|blank)|at least one content|"
    r"\u4e0d\u80fd\u4e3a\u7a7a|\u4e0d\u53ef\u4e3a\u7a7a",
    re.IGNORECASE,
)
"""The last two in Chinese, as Zhipu writes them: "cannot be empty"."""
_TEXT = re.compile(
    r"\bcontent\b.{0,60}(?:null\b|\bnil\b|\bnone\b|required|missing|a (?:valid )?string|be string)|"
    r"(?:missing|required|null|none)\b.{0,40}\bcontent\b|invalid type: null",
    re.IGNORECASE,
)


def new_id() -> str:
    """An id for a call that every provider accepts."""
    return "".join(secrets.choice(_LETTERS) for _ in range(_ID))


def shapes_in(detail: str) -> Sequence[Shape]:
    """What a refusal may ask of each message, the likeliest first."""
    if _IDS.search(detail):
        return (short_ids,)
    if ("content" in detail or "message" in detail) and _FILLED.search(detail):
        return (with_words,)
    return (with_texts, with_words) if _TEXT.search(detail) else ()


def short_ids(messages: Sequence[Message]) -> list[Message]:
    """Every id of a call as nine letters and digits, the same for the same id."""
    found: list[Message] = []
    for message in messages:
        if message.get("tool_calls"):
            calls = [{**call, "id": _short(call.get("id"))} for call in message["tool_calls"]]
            message = {**message, "tool_calls": calls}
        if message.get("tool_call_id"):
            message = {**message, "tool_call_id": _short(message["tool_call_id"])}
        found.append(message)
    return found


def with_texts(messages: Sequence[Message]) -> list[Message]:
    """An empty text where a message has no content, as one that only calls tools."""
    return [message if message.get("content") is not None else {**message, "content": ""} for message in messages]


def with_words(messages: Sequence[Message]) -> list[Message]:
    """A few words where a message has no content."""
    return [message if message.get("content") else _with_word(message) for message in messages]


def _with_word(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    names = ", ".join(str((call.get("function") or {}).get("name")) for call in calls or ())
    return {**message, "content": f"I call {names}." if calls else PAUSE if message.get("role") == "assistant" else "-"}


def _short(id: Any) -> str:
    number = int.from_bytes(sha256(str(id).encode()).digest()[:8], "big")
    return "".join(_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(_ID))
