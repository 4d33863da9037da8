"""The forms of messages that ship: OpenAI's chat completions and Responses, and Anthropic's messages.

    chat        {"role": "assistant", "tool_calls": [...]}, then a {"role": "tool"} message for each call
    responses   items: reasoning, message and calls of many kinds, then an output for each call (mem1.messages.items)
    anthropic   {"role": "assistant", "content": [tool_use, ...]}, then the user's tool_result blocks (.blocks)

The three APIs as their documentation had them in November 2026. Responses are taken whole ("stateless"): what a server
keeps under `previous_response_id` cannot be rewritten from outside.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mem1.errors import UserError
from mem1.messages import blocks, items
from mem1.messages.drafts import Draft, Drafts, Step
from mem1.messages.transcript import (
    MAPPING,
    NO_RESULT,
    Call,
    Content,
    Form,
    Message,
    Transcript,
    User,
    message_at,
    texts,
)

_SYSTEM = ("system", "developer")
_SAYS = ("content", "refusal", "audio")
"""Keys of an assistant's message of which one has to be there where it calls nothing."""


def _read_chat(messages: Sequence[Message]) -> Transcript:
    drafts = Drafts()
    for at in range(len(messages)):
        message = message_at(messages, at)
        role = message.get("role")
        if role == "assistant":
            calls = [_chat_call(call, at) for call in message.get("tool_calls") or ()]
            if not calls and isinstance(function := message.get("function_call"), MAPPING):
                calls = [Call(str(function.get("name")), str(function.get("name")), _json(function.get("arguments")))]
            # an empty reply, as a cancelled one leaves it, says nothing, and providers refuse it
            if calls or any(message.get(key) for key in _SAYS):
                drafts.begin().say(message, calls, at)
        elif role == "tool":
            if message.get("content") is None:  # a tool that returned nothing; providers refuse null here
                message = {**message, "content": ""}
            drafts.answer(message.get("tool_call_id"), message, at)
        elif role == "user":
            drafts.add_user(User(message=message, end=at + 1), _never)
        elif role in _SYSTEM:
            drafts.add_system(message, at)
        elif role == "function":  # before there were tools: called by name alone
            drafts.answer(message.get("name"), message, at)
        else:
            raise UserError(
                f"messages[{at}]: unknown role {role!r}; known: system, developer, user, assistant, tool, function"
            )
    return drafts.transcript(_settle_chat)


def _never(id: str) -> bool:
    return False


def _chat_call(call: Any, at: int) -> Call:
    function = call.get("function") or call.get("custom") if isinstance(call, MAPPING) else None
    if not isinstance(function, MAPPING) or not isinstance(call.get("id"), str):
        raise UserError(f"messages[{at}]: a tool call needs an id and a function; this one is {call!r:.80}")
    return Call(call["id"], str(function.get("name")), _json(function.get("arguments", function.get("input"))))


def _settle_chat(draft: Draft, last: bool) -> None:
    for step, call in draft.missing(last):
        if step.said[0].get("tool_calls"):
            draft.results[call.id] = {"role": "tool", "tool_call_id": call.id, "content": NO_RESULT}
        else:
            draft.results[call.id] = {"role": "function", "name": call.id, "content": NO_RESULT}


def _write_chat(transcript: Transcript) -> list[Message]:
    written: list[Message] = list(_one_system(transcript.system))
    for part in transcript.parts:
        if isinstance(part, User):
            written.append(part.message)
        elif not part.breaks:
            written += [*part.said, *(result.message for result in part.results)]
        else:
            for said, results in part.steps():
                written += [*said, *(result.message for result in results)]
    return written


def _one_system(system: Sequence[Message]) -> Sequence[Message]:
    """One message with all texts: chat templates refuse a second one."""
    if len(system) < 2:
        return system
    contents = [message.get("content") for message in system]
    if any(isinstance(content, list | tuple) for content in contents):  # their marks for the cache stay
        return blocks.one_system(system)
    return [{**system[0], "content": "\n\n".join(texts(content) for content in contents)}]


