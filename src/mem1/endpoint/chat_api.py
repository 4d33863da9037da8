"""OpenAI's chat completions as the endpoint speaks them: requests within what it can honour, replies, streamed chunks.

    {"messages": [...], "tools": [...], "max_tokens": 200, "temperature": 0.2}
    ->  {"choices": [{"message": {"role": "assistant", "content": "..."}, "finish_reason": "stop"}], "usage": ...}

Samples are drawn as the recipe says, so temperature, top_p, seed, penalties and all other settings that only shape the
sample are ignored; `max_tokens` is honoured below the recipe's budget. A request is refused where what it asks for
would be missing from the reply: several choices, stop words, a schema, a forced call, log-probabilities.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from mem1.engines.tool_calls import Said

Message = Mapping[str, Any]
_MESSAGES = 10_000
_MODEL = "policy"


class ChatRequest(BaseModel):
    """The body of POST .../chat/completions; what is not named here is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    messages: list[dict[str, Any]] = Field(min_length=1, max_length=_MESSAGES)
    model: str = _MODEL
    tools: list[dict[str, Any]] | None = Field(default=None, max_length=_MESSAGES)
    tool_choice: Any = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    n: Any = None
    stop: Any = None
    logit_bias: Any = None
    response_format: Any = None
    functions: Any = None
    function_call: Any = None
    logprobs: Any = None
    modalities: Any = None

    @property
    def most_tokens(self) -> int | None:
        """Most tokens of the completion; None: as many as the recipe allows."""
        given = [most for most in (self.max_tokens, self.max_completion_tokens) if most is not None]
        return min(given, default=None)

    @property
    def offered(self) -> Sequence[Message]:
        """The tools that the model may call."""
        return () if self.tool_choice == "none" else self.tools or ()

    @property
    def counts_streamed(self) -> bool:
        """Whether a streamed reply ends with its usage."""
        return bool((self.stream_options or {}).get("include_usage"))

    def refusal(self) -> str | None:
        """Why it cannot be honoured; None: it can."""
        form = self.response_format.get("type") if isinstance(self.response_format, Mapping) else self.response_format
        reasons = {
            "n": (self.n not in (None, 1), "each call is one sample: call again for another"),
            "stop": (bool(self.stop), "a completion ends where the policy ends it"),
            "logit_bias": (bool(self.logit_bias), "it would train another policy than the one that sampled"),
            "response_format": (form not in (None, "text"), "the policy writes text: ask for the form in a message"),
            "tool_choice": (self.tool_choice not in (None, "auto", "none"), "the policy decides what it calls"),
            "functions": (bool(self.functions or self.function_call), "give tools"),
            "logprobs": (bool(self.logprobs), "they are recorded, not sent"),
            "modalities": (self.modalities not in (None, ["text"]), "the policy writes text"),
        }
        return next((f"{name} is not supported here: {why}" for name, (wrong, why) in reasons.items() if wrong), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the policy said in one call."""

    id: str
    message: Message
    finish: str
    """stop, tool_calls or length."""
    prompt_tokens: int
    completion_tokens: int

    @property
    def usage(self) -> dict[str, int]:
        read, written = self.prompt_tokens, self.completion_tokens
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def whole(self, model: str) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choice = {"index": 0, "message": self.message, "finish_reason": self.finish, "logprobs": None}
        return {**self._head("chat.completion", model), "choices": [choice], "usage": self.usage}

    def streamed(self, model: str, *, usage: bool) -> Iterator[dict[str, Any]]:
        """The same in chunks."""
        head = self._head("chat.completion.chunk", model)
        calls = self.message.get("tool_calls", ())
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{key: self.message[key]} for key in ("reasoning_content", "content") if self.message.get(key)]
        deltas += [{"tool_calls": [{"index": index, **call}]} for index, call in enumerate(calls)]
        for delta in deltas:
            yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": self.finish}]}
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


def models() -> dict[str, Any]:
    """The body of GET .../models."""
    return {"object": "list", "data": [{"id": _MODEL, "object": "model", "created": 0, "owned_by": "mem1"}]}


def failure(why: str, code: str) -> dict[str, Any]:
    """The body of an answer that refuses, in OpenAI's form."""
    return {"error": {"message": why, "type": "invalid_request_error", "param": None, "code": code}}
