"""Random conversations in the messages of each framework, cut off at every message: folds are valid and idempotent."""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from transcripts import PIXEL, conversation, prefixes

from mem1.extras.agents.conversation import Conversation
from mem1.messages import Bounds, check, fold
from mem1.messages.transcript import PLACE

POLICIES = ("full", "archive(1)", "window(2)", "fold(2)", "notes")
BOUNDS = (Bounds(), Bounds(result=60, state=100, images=1))
Read = Callable[[Sequence[Any]], Sequence[dict[str, Any]]]
"""A framework's messages -> chat messages."""


def langchain() -> tuple[Any, Any, Any]:
    pytest.importorskip("langchain.agents.middleware")
    from langchain_core.messages import convert_to_messages

    from mem1.extras.agents.langchain import KIND

    def folded(own: list[Any], policy: str, bounds: Bounds) -> list[Any]:
        found = Conversation.of(KIND, own)
        return found.written(fold(found.read, policy, bounds=bounds))

    return convert_to_messages, folded, lambda own: Conversation.of(KIND, own).read


def inspect() -> tuple[Any, Any, Any]:
    pytest.importorskip("inspect_ai.agent")
    from inspect_ai.model import (
        ChatMessageAssistant,
        ChatMessageSystem,
        ChatMessageTool,
        ChatMessageUser,
        ContentImage,
        ContentText,
    )
    from inspect_ai.tool import ToolCall

    from mem1.extras.agents.inspect import KIND

    def content(value: Any) -> Any:
        if not isinstance(value, list):
            return value or ""
        return [ContentText(text=part["text"]) if "text" in part else ContentImage(image=PIXEL) for part in value]

    def made(messages: list[Any]) -> list[Any]:
        own: list[Any] = []
        for message in messages:
            given = content(message["content"])
            if message["role"] == "assistant":
                calls = [
                    ToolCall(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
                    for call in message.get("tool_calls") or ()
                ]
                own.append(ChatMessageAssistant(content=given, tool_calls=calls or None))
            elif message["role"] == "tool":
                own.append(ChatMessageTool(content=given, tool_call_id=message["tool_call_id"]))
            else:
                kind = ChatMessageSystem if message["role"] == "system" else ChatMessageUser
                own.append(kind(content=given))
        return own

    def folded(own: list[Any], policy: str, bounds: Bounds) -> list[Any]:
        found = Conversation.of(KIND, own)
        return found.written(fold(found.read, policy, bounds=bounds))

    return made, folded, lambda own: Conversation.of(KIND, own).read


def pydantic_ai() -> tuple[Any, Any, Any]:
    pytest.importorskip("pydantic_ai.capabilities")
    from pydantic_ai import BinaryContent
    from pydantic_ai.messages import (
        ModelRequest,
        ModelResponse,
        SystemPromptPart,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )

    from mem1.extras.agents import pydantic_ai as adapter

    def content(value: Any) -> Any:
        image = BinaryContent(b"x", media_type="image/png")
        return [part.get("text", image) for part in value] if isinstance(value, list) else value

    def part(message: dict[str, Any]) -> Any:
        if message["role"] == "tool":
            return ToolReturnPart("search", content(message["content"]), message["tool_call_id"])
        return (SystemPromptPart if message["role"] == "system" else UserPromptPart)(content(message["content"]))

    def made(messages: list[Any]) -> list[Any]:
        own: list[Any] = []
        for message in messages:
            if message["role"] != "assistant":
                if own and isinstance(own[-1], ModelRequest):
                    own[-1].parts.append(part(message))
                else:
                    own.append(ModelRequest([part(message)]))
                continue
            text = [TextPart(message["content"])] if message["content"] else []
            calls = [
                ToolCallPart(call["function"]["name"], call["function"]["arguments"], call["id"])
                for call in message.get("tool_calls") or ()
            ]
            own.append(ModelResponse([*text, *calls]))
        return own

    def folded(own: list[Any], policy: str, bounds: Bounds) -> list[Any]:
        found = adapter._conversation(own)
        return adapter._messages(found.written(fold(found.read, policy, bounds=bounds)), own)

    return made, folded, lambda own: adapter._conversation(own).read


def plain(read: Sequence[Any]) -> list[dict[str, Any]]:
    """Without places; what is no text as its representation."""
    return json.loads(json.dumps([{k: v for k, v in each.items() if k != PLACE} for each in read], default=repr))


@pytest.mark.parametrize("framework", [langchain, inspect, pydantic_ai], ids=lambda each: each.__name__)
def test_folds_of_a_frameworks_messages_are_valid_idempotent_and_keep_its_objects(framework: Any):
    make, folded, read = framework()
    folds = changed = 0
    for seed in range(6):
        for start in prefixes(conversation(Random(seed), "chat", turns=6)):
            own = make(start)
            before = plain(read(own))
            for policy in POLICIES:
                for bounds in BOUNDS:
                    shown = folded(own, policy, bounds)
                    check(read(shown), waiting=True)
                    assert plain(read(folded(shown, policy, bounds))) == plain(read(shown)), (seed, policy)
                    same = {id(message) for message in own}
                    changed += sum(id(message) not in same for message in shown)
                    assert policy != "full" or bounds is not BOUNDS[0] or len(shown) <= len(own) + 3
                    folds += 1
            assert plain(read(own)) == before  # the log is untouched
    assert folds > 1_000 and changed > 100
