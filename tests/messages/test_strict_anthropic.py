"""What the strict server of Anthropic's messages refuses, and that it takes the same request once that is mended."""

from __future__ import annotations

import json
from typing import Any

import pytest
from strict_anthropic import refusal

USER = {"role": "user", "content": "Find it."}
SYSTEM = {"role": "system", "content": "Be brief."}
SAID = {"role": "assistant", "content": "Oslo"}
USE = {"type": "tool_use", "id": "a", "name": "search", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "found"}
TEXT = {"type": "text", "text": "Go on."}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
SERVER_USE = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
SERVER_RESULT = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
MCP_USE = {"type": "mcp_tool_use", "id": "s", "name": "n", "server_name": "m", "input": {}}
MCP_RESULT = {"type": "mcp_tool_result", "tool_use_id": "s", "content": "x"}
MARK = {"cache_control": {"type": "ephemeral"}}
TOOL = {"name": "search", "input_schema": {"type": "object"}}
ENABLED = {"type": "enabled", "budget_tokens": 1024}


def body(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 2000, "messages": [*messages], **more}


def own(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [*blocks]}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": [*blocks]}


def told(given: dict[str, Any], **more: Any) -> str:
    """The wording of the refusal; nothing where the request is taken."""
    found = refusal(given, **more)
    return "" if found is None or found.body is None else json.loads(found.body)["error"]["message"]