def _read_responses(given: Sequence[Message]) -> Transcript:
    drafts = Drafts()
    closed = {id: at for at in range(len(given)) if (id := _id_in(message_at(given, at), _CLOSES)) is not None}
    """Where the server answers its own calls."""
    aliases: dict[str, str] = {}
    """Id of the item of a call -> of the call, where an answer may name either."""
    for at, item in enumerate(given):
        type, role = item.get("type", "message"), item.get("role")
        if type == "item_reference":
            raise UserError(
                f"messages[{at}]: a reference to an item that the server keeps; send the items themselves (store=False)"
            )
        if type == "message" and role in (*_SYSTEM, "user"):
            if role == "user":
                drafts.add_user(User(message=item, end=at + 1), lambda id, at=at: closed.get(id, -1) > at)
            else:
                drafts.add_system(item, at)
        elif type == "message" and role != "assistant":
            raise UserError(f"messages[{at}]: unknown role {role!r}; known: system, developer, user, assistant")
        elif (answered := items.kind_of_answer(item)) is not None:
            id = items.id_of_answer(item, answered)
            drafts.answer(aliases.get(id, id) if isinstance(id, str) else id, item, at)
        else:
            draft = _draft_for_item(drafts)
            kind = items.kind_of(item)
            draft.say(item, [] if kind is None else [items.call_of(item, kind)], at)
            if kind is not None and isinstance(item.get("id"), str):
                aliases[item["id"]] = item[kind.id]
            if (id := _id_in(item, _OWES)) is not None and (type == "program" or id in closed):
                draft.owed[id] = Call(id, type, "")
            elif (id := _id_in(item, _CLOSES)) is not None:
                draft.owed.pop(id, None)
    return drafts.transcript(_settle_items)


def _draft_for_item(drafts: Drafts) -> Draft:
    """The turn that what the model says next belongs to."""
    draft = drafts.open
    if draft is None:
        return drafts.begin()
    if draft.complete:
        if draft.owed:
            draft.go_on()
            return draft
        thoughts = _reasoning_at_end(draft.steps[-1])  # they belong to what they led to
        draft = drafts.begin()
        draft.steps[-1].said.extend(thoughts)
        return draft
    return drafts.begin() if drafts.ends_with_state else draft


_OWES = {"program": "call_id", "mcp_approval_request": "id"}
"""Type of an item of the server's that a later one goes on with -> where its id is."""
_CLOSES = {"program_output": "call_id", "mcp_call": "approval_request_id"}
"""Type of an item that goes on with an earlier one -> where the id of that is."""


def _id_in(item: Message, keys: Mapping[str, str]) -> str | None:
    key = keys.get(item.get("type", ""))
    return None if key is None or not isinstance(item.get(key), str) else item[key]


def _reasoning_at_end(step: Step) -> list[Message]:
    """Takes the reasoning items behind all others out of a step."""
    kept = len(step.said)
    while kept and step.said[kept - 1].get("type") == "reasoning":
        kept -= 1
    thoughts = step.said[kept:]
    del step.said[kept:]
    return thoughts


def _settle_items(draft: Draft, last: bool) -> None:
    for step, call in draft.missing(last):
        for item in step.said:
            kind = items.kind_of(item)
            if kind is not None and item[kind.id] == call.id:
                answer = items.unanswered(call, kind)
                if answer is not None:
                    draft.results[call.id] = answer
                else:
                    step.said[:] = [each for each in step.said if each is not item]
                    step.calls.remove(call)
                break
    if not draft.steps[-1].calls or draft.complete or not last:
        _reasoning_at_end(draft.steps[-1])


def _json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)


def _content(message: Message) -> Content:
    return message.get("content")


def _with_content(message: Message, content: Content) -> Message:
    return {**message, "content": content}


CHAT = Form(
    name="chat",
    text_type="text",
    content=_content,
    changed=_with_content,
    read=_read_chat,
    write=_write_chat,
)
"""OpenAI's chat completions, which most servers and frameworks speak."""
RESPONSES = Form(
    name="responses",
    text_type="input_text",
    content=items.content_of,
    changed=items.with_content,
    read=_read_responses,
    write=_write_chat,
)
"""Input items of OpenAI's Responses API."""
ANTHROPIC = Form(
    name="anthropic",
    text_type="text",
    content=_content,
    changed=_with_content,
    read=blocks.read,
    write=blocks.write,
)
"""Anthropic's messages; the system prompt is no message there."""
FORMS: Mapping[str, Form] = {form.name: form for form in (CHAT, RESPONSES, ANTHROPIC)}


def form_of(name: str) -> Form:
    """The form of this name. Raises UserError for an unknown one."""
    if name not in FORMS:
        raise UserError(f"unknown form of messages {name!r}; known: {', '.join(FORMS)}")
    return FORMS[name]
