"""What OpenAI's chat completions refuse of a request, in its wording: for scripted servers of that form.

refusal({"messages": [{"role": "tool", ...}]})     Reply(status=400, ...): "Invalid parameter: messages with role ..."
refusal(body, unknown=True)                        also fields of messages that the API does not have
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from server_replies import Reply

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
FIELDS: Mapping[str, frozenset[str]] = {
    "assistant": frozenset(("role", "content", "name", "tool_calls", "refusal", "audio", "function_call")),
    "tool": frozenset(("role", "content", "tool_call_id")),
}
OPTIONS = frozenset(
    (
        *("messages", "model", "stream", "stream_options", "temperature", "top_p", "n", "stop", "seed", "user"),
        *("max_tokens", "max_completion_tokens", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs"),
        *("top_logprobs", "tools", "tool_choice", "parallel_tool_calls", "response_format", "reasoning_effort"),
        *("metadata", "store", "service_tier", "modalities", "audio", "prediction", "verbosity"),
    )
)


def refusal(body: Mapping[str, Any], *, unknown: bool = False) -> Reply | None:
    """The refusal of a request; None: it is taken. `unknown`: fields of messages that the API does not have, too."""
    for param, message in _mistakes(body, unknown):
        error = {"message": message, "type": "invalid_request_error", "param": param, "code": None}
        return Reply(status=400, body=json.dumps({"error": error}, indent=2).encode())
    return None


def _mistakes(body: Mapping[str, Any], unknown: bool) -> Iterator[tuple[str | None, str]]:
    """(parameter, message)"""
    for option in body:
        if option not in OPTIONS:
            yield None, f"Unrecognized request argument supplied: {option}"
        if body[option] is None and option in ("tools", "stream_options", "messages"):
            yield option, f"Invalid type for '{option}': expected an object, but got null instead."
    if "stream_options" in body and not body.get("stream"):
        yield "stream_options", "The 'stream_options' parameter is only allowed when 'stream' is enabled."
    if not isinstance(body.get("messages", []), list):
        yield "messages", "Invalid type for 'messages': expected an array of objects, but got another type instead."
    if not body.get("messages"):
        yield (
            "messages",
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.",
        )
    if body.get("tools") == []:
        yield "tools", "[] is too short - 'tools'"
    for at, tool in enumerate(body.get("tools") or ()):
        for field in ("type", "custom" if tool.get("type") == "custom" else "function"):
            if not tool.get(field):
                yield f"tools[{at}].{field}", f"Missing required parameter: 'tools[{at}].{field}'."
    names = [tool[tool["type"]]["name"] for tool in body.get("tools") or ()]
    if len({*names}) < len(names):
        yield "tools", "Tool names must be unique."
    waiting: dict[str, None] = {}
    answered: set[str] = set()
    for at, message in enumerate(body["messages"]):
        if not isinstance(message, dict):
            yield (
                f"messages[{at}]",
                f"Invalid type for 'messages[{at}]': expected an object, but got another type instead.",
            )
        where, role, content = f"messages[{at}]", message.get("role"), message.get("content")
        if role not in ROLES:
            supported = ", ".join(f"'{known}'" for known in ROLES)
            yield f"{where}.role", f"Invalid value: '{role}'. Supported values are: {supported}."
        if role == "tool":
            id = message.get("tool_call_id")
            if id is None:
                yield f"{where}.tool_call_id", f"Missing required parameter: '{where}.tool_call_id'."
            elif id in answered:
                yield f"{where}.tool_call_id", f"Duplicate value for 'tool_call_id' of '{id}' in message[{at}]"
            elif not waiting and not answered:
                yield (
                    f"{where}.role",
                    "Invalid parameter: messages with role 'tool' must be a response to a preceding message with "
                    "'tool_calls'.",
                )
            elif id not in waiting:
                yield (
                    f"{where}.tool_call_id",
                    f"Invalid parameter: 'tool_call_id' of '{id}' not found in 'tool_calls' of previous message.",
                )
            waiting.pop(str(id), None)
            answered.add(str(id))
        else:
            yield from _unanswered(waiting, where)
            waiting, answered = {}, set()
        if content is None and not (
            role == "assistant" and message.keys() & {"tool_calls", "function_call", "refusal", "audio"}
        ):
            yield f"{where}.content", f"Invalid value for 'content': expected a string, got null. ('{where}')"
        if unknown:
            for field in message.keys() - FIELDS.get(role, frozenset(("role", "content", "name"))):
                yield f"{where}.{field}", f"Unknown parameter: '{where}.{field}'."
        if "tool_calls" not in message:
            continue
        if not message["tool_calls"]:
            yield (
                f"{where}.tool_calls",
                f"Invalid '{where}.tool_calls': empty array. Expected an array with minimum length 1, but got an empty "
                "array instead.",
            )
        for number, call in enumerate(message["tool_calls"]):
            yield from _call_mistakes(call, f"{where}.tool_calls[{number}]", unknown)
            if call["id"] in waiting:
                yield None, f"Duplicate value for 'tool_call_id' of '{call['id']}' in message[{at}]"
            waiting[call["id"]] = None
    yield from _unanswered(waiting, "messages")


def _call_mistakes(call: Mapping[str, Any], where: str, unknown: bool) -> Iterator[tuple[str | None, str]]:
    kind = "custom" if call.get("type") == "custom" else "function"
    for field in ("id", "type", kind):
        if not call.get(field):
            yield f"{where}.{field}", f"Missing required parameter: '{where}.{field}'."
    if len(call["id"]) > 40:
        yield (
            f"{where}.id",
            f"Invalid '{where}.id': string too long. Expected a string with maximum length 40, but got a string with "
            f"length {len(call['id'])} instead.",
        )
    fields = ("name", "input" if kind == "custom" else "arguments")
    for field in fields:
        if not isinstance(call[kind].get(field), str):
            yield f"{where}.{kind}.{field}", f"Missing required parameter: '{where}.{kind}.{field}'."
    if unknown:
        for field in call.keys() - {"id", "type", kind}:
            yield f"{where}.{field}", f"Unknown parameter: '{where}.{field}'."
        for field in call[kind].keys() - {*fields}:
            yield f"{where}.{kind}.{field}", f"Unknown parameter: '{where}.{kind}.{field}'."


def _unanswered(waiting: Mapping[str, None], where: str) -> Iterator[tuple[str | None, str]]:
    if waiting:
        yield (
            where,
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(waiting)}",
        )
