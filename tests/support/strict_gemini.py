"""What Gemini refuses of a request in OpenAI's form, in its wording: for scripted servers of that form.

refusal({"messages": [user, {"role": "assistant", "tool_calls": [unsigned]}, ...], "model": "gemini-3-pro"})
    Reply(status=400, ...): "Function call is missing a thought_signature in functionCall parts. ..."
refusal(body, signs=False)     a model before Gemini 3, which asks for no signatures

Sources, as of November 2026: ai.google.dev/gemini-api/docs/thought-signatures, and the errors that users of
.../v1beta/openai/chat/completions report. A signature is required of the first call of each step of the current turn,
which begins behind the last message of the user; those of parallel calls behind it are not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from server_replies import Reply

Message = Mapping[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
SIGNATURES = "https://ai.google.dev/gemini-api/docs/thought-signatures"


def refusal(body: Mapping[str, Any], *, signs: bool = True) -> Reply | None:
    """The refusal of a request; None: it is taken. `signs`: whether the model has to get its signatures back."""
    for message in _mistakes(body, signs):
        error = {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}
        return Reply(status=400, body=json.dumps([{"error": error}], indent=2).encode())
    return None


def _mistakes(body: Mapping[str, Any], signs: bool) -> Iterator[str]:
    if not body.get("model"):
        yield "model is not specified"
    for at, tool in enumerate(body.get("tools") or ()):
        if tool.get("type") == "function":
            yield from _of_a_schema(tool["function"].get("parameters"), at)
    messages = body.get("messages") or ()
    for at, message in enumerate(messages):
        if message.get("role") not in ROLES:
            yield f"Invalid JSON payload received. Invalid value at 'messages[{at}].role': {message.get('role')}"
    turns = [message for message in messages if message["role"] not in ("system", "developer")]
    if not turns:
        yield "GenerateContentRequest.contents: contents is not specified"
    for at, message in enumerate(turns):
        if not _has_parts(message):
            yield f"Unable to submit request because it must have at least one part. contents[{at}].parts: is empty"
    yield from _of_turns(turns)
    if signs:
        yield from _of_signatures(turns)


def _of_a_schema(schema: Any, at: int) -> Iterator[str]:
    """No parameters at all are none; an object without properties is refused, at any depth."""
    where = f"GenerateContentRequest.tools[0].function_declarations[{at}].parameters"
    for path, part in _objects(schema, where):
        if part.get("type") == "object" and not part.get("properties") and not part.get("additionalProperties"):
            yield f"* {path}.properties: should be non-empty for OBJECT type"


def _objects(schema: Any, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(schema, Mapping):
        return
    yield where, schema
    for name, part in (schema.get("properties") or {}).items():
        yield from _objects(part, f"{where}.properties[{name}]")
    yield from _objects(schema.get("items"), f"{where}.items")


def _has_parts(message: Message) -> bool:
    return bool(message.get("content") or message.get("tool_calls") or message["role"] in ("tool", "function"))


def _of_turns(turns: Sequence[Message]) -> Iterator[str]:
    """Calls come behind the user or results; as many results come behind the calls."""
    before = None
    for at, message in enumerate(turns):
        calls, role = message.get("tool_calls") or (), message["role"]
        if calls and before not in ("user", "tool"):
            yield (
                "Please ensure that function call turn comes immediately after a user turn or after a function "
                "response turn."
            )
        if role == "tool" and not (before == "tool" or (before == "assistant" and turns[at - 1].get("tool_calls"))):
            yield "Please ensure that function response turn comes immediately after a function call turn."
        answers = []
        for later in turns[at + 1 :] if calls else ():
            if later["role"] != "tool":
                break
            answers.append(later.get("tool_call_id"))
        if sorted(answers, key=str) != sorted((call["id"] for call in calls), key=str):
            yield (
                "Please ensure that the number of function response parts is equal to the number of function call "
                "parts of the function call turn."
            )
        before = role


def _of_signatures(turns: Sequence[Message]) -> Iterator[str]:
    since = max((at for at, message in enumerate(turns) if message["role"] == "user"), default=0)
    for at, message in enumerate(turns[since:], since):
        for call in (message.get("tool_calls") or ())[:1]:
            if not ((call.get("extra_content") or {}).get("google") or {}).get("thought_signature"):
                name = call["function"]["name"]
                yield (
                    "Function call is missing a thought_signature in functionCall parts. This is required for tools to "
                    "work correctly, and missing thought_signature may lead to degraded model performance. Additional "
                    f"data, function call `default_api:{name}` , position {at + 1}. Please refer to {SIGNATURES} for "
                    "more details."
                )
