"""The two APIs whose requests are folded: where their messages are, and how a state is asked for and read.

    POST .../chat/completions    OpenAI's, which most servers speak
    POST .../v1/messages         Anthropic's

The request for a state is the client's own, with other messages, so that the provider serves its beginning from the
cache: same model, same tools, same settings, but for what would spoil the answer (`mem1.messages.asking`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mem1.agent.usage import MOST_TOKENS, counted_in
from mem1.messages.asking import for_state
from mem1.messages.bounds import Bounds, estimated
from mem1.messages.endings import CUT, FILTERED, unfinished
from mem1.messages.sessions import keys_of
from mem1.messages.transcript import Message
from mem1.net.exchange import read_json, whole_number

_SIGNATURE = "x-anthropic-billing-header:"


class NoState(Exception):
    """The model wrote no state; the message says what it did."""

    def __init__(self, why: str, *, for_good: bool = False) -> None:
        super().__init__(why)
        self.for_good = for_good
        """Another try would fail alike."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that a provider reports, summed over calls."""

    calls: int = 0
    prompt_tokens: int = 0
    """All that was sent, cached ones included."""
    cached_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API."""

    path: str
    """End of its path."""
    form: str
    """Name of its form in `mem1.messages`."""
    reply: Callable[[Mapping[str, Any]], tuple[Any, Any]]
    """An answer's (message, why it ended)."""
    usage: Callable[[Mapping[str, Any]], Usage]
    """What an answer's `usage` says."""

    def system_of(self, body: Mapping[str, Any]) -> str:
        """Hash of a system prompt that stands beside the messages, but for a line of Claude Code's that is new in each
        request."""
        system = body.get("system")
        blocks = system if isinstance(system, list) else [{"type": "text", "text": system}]
        return keys_of([{"content": [_unsigned(block) if isinstance(block, dict) else block for block in blocks]}])[0]

    def state_body(self, body: Mapping[str, Any], messages: Sequence[Message], state_tokens: int) -> dict[str, Any]:
        """The client's request with the messages that ask for a state of at most `state_tokens`."""
        return {**for_state(body, state_tokens), "messages": list(messages)}

    def tokens_beside(self, body: Mapping[str, Any]) -> int:
        """Tokens that are sent beside the messages, estimated."""
        beside = [body.get(key) for key in ("tools", "functions", "system")]
        return estimated(json.dumps(beside, ensure_ascii=False))

    def read(self, answer: bytes) -> dict[str, Any]:
        """An answer. Raises NoState where it is none."""
        try:
            read = read_json(answer)
        except ValueError as error:
            raise NoState("the answer to a request for a state is not JSON") from error
        if not isinstance(read, dict):
            raise NoState("the answer to a request for a state is no object")
        return read

    def usage_of(self, answer: Mapping[str, Any]) -> Usage:
        """Tokens of an answer."""
        usage = answer.get("usage")
        return self.usage(usage) if isinstance(usage, dict) else Usage(calls=1)

    def state_in(self, answer: Mapping[str, Any], bounds: Bounds) -> Message:
        """The model's message. Raises NoState where there is none, or not all of it."""
        try:
            message, ended = self.reply(answer)
        except (TypeError, LookupError) as error:
            raise NoState(f"the answer to a request for a state has no message ({type(error).__name__})") from error
        if not isinstance(message, dict):
            raise NoState("the answer to a request for a state has no message")
        if why := unfinished(message, bounds, cut=ended in CUT, filtered=ended in FILTERED):
            raise NoState(why)
        return message


def _unsigned(block: dict[str, Any]) -> dict[str, Any]:
    text = block.get("text")
    if not isinstance(text, str) or not text.startswith(_SIGNATURE):
        return block
    return {**block, "text": text.partition("\n")[2]}


def _count(value: Any) -> int:
    return whole_number(value, most=MOST_TOKENS) or 0


def _chat_usage(usage: Mapping[str, Any]) -> Usage:
    found = counted_in({"completion_tokens": 0, **usage})
    return Usage(1) if found is None else Usage(1, found.prompt, found.cached or 0, found.output)


def _anthropic_usage(usage: Mapping[str, Any]) -> Usage:
    cached, written = _count(usage.get("cache_read_input_tokens")), _count(usage.get("cache_creation_input_tokens"))
    return Usage(1, _count(usage.get("input_tokens")) + cached + written, cached, _count(usage.get("output_tokens")))


CHAT = Api(
    path="/chat/completions",
    form="chat",
    reply=lambda answer: (answer["choices"][0]["message"], answer["choices"][0].get("finish_reason")),
    usage=_chat_usage,
)
ANTHROPIC = Api(
    path="/v1/messages",
    form="anthropic",
    reply=lambda answer: ({"role": "assistant", "content": answer["content"]}, answer.get("stop_reason")),
    usage=_anthropic_usage,
)
APIS = (CHAT, ANTHROPIC)


def api_of(method: str, path: str) -> Api | None:
    """The API that a request is for; None: one whose requests are not folded."""
    if method != "POST":
        return None
    return next((api for api in APIS if path.endswith(api.path)), None)