MISSING = "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: a."
UNEXPECTED = "messages.2.content.0: unexpected `tool_use_id` found in `tool_result` blocks: b."
GOOD = body(USER, own(USE), user(RESULT))
ORDER = {
    "a first message of the model's": (
        'messages: first message must use the "user" role',
        body(SAID, USER),
        body(USER, SAID),
    ),
    "no messages": ("messages: at least one message is required", body(), body(USER)),
    "a call at the end": (MISSING, body(USER, own(USE)), GOOD),
    "a call without its result": (MISSING, body(USER, own(USE), user(TEXT)), GOOD),
    "a result a message later": (MISSING, body(USER, own(USE), user(TEXT), SAID, user(RESULT)), GOOD),
    "a text before the result": (MISSING, body(USER, own(USE), user(TEXT, RESULT)), body(*GOOD["messages"], USER)),
    "one result of two": (
        MISSING.replace(": a.", ": b."),
        body(USER, own(USE, {**USE, "id": "b"}), user(RESULT)),
        body(USER, own(USE, {**USE, "id": "b"}), user({**RESULT, "tool_use_id": "b"}), user(RESULT)),
    ),
    "a result that nothing asked for": (
        UNEXPECTED,
        body(USER, own(USE), user({**RESULT, "tool_use_id": "b"}, RESULT)),
        GOOD,
    ),
    "a result at the beginning": (
        "messages.0.content.0: unexpected `tool_use_id` found in `tool_result` blocks: a.",
        body(user(RESULT, TEXT)),
        GOOD,
    ),
    "two results of a call": (
        "messages.2.content: each tool_use must have a single result.",
        body(USER, own(USE), user(RESULT, RESULT)),
        GOOD,
    ),
    "two calls of one id": (
        "messages: `tool_use` ids must be unique",
        body(USER, own(USE), user(RESULT), own(USE), user(RESULT)),
        body(USER, own(USE), user(RESULT), own({**USE, "id": "b"}), user({**RESULT, "tool_use_id": "b"})),
    ),
    "a result of the server's without its call": (
        "messages.1.content.0: unexpected `tool_use_id` found in `web_search_tool_result` blocks: s. Each "
        "`web_search_tool_result` block must have a corresponding `server_tool_use` block before it.",
        body(USER, own(SERVER_RESULT)),
        body(USER, own(SERVER_USE, SERVER_RESULT)),
    ),
    "a result of an MCP server's behind another call": (
        "messages.1.content.1: unexpected `tool_use_id` found in `mcp_tool_result` blocks: s.",
        body(USER, own(SERVER_USE, MCP_RESULT)),
        body(USER, own(MCP_USE, MCP_RESULT)),
    ),
    "a call of the server's that ended without a result": (
        "messages.1: `server_tool_use` ids were found without a corresponding result block: s.",
        body(USER, own(SERVER_USE), USER),
        body(USER, own(SERVER_USE)),
    ),
    "a system message behind the model": (
        "messages.2: role 'system' must follow a 'user' message",
        body(USER, SAID, SYSTEM, SAID),
        body(USER, SAID, USER, SYSTEM, SAID),
    ),
    "a system message before the user": (
        "messages.1: role 'system' must precede an 'assistant' message or end the array",
        body(USER, SYSTEM, USER),
        body(USER, USER, SYSTEM),
    ),
    "white space at the end": (
        "messages: final assistant content cannot end with trailing whitespace",
        body(USER, {"role": "assistant", "content": "Oslo "}),
        body(USER, {"role": "assistant", "content": "Oslo "}, USER),
    ),
}
THINKING = {
    "a loop that lost its first thoughts": (
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`. When",
        body(USER, own(USE), user(RESULT), thinking=ENABLED),
        body(USER, own(THOUGHT, USE), user(RESULT), thinking=ENABLED),
    ),
    "a text before the thought": (
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `text`.",
        body(USER, own(TEXT, THOUGHT, USE), user(RESULT), thinking=ENABLED),
        body(USER, own(THOUGHT, TEXT, USE), user(RESULT), thinking={"type": "adaptive"}),
    ),
    "thoughts without room for an answer": (
        "`max_tokens` must be greater than `thinking.budget_tokens`.",
        body(USER, thinking={"type": "enabled", "budget_tokens": 2000}),
        body(USER, thinking={"type": "enabled", "budget_tokens": 1999}),
    ),
    "few thoughts": (
        "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
        body(USER, thinking={"type": "enabled", "budget_tokens": 1000}),
        body(USER, thinking=ENABLED),
    ),
    "thoughts and a temperature": (
        "`temperature` may only be set to 1 when thinking is enabled.",
        body(USER, thinking=ENABLED, temperature=0.3),
        body(USER, thinking={"type": "disabled"}, temperature=0.3),
    ),
    "thoughts and a forced call": (
        "Thinking may not be enabled when tool_choice forces tool use.",
        body(USER, thinking=ENABLED, tools=[TOOL], tool_choice={"type": "any"}),
        body(USER, thinking=ENABLED, tools=[TOOL], tool_choice={"type": "auto"}),
    ),
    "an unsigned thought": (
        "messages.1.content.0.thinking.signature: Field required",
        body(USER, own({"type": "thinking", "thinking": "hm"}, TEXT), USER),
        body(USER, own(THOUGHT, TEXT), USER),
    ),
}
SHAPES = {
    "no limit": ("max_tokens: Field required", {"model": "m", "messages": [USER]}, body(USER)),
    "a limit of nothing": (
        "max_tokens: Input should be greater than or equal to 1",
        body(USER, max_tokens=0),
        body(USER, max_tokens=1),
    ),
    "no model": ("model: Field required", {"max_tokens": 9, "messages": [USER]}, body(USER)),
    "an unknown option": (
        "stop: Extra inputs are not permitted",
        body(USER, stop=["x"]),
        body(USER, stop_sequences=[]),
    ),
    "an unknown field of a message": (
        "messages.1.id: Extra inputs are not permitted",
        body(USER, {**SAID, "id": "msg_1"}),
        body(USER, SAID),
    ),
    "an unknown field of a block": (
        "messages.1.content.0.text.id: Extra inputs are not permitted",
        body(USER, own({**TEXT, "id": "x"})),
        body(USER, own({**TEXT, "citations": None})),
    ),
    "another role": (
        "messages.0.role: Input should be 'user' or 'assistant'",
        body({"role": "tool", "content": "x"}),
        body(USER),
    ),
    "no content": ("messages.0.content: Field required", body({"role": "user"}), body(USER)),
    "content that is null": (
        "messages.1.content: Input should be a valid list",
        body(USER, {"role": "assistant", "content": None}),
        body(USER, SAID),
    ),
    "empty content": (
        "messages.1: assistant messages must have non-empty content",
        body(USER, {"role": "assistant", "content": []}),
        body(USER, SAID),
    ),
    "an empty text": (
        "messages: text content blocks must be non-empty",
        body(user({"type": "text", "text": ""})),
        body(user(TEXT)),
    ),
    "a text of white space": (
        "messages: text content blocks must contain non-whitespace text",
        body({"role": "user", "content": " \n"}),
        body({"role": "user", "content": " \nx"}),
    ),
    "an empty text in a result": (
        "messages: text content blocks must be non-empty",
        body(USER, own(USE), user({**RESULT, "content": [{"type": "text", "text": ""}]})),
        body(USER, own(USE), user({**RESULT, "content": ""})),
    ),
    "a part of another form": (
        "messages.0.content.0: Input tag 'image_url' found using 'type' does not match any of the expected tags",
        body(user({"type": "image_url", "image_url": {"url": "x"}})),
        body(user({"type": "image", "source": {"type": "url", "url": "x"}})),
    ),
    "a call of the user's": (
        "messages.0.content.0: `tool_use` blocks can only be in `assistant` messages",
        body(user(USE)),
        body(user(TEXT)),
    ),
    "a result of the model's": (
        "messages.1.content.0: `tool_result` blocks can only be in `user` messages",
        body(USER, own(RESULT)),
        GOOD,
    ),
    "arguments that are a text": (
        "messages.1.content.0.tool_use.input: Input should be a valid dictionary",
        body(USER, own({**USE, "input": "{}"}), user(RESULT)),
        GOOD,
    ),
    "five marks for the cache": (
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
        body(user(*[{**TEXT, **MARK}] * 3), system=[{**TEXT, **MARK}], tools=[{**TOOL, **MARK}]),
        body(user(*[{**TEXT, **MARK}] * 2), system=[{**TEXT, **MARK}], tools=[{**TOOL, **MARK}]),
    ),
    "an empty system prompt": (
        "system: text content blocks must be non-empty",
        body(USER, system=[{"type": "text", "text": ""}]),
        body(USER, system=[TEXT]),
    ),
    "a system prompt that is a message": (
        "system: Input should be a valid list",
        body(USER, system=SYSTEM),
        body(USER),
    ),
    "a tool of another form": (
        "tools.0.custom.name: Field required",
        body(USER, tools=[{"type": "custom", "function": {"name": "search"}}]),
        body(USER, tools=[TOOL]),
    ),
    "a tool without a schema": (
        "tools.0.custom.input_schema: Field required",
        body(USER, tools=[{"name": "search"}]),
        body(USER, tools=[{"type": "web_search_20250305", "name": "web_search"}]),
    ),
    "a schema without a type": (
        "tools.0.custom.input_schema.type: Field required",
        body(USER, tools=[{"name": "search", "input_schema": {}}]),
        body(USER, tools=[TOOL]),
    ),
    "an unknown field of a tool": (
        "tools.0.custom.parameters: Extra inputs are not permitted",
        body(USER, tools=[{**TOOL, "parameters": {}}]),
        body(USER, tools=[{**TOOL, "description": "x"}]),
    ),
    "two tools of one name": ("tools: Tool names must be unique.", body(USER, tools=[TOOL, TOOL]), body(USER)),
}
ALL = {**ORDER, **THINKING, **SHAPES}


@pytest.mark.parametrize(("wording", "refused", "mended"), ALL.values(), ids=ALL)
def test_a_request_is_refused_in_the_apis_wording_and_taken_when_mended(wording: str, refused: Any, mended: Any):
    assert told(refused).startswith(wording)
    assert told(mended) == ""


def test_consecutive_messages_of_one_role_are_taken_as_one():
    assert told(body(USER, USER, own(TEXT), own(USE), user(RESULT), USER)) == ""


def test_thoughts_of_the_last_turn_come_back_as_they_were_and_older_ones_may_go():
    said = [USER, own(THOUGHT, USE), user(RESULT)]
    other = {**THOUGHT, "thinking": "other"}
    assert told(body(*said, thinking=ENABLED), said=said) == ""
    assert told(body(USER, own(other, USE), user(RESULT)), said=said).startswith(
        "messages.1.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
        "modified."
    )
    assert told(body(USER, own(other, USE), user(RESULT), SAID, USER), said=said) == ""


def test_models_before_opus_4_8_take_no_system_message():
    given = body(USER, SYSTEM, SAID, USER)
    assert told(given) == ""
    assert told(given, late_system=False).startswith('messages: Unexpected role "system". The Messages API accepts a')
