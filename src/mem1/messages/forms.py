"""The forms of messages that ship: OpenAI's chat completions and Responses, and Anthropic's messages.

    chat        {"role": "assistant", "tool_calls": [...]}, then a {"role": "tool"} message for each call
    responses   items: reasoning, message and function_call, then a function_call_output for each call
    anthropic   {"role": "assistant", "content": [tool_use, ...]}, then the user's tool_result blocks

The three APIs as their documentation had them in November 2026. Responses are taken whole ("stateless"): what a server
keeps under `previous_response_id` cannot be rewritten from outside.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mem1.errors import UserError
from mem1.messages.reminders import as_reminder
from mem1.messages.transcript import (
    MAPPING,
    NO_RESULT,
    Call,
    Exchange,
    Form,
    Message,
    Part,
    Transcript,
    User,
    collect,
    distinct,
    is_state,
    texts,
)

_SYSTEM = ("system", "developer")
_UNANSWERED_CHAT = {"role": "tool", "tool_call_id": None, "content": NO_RESULT}
_UNANSWERED_RESPONSES = {"type": "function_call_output", "call_id": None, "output": NO_RESULT}
_UNANSWERED_ANTHROPIC = {"type": "tool_result", "tool_use_id": None, "content": NO_RESULT, "is_error": True}


def _read_chat(messages: Sequence[Message]) -> Transcript:
    system: list[Message] = []
    parts: list[Part] = []
    at = 0
    while at < len(messages):
        message = _message(messages, at)
        role = message.get("role")
        at += 1
        if role in _SYSTEM:
            _add_system(message, system, parts)
        elif role == "user":
            parts.append(User(message=message))
        elif role == "assistant":
            calls = tuple([_chat_call(call, at - 1) for call in message.get("tool_calls") or ()])
            distinct(calls, at - 1)
            ids = {call.id for call in calls}
            results: dict[str, Message] = {}
            while at < len(messages) and _message(messages, at).get("role") == "tool":
                _add(results, ids, messages[at].get("tool_call_id"), messages[at], at)
                at += 1
            found = collect(calls, results, last=at == len(messages), unanswered=_UNANSWERED_CHAT)
            parts.append(Exchange((message,), calls, found))
        elif role == "tool":
            raise UserError(
                f"messages[{at - 1}]: a result without the assistant message that called it; send both or neither"
            )
        else:
            raise UserError(
                f"messages[{at - 1}]: unknown role {role!r}; known: system, developer, user, assistant, tool"
            )
    return Transcript(system=tuple(system), parts=tuple(parts))


def _chat_call(call: Any, at: int) -> Call:
    function = call.get("function") or call.get("custom") if isinstance(call, MAPPING) else None
    if not isinstance(function, MAPPING) or not isinstance(call.get("id"), str):
        raise UserError(f"messages[{at}]: a tool call needs an id and a function; this one is {call!r:.80}")
    return Call(call["id"], str(function.get("name")), _json(function.get("arguments", function.get("input"))))


def _write_chat(transcript: Transcript) -> list[Message]:
    written: list[Message] = list(_one_system(transcript.system))
    for part in transcript.parts:
        if isinstance(part, User):
            written.append(part.message)
        else:
            written += [*part.said, *(result.message for result in part.results)]
    return written


def _one_system(system: Sequence[Message]) -> Sequence[Message]:
    """One message with all texts: chat templates refuse a second one."""
    if len(system) < 2:
        return system
    return [{**system[0], "content": "\n\n".join(texts(message.get("content")) for message in system)}]


def _add_system(message: Message, system: list[Message], parts: list[Part]) -> None:
    """A system message behind an exchange is a text of the user's side: chat templates refuse a late one, and in front
    it would change what every prompt begins with."""
    if not any(isinstance(part, Exchange) for part in parts):
        system.append(message)
    elif (reminder := as_reminder(message)) is not None:
        parts.append(User(message=reminder))


def _read_responses(items: Sequence[Message]) -> Transcript:
    system: list[Message] = []
    parts: list[Part] = []
    said: list[Message] = []
    calls: list[Call] = []
    ids: set[str] = set()
    """Those of the calls."""
    results: dict[str, Message] = {}

    def close(last: bool = False) -> None:
        if said:
            found = collect(calls, results, last=last, unanswered=_UNANSWERED_RESPONSES)
            parts.append(Exchange(said=tuple(said), calls=tuple(calls), results=found))
        for collected in (said, calls, ids, results):
            collected.clear()

    for at in range(len(items)):
        item = _message(items, at)
        kind, role = item.get("type", "message"), item.get("role")
        if kind == "item_reference":
            raise UserError(
                f"messages[{at}]: a reference to an item that the server keeps; send the items themselves (store=False)"
            )
        if kind == "message" and role in (*_SYSTEM, "user"):
            close()
            if role == "user":
                parts.append(User(message=item))
            else:
                _add_system(item, system, parts)
        elif kind.endswith("_output") and "call_id" in item:
            _add(results, ids, item["call_id"], item, at)
        elif kind == "message" and role != "assistant":
            raise UserError(f"messages[{at}]: unknown role {role!r}; known: system, developer, user, assistant")
        else:
            if results and len(results) == len(calls):
                close()
            said.append(item)
            if kind.endswith("_call") and isinstance(item.get("call_id"), str):
                arguments = item.get("arguments", item.get("input", item.get("action")))
                calls.append(Call(id=item["call_id"], name=str(item.get("name", kind)), arguments=_json(arguments)))
                if item["call_id"] in ids:
                    distinct(calls, at)
                ids.add(item["call_id"])
            if parts and is_state(parts[-1], Exchange(tuple(said))):  # the next turn begins behind it
                close()
    close(last=True)
    return Transcript(system=tuple(system), parts=tuple(parts))


def _read_anthropic(messages: Sequence[Message]) -> Transcript:
    parts: list[Part] = []
    at = 0
    while at < len(messages):
        message = _message(messages, at)
        at += 1
        if message.get("role") == "user":
            results, others = _split(message)
            if results:
                raise UserError(
                    f"messages[{at - 1}]: a tool_result without the tool_use before it; send both or neither"
                )
            parts.append(User(message=message))
            continue
        if message.get("role") != "assistant":
            raise UserError(
                f"messages[{at - 1}]: unknown role {message.get('role')!r}; known: user, assistant (no system)"
            )
        calls = [_anthropic_call(block, at - 1) for block in _blocks(message) if block.get("type") == "tool_use"]
        distinct(calls, at - 1)
        found: dict[str, Message] = {}
        envelope, others = None, []
        if calls and at < len(messages) and _message(messages, at).get("role") == "user":
            envelope = messages[at]
            results, others = _split(envelope)
            ids = {call.id for call in calls}
            for block in results:
                _add(found, ids, block.get("tool_use_id"), block, at)
            envelope, at = (envelope, at + 1) if results else (None, at)
        results_of_calls = collect(
            calls, found, last=at == len(messages) and not others, unanswered=_UNANSWERED_ANTHROPIC
        )
        parts.append(Exchange(said=(message,), calls=tuple(calls), results=results_of_calls, envelope=envelope))
        if envelope is not None and others:
            parts.append(User(message={**envelope, "content": others}, after_results=True))
    return Transcript(system=(), parts=tuple(parts))


def _blocks(message: Message) -> Sequence[Mapping[str, Any]]:
    content = message.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or ()


def _split(message: Message) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """(results, other blocks) of a message of the user."""
    results = [block for block in _blocks(message) if block.get("type") == "tool_result"]
    return results, [block for block in _blocks(message) if block.get("type") != "tool_result"]


def _anthropic_call(block: Mapping[str, Any], at: int) -> Call:
    if not isinstance(block.get("id"), str):
        raise UserError(f"messages[{at}]: a tool_use needs an id; this one is {block!r:.80}")
    return Call(id=block["id"], name=str(block.get("name")), arguments=_json(block.get("input")))


def _write_anthropic(transcript: Transcript) -> list[Message]:
    written: list[Message] = []
    own_results: Message | None = None
    """The message that the text of the user after it can join."""
    for part in transcript.parts:
        if isinstance(part, Exchange):
            written += part.said
            own_results = None
            if part.results:
                own_results = {**(part.envelope or {"role": "user"}), "content": [r.message for r in part.results]}
                written.append(own_results)
        elif part.after_results and own_results is not None:
            written[-1] = {**own_results, "content": [*own_results["content"], *_blocks(part.message)]}
            own_results = None
        else:
            written.append(part.message)
            own_results = None
    return written


def _message(messages: Sequence[Message], at: int) -> Message:
    message = messages[at]
    if not isinstance(message, MAPPING):
        raise UserError(f"messages[{at}] is a {type(message).__name__}; a message is a dictionary with a role")
    return message


def _add(results: dict[str, Message], ids: set[str], id: Any, message: Message, at: int) -> None:
    if not isinstance(id, str) or id not in ids:
        known = ", ".join(map(repr, sorted(ids))) or "nothing"
        raise UserError(
            f"messages[{at}]: a result for {id!r}, but the turn before it called {known}; send both or neither"
        )
    if id in results:
        raise UserError(f"messages[{at}]: a second result for {id!r}; send the last one only")
    results[id] = message


def _json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)


CHAT = Form(name="chat", text_type="text", result_key="content", read=_read_chat, write=_write_chat)
"""OpenAI's chat completions, which most servers and frameworks speak."""
RESPONSES = Form(name="responses", text_type="input_text", result_key="output", read=_read_responses, write=_write_chat)
"""Input items of OpenAI's Responses API."""
ANTHROPIC = Form(name="anthropic", text_type="text", result_key="content", read=_read_anthropic, write=_write_anthropic)
"""Anthropic's messages; the system prompt is no message there."""
FORMS: Mapping[str, Form] = {form.name: form for form in (CHAT, RESPONSES, ANTHROPIC)}


def form_of(name: str) -> Form:
    """The form of this name. Raises UserError for an unknown one."""
    if name not in FORMS:
        raise UserError(f"unknown form of messages {name!r}; known: {', '.join(FORMS)}")
    return FORMS[name]
