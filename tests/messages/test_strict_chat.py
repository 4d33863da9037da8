"""What the strict servers of OpenAI's chat completions, and of Gemini in that form, refuse, and that they take the same
request once that is mended."""

from __future__ import annotations

import json
from typing import Any

import pytest
import strict_chat
import strict_gemini

USER = {"role": "user", "content": "Find it."}
SYSTEM = {"role": "system", "content": "Be brief."}
SAID = {"role": "assistant", "content": "Oslo"}
CALL = {"id": "a", "type": "function", "function": {"name": "search", "arguments": "{}"}}
OTHER = {**CALL, "id": "b"}
CUSTOM = {"id": "a", "type": "custom", "custom": {"name": "exec", "input": "ls"}}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "found"}
SIGNED = {**CALL, "extra_content": {"google": {"thought_signature": "c2ln"}}}
TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}


def calling(*calls: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [*calls]}


def body(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [*messages], **more}


def told(given: dict[str, Any], **more: Any) -> str:
    found = strict_chat.refusal(given, **more)
    return "" if found is None or found.body is None else json.loads(found.body)["error"]["message"]


def told_by_gemini(given: dict[str, Any], **more: Any) -> str:
    """Its errors come in a list."""
    found = strict_gemini.refusal(given, **more)
    return "" if found is None or found.body is None else json.loads(found.body)[0]["error"]["message"]


GOOD = body(USER, calling(CALL), RESULT)
UNANSWERED = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'."
)
OPENAI = {
    "a call at the end": (UNANSWERED, body(USER, calling(CALL)), GOOD),
    "a call before the user": (UNANSWERED, body(USER, calling(CALL), USER, RESULT), GOOD),
    "one result of two": (UNANSWERED, body(USER, calling(CALL, OTHER), RESULT), GOOD),
    "a result without its call": (
        "Invalid parameter: messages with role 'tool' must be a response to a preceding message with 'tool_calls'.",
        body(USER, RESULT),
        GOOD,
    ),
    "a result of another call": (
        "Invalid parameter: 'tool_call_id' of 'b' not found in 'tool_calls' of previous message.",
        body(USER, calling(CALL), {**RESULT, "tool_call_id": "b"}),
        GOOD,
    ),
    "a second result": (
        "Duplicate value for 'tool_call_id' of 'a' in message[3]",
        body(*GOOD["messages"], RESULT),
        GOOD,
    ),
    "a result of nothing": (
        "Missing required parameter: 'messages[2].tool_call_id'.",
        body(USER, calling(CALL), {"role": "tool", "content": "x"}),
        GOOD,
    ),
    "two calls of one id": ("Duplicate value for 'tool_call_id' of 'a'", body(USER, calling(CALL, CALL), RESULT), GOOD),
    "no calls": (
        "Invalid 'messages[1].tool_calls': empty array.",
        body(USER, {**SAID, "tool_calls": []}),
        body(USER, SAID),
    ),
    "a call without arguments": (
        "Missing required parameter: 'messages[1].tool_calls[0].function.arguments'.",
        body(USER, calling({**CALL, "function": {"name": "search"}}), RESULT),
        GOOD,
    ),
    "a custom call without its input": (
        "Missing required parameter: 'messages[1].tool_calls[0].custom.input'.",
        body(USER, calling({**CUSTOM, "custom": {"name": "exec"}}), RESULT),
        body(USER, calling(CUSTOM), RESULT),
    ),
    "a call without a type": (
        "Missing required parameter: 'messages[1].tool_calls[0].type'.",
        body(USER, calling({"id": "a", "function": CALL["function"]}), RESULT),
        GOOD,
    ),
    "a long id": (
        "Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40",
        body(USER, calling({**CALL, "id": "a" * 41}), {**RESULT, "tool_call_id": "a" * 41}),
        body(USER, calling({**CALL, "id": "a" * 40}), {**RESULT, "tool_call_id": "a" * 40}),
    ),
    "an unknown field": (
        "Unknown parameter: 'messages[1].reasoning_content'.",
        body(USER, {**SAID, "reasoning_content": "hm"}),
        body(USER, SAID),
    ),
    "an unknown field of a call": (
        "Unknown parameter: 'messages[1].tool_calls[0].extra_content'.",
        body(USER, calling(SIGNED), RESULT),
        GOOD,
    ),
    "no content": (
        "Invalid value for 'content': expected a string, got null.",
        body(USER, {"role": "assistant", "content": None}),
        body(USER, {"role": "assistant", "content": None, "refusal": "No."}),
    ),
    "a role that does not exist": ("Invalid value: 'critic'.", body({"role": "critic", "content": "x"}), body(USER)),
    "no messages": ("Invalid 'messages': empty array.", body(), body(USER)),
    "no tools": ("[] is too short - 'tools'", body(USER, tools=[]), body(USER, tools=[TOOL])),
    "two tools of one name": ("Tool names must be unique.", body(USER, tools=[TOOL, TOOL]), body(USER, tools=[TOOL])),
    "an unknown option": ("Unrecognized request argument supplied: top_k", body(USER, top_k=5), body(USER, top_p=0.5)),
    "options of a stream without one": (
        "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
        body(USER, stream_options={"include_usage": True}),
        body(USER, stream_options={"include_usage": True}, stream=True),
    ),
}


