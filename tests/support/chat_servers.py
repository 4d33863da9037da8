"""A chat server in a thread of this process that behaves as each request's own script says.

What OpenAI would refuse of a request is refused in its wording, before the script sees it (`strict_paths`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from server_replies import Reply
from sites import send, site
from strict_paths import Refuses, refusal_of

Behave = Callable[[dict[str, Any], int], Reply]
"""(body of the request, number of requests before it) -> the answer."""


@dataclass
class ChatServer:
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """What was refused, by its wording."""
    paths: list[str] = field(default_factory=list)
    busiest: int = 0
    """Largest number of requests under way at the same time."""


@contextmanager
def chat_server(behave: Behave, *paths: str, refuses: Refuses = refusal_of) -> Iterator[ChatServer]:
    """Answers POST /v1/chat/completions, or the paths given. `refuses`: what another provider does, of these paths."""
    lock, over, seen = threading.Lock(), threading.Event(), ChatServer()
    running = 0

    def answer(handler: BaseHTTPRequestHandler) -> None:
        nonlocal running
        body = json.loads(handler.body)  # type: ignore[attr-defined]
        if handler.path.partition("?")[0].endswith("/count_tokens"):
            return send(handler, json.dumps({"input_tokens": len(json.dumps(body)) // 4}).encode(), 200, {})
        with lock:
            running += 1
            seen.busiest = max(seen.busiest, running)
            number = len(seen.requests)
            seen.requests.append(body)
            seen.paths.append(handler.path)
            seen.headers.append({name.lower(): value for name, value in handler.headers.items()})
        try:
            reply = refuses(handler.path, body)
            if reply is None:
                reply = behave(body, number)
            else:
                seen.refused.append(str(reply.body))
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
