"""A model's server that speaks both APIs, as an ASGI application: it streams, writes states, and does as it is told."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from server_replies import Reply
from strict_paths import refusal_of

from mem1.messages.transcript import ASK

CHAT, ANTHROPIC = "/v1/chat/completions", "/v1/messages"


@dataclass(frozen=True)
class Said:
    """An answer; `pieces` are sent one by one."""

    pieces: list[bytes]
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    """Whether the connection breaks after the last piece."""
    gate: threading.Event | None = None
    """Open before anything is sent."""


@dataclass
class Upstream:
    """`behave`: (path, body) -> an answer; None: the ordinary one."""

    behave: Callable[[str, Any], Said | None] = lambda path, body: None
    paths: list[str] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """What the API would refuse of a request, which the behaviour never sees (`strict_paths`)."""
    hung_up: int = 0
    """Clients that left before the end of an answer."""

    @property
    def asked(self) -> list[Any]:
        """Bodies of the requests for states."""
        return [body for body in self.bodies if is_request_for_state(body)]

    @property
    def prompts(self) -> list[Any]:
        """Messages of all other requests."""
        return [body["messages"] for body in self.bodies if not is_request_for_state(body)]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raw = b""
        while (message := await receive()).get("more_body"):
            raw += message["body"]
        raw += message.get("body", b"")
        body, refused = await asyncio.to_thread(_read, scope["path"], raw)
        self.paths.append(scope["path"])
        self.raw.append(raw)
        self.bodies.append(body)
        self.headers.append({name.decode(): value.decode("latin-1") for name, value in scope["headers"]})
        if refused is not None and refused.body is not None:
            self.refused.append(refused.body.decode())
            said = Said([refused.body], refused.status, {"content-type": "application/json"})
        else:
            said = self.behave(scope["path"], body) or ordinary(scope["path"], body, len(self.asked))
        while said.gate is not None and not said.gate.is_set():
            await asyncio.sleep(0.005)
        headers = [(name.encode(), value.encode()) for name, value in said.headers.items()]
        await send({"type": "http.response.start", "status": said.status, "headers": headers})
        for piece in said.pieces:
            left = asyncio.ensure_future(receive())
            await asyncio.wait([left], timeout=0.001)
            if left.done():
                self.hung_up += 1
                return
            left.cancel()
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if not said.cut:
            await send({"type": "http.response.body", "body": b""})


def _read(path: str, raw: bytes) -> tuple[Any, Reply | None]:
    """(body, what the API would refuse of it), apart from the loop, which is watched for what the proxy does there."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        return None, None
    return body, refusal_of(path, body) if isinstance(body, dict) else None


def is_request_for_state(body: Any) -> bool:
    last = body["messages"][-1] if isinstance(body, dict) and isinstance(body.get("messages"), list) else {}
    return isinstance(last, dict) and str(last.get("content")).startswith(ASK)


def ordinary(path: str, body: Any, states: int) -> Said:
    """A numbered state where one is asked for; else the model searches once more, streamed if the client wants that."""
    if not isinstance(body, dict):
        return Said([b'{"data": []}'], headers={"content-type": "application/json"})
    if is_request_for_state(body):
        return message(path, f"state {states}")
    turn = sum(isinstance(each, dict) and each.get("role") == "assistant" for each in body.get("messages", ()))
    return (stream if body.get("stream") else message)(path, "Next.", ("search", f'{{"q": {turn}}}'))


def message(path: str, text: str, call: tuple[str, str] | None = None, **more: Any) -> Said:
    """A whole answer."""
    if path.endswith("/messages"):
        blocks: list[dict[str, Any]] = [{"type": "text", "text": text}]
        if call is not None:
            blocks.append({"type": "tool_use", "id": "toolu_1", "name": call[0], "input": json.loads(call[1])})
        usage = {"input_tokens": 100, "cache_read_input_tokens": 900, "output_tokens": 20}
        answer = {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": blocks, "usage": usage,
            "stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None,
        }  # fmt: skip
    else:
        said: dict[str, Any] = {"role": "assistant", "content": text}
        if call is not None:
            said["tool_calls"] = [
                {"id": "call_1", "type": "function", "function": {"name": call[0], "arguments": call[1]}}
            ]
        choice = {"index": 0, "message": said, "finish_reason": "tool_calls" if call else "stop"}
        usage = {
            "prompt_tokens": 1000,
            "completion_tokens": 20,
            "total_tokens": 1020,
            "prompt_tokens_details": {"cached_tokens": 900},
        }
        answer = {
            "id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage
        }  # fmt: skip
    return Said([json.dumps({**answer, **more}).encode()], headers={"content-type": "application/json"})


def stream(path: str, text: str, call: tuple[str, str] | None = None) -> Said:
    """The same as events: the text in two pieces, then the call with its arguments in two."""
    events = _anthropic(text, call) if path.endswith("/messages") else _chat(text, call)
    return Said(events, headers={"content-type": "text/event-stream", "x-request-id": "req_7"})


def _chat(text: str, call: tuple[str, str] | None) -> list[bytes]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": text[:2]}, {"content": text[2:]}]
    if call is not None:
        name, arguments = call
        first = {"index": 0, "id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments[:3]}}
        deltas += [
            {"tool_calls": [first]},
            {"tool_calls": [{"index": 0, "function": {"arguments": arguments[3:]}}]},
        ]
    ended = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if call else "stop"}
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    frame = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    pieces = [b"data: " + json.dumps({**frame, "choices": [choice]}).encode() + b"\n\n" for choice in [*choices, ended]]
    return [*pieces, b"data: [DONE]\n\n"]


def _anthropic(text: str, call: tuple[str, str] | None) -> list[bytes]:
    start = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": {"input_tokens": 1000, "output_tokens": 1},
    }  # fmt: skip
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text[:2]}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text[2:]}},
        {"type": "content_block_stop", "index": 0},
    ]
    if call is not None:
        block = {"type": "tool_use", "id": "toolu_1", "name": call[0], "input": {}}
        events += [
            {"type": "content_block_start", "index": 1, "content_block": block},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": call[1]}},
            {"type": "content_block_stop", "index": 1},
        ]
    ended = {"stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None}
    events += [
        {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 20}},
        {"type": "message_stop"},
    ]
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]
