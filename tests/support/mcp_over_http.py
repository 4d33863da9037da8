"""An MCP server over HTTP in plain JSON-RPC, with sessions, which a test lets fail.

with Served() as server:
    server.sessions.clear()                 as after a restart: it knows no session any more
    server.next.append(503)                 the next call gets this status; "drop": the connection ends without one
    server.tools["other"] = {...}           what tools/list says from now on
"""

from __future__ import annotations

import json
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import uvicorn
from servers import wait_for

OK = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}


@contextmanager
def over_http(official: Any) -> Iterator[str]:
    """The address of a server made with the official package."""
    path = "/mcp"
    app = official.streamable_http_app(streamable_http_path=path)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_for(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}{path}"
    server.should_exit = True
    thread.join()


class Served:
    """`events`: it answers in server-sent events."""

    def __init__(self, port: int = 0, *, events: bool = False) -> None:
        self.tools: dict[str, dict[str, Any]] = {"note": {}, "look": {"annotations": {"readOnlyHint": True}}}
        self.sessions: set[str] = set()
        self.calls: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.next: list[Any] = []
        self.text: str | None = None
        """Of all results; None: the name of the tool, and the header authorization."""
        self.connections: list[socket.socket] = []
        served = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                served.connections.append(self.request)
                super().setup()

            def log_message(self, *_: Any) -> None:
                pass

            def answer(self, status: int, body: Any = None, session: str = "") -> None:
                data = b"" if body is None else json.dumps({"jsonrpc": "2.0", **body}).encode()
                in_events = events and status == 200 and bool(data)
                if in_events:
                    data = b": hello\r\n\r\nevent: message\r\ndata: " + data + b"\r\n\r\n"
                self.send_response(status)
                self.send_header("content-type", "text/event-stream" if in_events else "application/json")
                self.send_header("content-length", str(len(data)))
                if session:
                    self.send_header("mcp-session-id", session)
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self) -> None:
                self.answer(405)

            def do_DELETE(self) -> None:
                self.answer(200)

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                served.headers.append({name.lower(): value for name, value in self.headers.items()})
                method, number = asked.get("method"), asked.get("id")
                if method == "initialize":
                    session = uuid.uuid4().hex
                    served.sessions.add(session)
                    return self.answer(200, {"id": number, "result": OK}, session)
                if self.headers.get("mcp-session-id") not in served.sessions:
                    known = self.headers.get("mcp-session-id") is not None
                    error = {"code": -32000, "message": "Session not found"}
                    return self.answer(404 if known else 400, {"id": None, "error": error})
                if number is None:
                    return self.answer(202)
                if method == "tools/call":
                    return self.call(number, asked["params"])
                listed = [{"name": n, "inputSchema": {"type": "object"}, **more} for n, more in served.tools.items()]
                return self.answer(200, {"id": number, "result": {"tools": listed}})

            def call(self, number: Any, asked: dict[str, Any]) -> None:
                served.calls.append(asked["name"])
                fault = served.next.pop(0) if served.next else None
                if fault == "drop":
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                elif isinstance(fault, int):
                    self.answer(fault)
                else:
                    text = served.text or f"{asked['name']} {self.headers.get('authorization')}"
                    self.answer(200, {"id": number, "result": {"content": [{"type": "text", "text": text}]}})

        self._http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        for connection in self.connections:  # as a program that ends closes them
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
