"""A chat server in a thread of this process that behaves as each request's own script says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from sites import send, site

Behave = Callable[[dict[str, Any], int], "Reply"]
"""(body of the request, number of requests before it) -> the answer."""


@dataclass(frozen=True)
class Reply:
    """The answer of a chat server; `body` replaces `text` where it is no chat completion."""

    text: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    hangs_s: float = 0.0
    """Wait before the answer."""


@dataclass
class ChatServer:
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    busiest: int = 0
    """Largest number of requests under way at the same time."""


@contextmanager
def chat_server(behave: Behave, *paths: str) -> Iterator[ChatServer]:
    """Answers POST /v1/chat/completions, or the paths given."""
    lock, over, seen = threading.Lock(), threading.Event(), ChatServer()
    running = 0

    def answer(handler: BaseHTTPRequestHandler) -> None:
        nonlocal running
        body = json.loads(handler.body)  # type: ignore[attr-defined]
        with lock:
            running += 1
            seen.busiest = max(seen.busiest, running)
            number = len(seen.requests)
            seen.requests.append(body)
            seen.paths.append(handler.path)
            seen.headers.append({name.lower(): value for name, value in handler.headers.items()})
        try:
            reply = behave(body, number)
            over.wait(reply.hangs_s)
            message = {"choices": [{"message": {"role": "assistant", "content": reply.text}}]}
            with suppress(OSError):  # the client has gone
                send(
                    handler,
                    json.dumps(message).encode() if reply.body is None else reply.body,
                    reply.status,
                    reply.headers,
                )
        finally:
            with lock:
                running -= 1

    with site(dict.fromkeys(paths or ("/v1/chat/completions",), answer)) as server:
        seen.url = f"{server.url}/v1"
        try:
            yield seen
        finally:
            over.set()
