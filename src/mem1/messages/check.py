"""Checks whether a provider would accept a conversation: the rules of pairing and order, read from the messages alone.

    check([{"role": "user", ...}, {"role": "tool", ...}])    UserError: messages[1] answers 'a', which nothing called

Sources: the API references of OpenAI and Anthropic as of November 2026, and what chat templates refuse (a second system
message, no message of the user).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mem1.errors import UserError

Message = Mapping[str, Any]


def check(messages: Sequence[Message], form: str = "chat", *, waiting: bool = False) -> None:
    """Raises UserError, naming the first message that a provider would refuse.

    `waiting`: calls at the end may still wait for their results.
    """
    try:
        rules = _RULES[form]
    except KeyError:
        raise UserError(f"unknown form of messages {form!r}; known: {', '.join(_RULES)}") from None
    rules(messages, waiting)


def _chat(messages: Sequence[Message], waiting: bool) -> None:
    open_calls: dict[str, None] = {}
    users = 0
    for at, message in enumerate(messages):
        role = message["role"]
        _require(role in ("system", "developer", "user", "assistant", "tool"), f"messages[{at}] has the role {role!r}")
        _require(at == 0 or role not in ("system", "developer"), f"messages[{at}] is a second or late system message")
        if role == "tool":
            _answered(message.get("tool_call_id"), open_calls, at)
            _require(message.get("content") is not None, f"messages[{at}] has no content")
            continue
        _require(not open_calls, f"messages[{at}] comes before the results of {', '.join(open_calls)}")
        if role == "assistant":
            calls = message.get("tool_calls") or []
            open_calls = {call["id"]: None for call in calls}
            _require(len(open_calls) == len(calls), f"messages[{at}] has two calls with one id")
            _require(bool(calls or message.get("content")), f"messages[{at}] has neither content nor calls")
        users += role == "user"
        _require(role == "assistant" or bool(message.get("content")), f"messages[{at}] has no content")
    _require(users > 0, "no message is the user's")
    _require(waiting or not open_calls, f"the end lacks the results of {', '.join(open_calls)}")


def _responses(items: Sequence[Message], waiting: bool) -> None:
    open_calls: dict[str, None] = {}
    users = 0
    reasoning = False
    for at, item in enumerate(items):
        kind, role = item.get("type", "message"), item.get("role")
        _require(kind != "item_reference", f"messages[{at}] refers to what a server keeps")
        if kind.endswith("_output") and "call_id" in item:
            _answered(item["call_id"], open_calls, at)
            _require(not reasoning, f"messages[{at}] comes between reasoning and what it led to")
            continue
        if kind == "message" and role != "assistant":
            _require(
                at == 0 or role not in ("system", "developer"), f"messages[{at}] is a second or late system message"
            )
            _require(not open_calls, f"messages[{at}] comes before the results of {', '.join(open_calls)}")
            _require(not reasoning, f"messages[{at}] comes between reasoning and what it led to")
            users += role == "user"
            continue
        if kind.endswith("_call") and "call_id" in item:
            _require(item["call_id"] not in open_calls, f"messages[{at}] has the id of another open call")
            open_calls[item["call_id"]] = None
        reasoning = kind == "reasoning"
    _require(users > 0, "no message is the user's")
    _require(not reasoning, "reasoning without what it led to at the end")
    _require(waiting or not open_calls, f"the end lacks the results of {', '.join(open_calls)}")


def _anthropic(messages: Sequence[Message], waiting: bool) -> None:
    open_calls: list[str] = []
    _require(bool(messages) and messages[0]["role"] == "user", "the first message is not the user's")
    for at, message in enumerate(messages):
        blocks = message["content"]
        blocks = [{"type": "text", "text": blocks}] if isinstance(blocks, str) else blocks
        _require(bool(blocks), f"messages[{at}] has no content")
        for block in blocks:
            _require(block.get("type") != "text" or bool(block["text"].strip()), f"messages[{at}] has an empty text")
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if message["role"] == "assistant":
            _require(not open_calls, f"messages[{at}] comes before the results of {', '.join(open_calls)}")
            _require(not results, f"messages[{at}] has results in the assistant's role")
            open_calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
            continue
        _require(message["role"] == "user", f"messages[{at}] has the role {message['role']!r}")
        _require(sorted(results) == sorted(open_calls), f"messages[{at}] answers {results}; called were {open_calls}")
        kinds = [block["type"] == "tool_result" for block in blocks]
        _require(kinds == sorted(kinds, reverse=True), f"messages[{at}] has text before a result")
        open_calls = []
    _require(waiting or not open_calls, f"the end lacks the results of {', '.join(open_calls)}")


def _answered(id: Any, open_calls: dict[str, None], at: int) -> None:
    _require(isinstance(id, str) and id in open_calls, f"messages[{at}] answers {id!r}, which nothing called")
    del open_calls[id]


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise UserError(why)


_RULES: Mapping[str, Callable[[Sequence[Message], bool], None]] = {
    "chat": _chat,
    "responses": _responses,
    "anthropic": _anthropic,
}
