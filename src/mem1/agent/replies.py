"""What a reply of the model amounts to: thoughts out of its text, calls that it wrote as text, and why it is of no use.

understood(reply "<think>hm</think>Oslo", tools, messages)              ->  reply "Oslo", Fault.NONE
understood(reply '<tool_call>{"name": "search", ...', tools, messages)  ->  reply with the call, Fault.NONE
understood(reply "", tools, messages)                                   ->  Fault.EMPTY: the model is asked again

A call that a tool returned or the user wrote is quoted, and not made, where the reply says something beside its calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from mem1.agent.chat import Reply
from mem1.agent.shapes import new_id
from mem1.agent.tools import Tool
from mem1.messages.text_calls import Found, calls_in
from mem1.messages.text_styles import TextCall
from mem1.messages.thoughts import without_thoughts
from mem1.messages.transcript import Call, Message, texts

TRIES = 6
"""Replies of no use in a row after which a run ends."""
CUTS = 3
"""Of these, replies that were cut off, each of which costs as many tokens as there may be, or filtered."""
_SHOWN = 2_000
"""Characters of such a reply that the model sees again."""
_SPELLING = re.compile(r"\\u00[23][0-9a-f]|\\[nrt]|[\s\"'`<>]+|\\", re.IGNORECASE)
"""What is written otherwise where a text is quoted, or was escaped as JSON."""


class Fault(str, Enum):
    """Why a reply is of no use, with what the model is told."""

    NONE = ""
    EMPTY = "Your last reply was empty. Call a tool, or give the answer."
    BROKEN = (
        "Your last reply held a tool call that cannot be read. Call the tool again, with its arguments as one JSON "
        "object, or give the answer."
    )
    CUT = "Your last reply was cut off at the limit of tokens. Reply again, in fewer words."
    FILTERED = "A filter of the provider stopped your last reply. Reply in other words, or say that you cannot."
    UNREADABLE = "Your last reply could not be read. Reply again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """The model is asked again, as its reply is of no use; the conversation does not keep that reply."""

    why: str
    """"empty", "broken" (a call that cannot be read), "cut" (at the limit of tokens), "filtered" (by the
    provider), "unreadable"."""
    tries: int
    """Replies of no use in a row so far."""


def understood(reply: Reply, tools: Mapping[str, Tool], messages: Sequence[Message]) -> tuple[Reply, Fault]:
    """(the reply as the conversation keeps it, its fault). `messages`: the whole conversation before it."""
    message = reply.message
    text = without_thoughts(texts(message.get("content")))
    # a call that was cut off before its arguments would be made without them
    if reply.calls and not (reply.cut and not reply.calls[-1].arguments.strip()):
        return replace(reply, message=_with(message, text, message["tool_calls"])), Fault.NONE
    found = calls_in(text, {name: tool.told["properties"] for name, tool in tools.items()})
    own = _own_calls(found, messages)
    if own and (found.ended or not reply.cut):
        calls = [_call(call, tools) for call in own]
        declared = [_declared(call) for call in calls]
        return replace(reply, message=_with(message, found.text, declared), calls=tuple(calls)), Fault.NONE
    refusal = message.get("refusal")
    text = text.strip() or (refusal if isinstance(refusal, str) else "")
    fault = Fault.NONE if text.strip() else Fault.EMPTY
    if reply.cut:
        fault = Fault.CUT
    elif reply.filtered and not refusal:
        fault = Fault.FILTERED
    elif found.broken:
        fault = Fault.BROKEN
    return replace(reply, message=_with(message, text, ())), fault


def asked_again(shown: Sequence[Message], reply: Reply | None, fault: Fault) -> list[Message]:
    """The messages that ask for another reply. The faulty one stands between: some servers refuse a message of the user
    right after a result."""
    said = "" if reply is None else texts(reply.message.get("content")).strip()
    return [
        *shown,
        {"role": "assistant", "content": said[:_SHOWN] or "..."},
        {"role": "user", "content": fault.value},
    ]


def _own_calls(found: Found, messages: Sequence[Message]) -> Sequence[TextCall]:
    """The calls without those that are quoted: that stand in what a tool returned or the user wrote, in a reply that
    says something beside its calls."""
    if not found.calls or not found.text:
        return found.calls
    heard = "\n".join([texts(message.get("content")) for message in messages if message["role"] in ("tool", "user")])
    heard = _SPELLING.sub("", heard)
    written = zip(found.calls, found.written, strict=True)
    return [call for call, as_written in written if _SPELLING.sub("", as_written) not in heard]


def _with(message: Mapping[str, Any], text: str, calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The message with this text in place of its own, where that had thoughts or calls in it."""
    content = message.get("content")
    rest = {key: value for key, value in message.items() if key not in ("content", "tool_calls", "refusal")}
    kept = content if isinstance(content, list) and text == texts(content) else text or None
    return {**rest, "content": kept, **({"tool_calls": list(calls)} if calls else {})}


def _call(call: TextCall, tools: Mapping[str, Tool]) -> Call:
    arguments = call.arguments
    if not call.typed and (tool := tools.get(call.name)) is not None:
        properties = tool.told["properties"]
        given = json.loads(arguments)
        if isinstance(given, str):
            only = tool.told.get("required") or list(properties)
            given = {only[0]: given} if len(only) == 1 else {}
        values = {key: _typed(value, properties.get(key, {})) for key, value in given.items()}
        arguments = json.dumps(values, ensure_ascii=False)
    return Call(new_id(), call.name, arguments)


def _typed(value: str, schema: Any) -> Any:
    """A value that was written as text, as its schema has it."""
    if not isinstance(schema, Mapping) or "string" in (kind := schema.get("type", "string")):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value.lower() == "true" if kind == "boolean" else value


def _declared(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
