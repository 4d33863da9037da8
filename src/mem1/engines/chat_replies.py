"""Replies in OpenAI's form of chat completions: a completion as a message, whole answers, streamed chunks, errors.

    message_of(said, raw, name="7f")    {"role": "assistant", "tool_calls": [{"id": "call_7f_0", "function": ...}]}
    Reply(...).whole("policy")          {"choices": [{"message": ..., "finish_reason": "tool_calls"}], "usage": ...}
    events(Reply(...).streamed(...))    'data: {"choices": [{"delta": {"role": "assistant", ...}}]}\\n\\n' ...

Used by the endpoint that trains foreign agents and by the server of a policy.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mem1.engines.tool_calls import Said

Message = Mapping[str, Any]
MODEL = "policy"
"""The model's name where nobody gave it another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One sample."""

    message: Message
    finish: str
    """stop, tool_calls, length, or abort where new weights interrupted it."""
    tokens: int
    """Of the completion."""
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Further fields, such as log-probabilities."""

    def whole(self, index: int) -> dict[str, Any]:
        about = {"index": index, "message": self.message, "finish_reason": self.finish, "logprobs": None}
        return {**about, **self.extras}

    def deltas(self) -> Iterator[dict[str, Any]]:
        """The message in pieces."""
        yield {"role": "assistant", "content": ""}
        yield from ({key: self.message[key]} for key in ("reasoning_content", "content") if self.message.get(key))
        for index, call in enumerate(self.message.get("tool_calls", ())):
            yield {"tool_calls": [{"index": index, **call}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A model's reply in one call."""

    id: str
    choices: Sequence[Choice]
    prompt_tokens: int
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the whole."""

    @property
    def message(self) -> Message:
        """The only choice's."""
        (choice,) = self.choices
        return choice.message

    @property
    def usage(self) -> dict[str, int]:
        read, written = self.prompt_tokens, sum(choice.tokens for choice in self.choices)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def whole(self, model: str) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choices = [choice.whole(index) for index, choice in enumerate(self.choices)]
        return {**self._head("chat.completion", model), "choices": choices, "usage": self.usage, **self.extras}

    def streamed(self, model: str, *, usage: bool) -> Iterator[dict[str, Any]]:
        """The same in chunks; further fields are in the first, and those of a choice in its last."""
        head, more = self._head("chat.completion.chunk", model), self.extras
        for index, choice in enumerate(self.choices):
            for delta in choice.deltas():
                yield {**head, "choices": [{"index": index, "delta": delta, "finish_reason": None}], **more}
                more = {}
            last = {"index": index, "delta": {}, "finish_reason": choice.finish, **choice.extras}
            yield {**head, "choices": [last]}
        if usage:
            yield {**head, "choices": [], "usage": self.usage}

    def _head(self, kind: str, model: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": int(time.time()), "model": model}


def message_of(said: Said, raw: str, *, name: str, callable_: bool = True) -> dict[str, Any]:
    """The assistant's message of a completion. `raw`: its text without the end; `name`: a prefix for ids of calls.

    A completion with a call that cannot be read is a text: the whole of it, with no call. So is one with calls where
    the client allowed none. Calls of tools that do not exist are calls: what to reply is the agent's decision.
    """
    calls = [_call(call.name, call.arguments, f"call_{name}_{number}") for number, call in enumerate(said.calls)]
    broken = any(call.error for call in said.calls) or None in calls
    message: dict[str, Any] = {"role": "assistant", "content": said.text}
    if broken or (calls and not callable_):
        message["content"] = raw
    elif calls:
        message |= {"content": said.text or None, "tool_calls": calls}
    if said.thought and not broken:
        message["reasoning_content"] = said.thought
    return message


def _call(name: str, arguments: Mapping[str, Any], id: str) -> dict[str, Any] | None:
    """None where the arguments are no JSON (NaN) that every client reads."""
    try:
        written = json.dumps(dict(arguments), ensure_ascii=False, allow_nan=False)
        written.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        written = json.dumps(dict(arguments))
    except ValueError:
        return None
    return {"id": id, "type": "function", "function": {"name": name, "arguments": written}}


def events(chunks: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The chunks as server-sent events."""
    for chunk in chunks:
        yield f"data: {json.dumps(chunk)}\n\n"
    yield "data: [DONE]\n\n"