@pytest.mark.parametrize(("wording", "refused", "mended"), OPENAI.values(), ids=OPENAI)
def test_openai_refuses_a_request_in_its_wording_and_takes_it_when_mended(wording: str, refused: Any, mended: Any):
    assert told(refused, unknown=True).startswith(wording)
    assert told(mended, unknown=True) == ""


SIGNED_GOOD = body(USER, calling(SIGNED, OTHER), RESULT, {**RESULT, "tool_call_id": "b"})
UNSIGNED = "Function call is missing a thought_signature in functionCall parts."
PARTS = "Please ensure that the number of function response parts is equal to the number of function call parts of the"
SCHEMA = {"type": "object", "properties": {"q": {"type": "object", "properties": {}}}}
GEMINI = {
    "a call without its signature": (UNSIGNED, GOOD, body(USER, calling(SIGNED), RESULT)),
    "a signature on the second call only": (
        UNSIGNED,
        body(USER, calling(CALL, {**SIGNED, "id": "b"}), RESULT, {**RESULT, "tool_call_id": "b"}),
        SIGNED_GOOD,
    ),
    "a second step without its signature": (
        UNSIGNED,
        body(USER, calling(SIGNED), RESULT, calling(OTHER), {**RESULT, "tool_call_id": "b"}),
        body(*GOOD["messages"], SAID, USER, calling({**SIGNED, "id": "b"}), {**RESULT, "tool_call_id": "b"}),
    ),
    "a call behind the model's own text": (
        "Please ensure that function call turn comes immediately after a user turn or after a function response turn.",
        body(USER, SAID, calling(SIGNED), RESULT),
        body(USER, SAID, USER, calling(SIGNED), RESULT),
    ),
    "a call at the beginning": (
        "Please ensure that function call turn comes immediately after a user turn",
        body(SYSTEM, calling(SIGNED), RESULT, USER),
        body(SYSTEM, USER, calling(SIGNED), RESULT, USER),
    ),
    "a result without its call": (
        "Please ensure that function response turn comes immediately after a function call turn.",
        body(USER, RESULT),
        body(USER, calling(SIGNED), RESULT),
    ),
    "one result of two": (PARTS, body(USER, calling(SIGNED, OTHER), RESULT), SIGNED_GOOD),
    "a result of another call": (
        PARTS,
        body(USER, calling(SIGNED), {**RESULT, "tool_call_id": "b"}),
        body(USER, calling(SIGNED), RESULT),
    ),
    "a call at the end": (PARTS, body(USER, calling(SIGNED)), body(USER, calling(SIGNED), RESULT)),
    "a message of nothing": (
        "Unable to submit request because it must have at least one part. contents[1].parts: is empty",
        body(USER, {"role": "assistant", "content": ""}, USER),
        body(USER, SAID, USER),
    ),
    "a schema of nothing": (
        "* GenerateContentRequest.tools[0].function_declarations[0].parameters.properties: should be non-empty for "
        "OBJECT type",
        body(USER, tools=[TOOL]),
        body(USER, tools=[{"type": "function", "function": {"name": "search"}}]),
    ),
    "a schema of nothing within": (
        "* GenerateContentRequest.tools[0].function_declarations[0].parameters.properties[q].properties: should be",
        body(USER, tools=[{"type": "function", "function": {"name": "search", "parameters": SCHEMA}}]),
        body(USER),
    ),
    "a role that does not exist": (
        "Invalid JSON payload received. Invalid value at 'messages[0].role': critic",
        body({"role": "critic", "content": "x"}),
        body(USER),
    ),
    "no messages": ("GenerateContentRequest.contents: contents is not specified", body(SYSTEM), body(SYSTEM, USER)),
    "no model": ("model is not specified", {"messages": [USER]}, body(USER)),
}


@pytest.mark.parametrize(("wording", "refused", "mended"), GEMINI.values(), ids=GEMINI)
def test_gemini_refuses_a_request_in_its_wording_and_takes_it_when_mended(wording: str, refused: Any, mended: Any):
    assert told_by_gemini(refused).startswith(wording)
    assert told_by_gemini(mended) == ""


def test_models_before_gemini_3_ask_for_no_signatures():
    assert told_by_gemini(GOOD, signs=False) == ""
