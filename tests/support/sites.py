"""Servers on 127.0.0.1 for the tests of the web: each path is a function that answers, or misbehaves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Site:
    """What a server answers and what it was asked."""

    port: int = 0
    pages: dict[str, Answer] = field(default_factory=dict)
    """Path without query -> its answer; any other path is not found."""
    asked: list[tuple[str, str, Mapping[str, str], bytes]] = field(default_factory=list)
    """(method, path with query, headers, body) of each request."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def paths(self) -> list[str]:
        return [path for _, path, _, _ in self.asked]


@contextmanager
def site(pages: Mapping[str, Answer] | None = None) -> Iterator[Site]:
    """A running server."""
    running = Site(pages=dict(pages or {}))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            running.asked.append((self.command, self.path, dict(self.headers.items()), body))
            self.body = body
            running.pages.get(self.path.partition("?")[0], status(404))(self)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that hangs up in the middle is what some tests are about

    with Server(("127.0.0.1", 0), Handler) as server:
        running.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield running
        server.shutdown()
        thread.join()


def send(
    handler: BaseHTTPRequestHandler, body: bytes, code: int = 200, headers: Mapping[str, str] | None = None
) -> None:
    handler.send_response(code)
    for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def status(code: int, **headers: str) -> Answer:
    """An empty answer; underscores in the names of headers stand for hyphens."""
    return lambda handler: send(handler, b"", code, {k.replace("_", "-"): v for k, v in headers.items()})


def content(body: bytes | str, content_type: str = "text/plain; charset=utf-8", **headers: str) -> Answer:
    data = body.encode() if isinstance(body, str) else body
    named = {k.replace("_", "-"): v for k, v in headers.items()}
    return lambda handler: send(handler, data, 200, {"Content-Type": content_type, **named})


def as_json(value: Any) -> Answer:
    return content(json.dumps(value), "application/json")


def redirect(to: str, code: int = 302) -> Answer:
    return status(code, Location=to)


def one_after_the_other(*answers: Answer) -> Answer:
    """The first answer first, and so on; the last for ever."""
    left = list(answers)
    return lambda handler: (left.pop(0) if len(left) > 1 else left[0])(handler)


def silent_after(data: bytes, until: threading.Event) -> Answer:
    """Sends `data` as they are, headers included, and then nothing more until the test is over."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(data)
        handler.wfile.flush()
        until.wait(60)

    return answer


def dripping(data: bytes, until: threading.Event, pause_s: float = 0.02) -> Answer:
    """Sends a byte at a time."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        for byte in data:
            if until.wait(pause_s):
                return
            handler.wfile.write(bytes([byte]))

    return answer


def cut(data: bytes) -> Answer:
    """Sends `data` as they are and hangs up."""
    return lambda handler: (handler.wfile.write(data), None)[1]
