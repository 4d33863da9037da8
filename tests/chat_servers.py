"""A chat server in a thread of this process that behaves as each request's own script says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Behave = Callable[[dict[str, Any], int], "Reply"]
"""(body of the request, how many came before it) -> what is answered."""


@dataclass(frozen=True)
class Reply:
    """Of a chat server; `body` in place of `text` where it is no chat completion."""

    text: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    hangs_s: float = 0.0
    """Before anything is answered."""


@dataclass
class ChatServer:
    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    busiest: int = 0
    """Most requests that were under way at a time."""


@contextmanager
def chat_server(behave: Behave) -> Iterator[ChatServer]:
    """Answers POST /v1/chat/completions."""
    lock, over = threading.Lock(), threading.Event()
    running = 0

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal running
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                running += 1
                seen.busiest = max(seen.busiest, running)
                number = len(seen.requests)
                seen.requests.append(body)
                seen.headers.append({name.lower(): value for name, value in self.headers.items()})
            try:
                reply = behave(body, number) if self.path == "/v1/chat/completions" else Reply(status=404)
                over.wait(reply.hangs_s)
                self.answer(reply)
            finally:
                with lock:
                    running -= 1

        def answer(self, reply: Reply) -> None:
            message = {"choices": [{"message": {"role": "assistant", "content": reply.text}}]}
            data = json.dumps(message).encode() if reply.body is None else reply.body
            try:
                self.send_response(reply.status)
                for name, value in {"content-length": str(len(data)), **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)
            except OSError:  # the client has gone
                pass

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    seen = ChatServer(f"http://127.0.0.1:{server.server_address[1]}/v1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()
