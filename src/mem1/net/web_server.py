"""A web server in this process: sockets, signals, a log on stderr, and which requests it answers.

(socket,) = bind("127.0.0.1", 8000)
hosts = Hosts.of("127.0.0.1", socket, allowed=["search.lan"])
make_server(app, socket, hosts=hosts, ready=lambda: print("ready")).run()    until Ctrl-C or SIGTERM

Host: 127.0.0.1:8000                              answered
Content-Length, Transfer-Encoding: chunked        400
Host: evil.example:8000                           421: a foreign name that resolves to this address (DNS rebinding)
Origin: https://evil.example                      403: a page of another site
POST, Content-Type: text/plain                    415: what another site's page can send without permission
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import math
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mem1.errors import UserError, printable
from mem1.net.bounds import BOUNDS, Bounds

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
"""Content type of HTML forms; pages of other sites are then recognised by Origin and Sec-Fetch-Site only."""
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/@\[\]]+)(?::[0-9]{1,5})?")
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?")


@dataclass(frozen=True, slots=True)
class Hosts:
    """The names and addresses that clients may use for a server; loopback always works.

    A site can point its own name to any address, but its name cannot be an address. A server that listens on all
    addresses of its machine therefore accepts each of them, but only names that are listed.
    """

    names: frozenset[str] = frozenset({"localhost"})
    """In lower case."""
    any_address: bool = False

    @classmethod
    def of(cls, host: str, bound: socket.socket, allowed: Sequence[str] = ()) -> Hosts:
        """Hosts of a server that listens on `host`. Raises UserError where one of `allowed` is not a host name."""
        address = str(bound.getsockname()[0])
        wild = ipaddress.ip_address(address).is_unspecified
        own = () if wild else (_plain(host), address)
        return cls(frozenset({"localhost", *own, *map(_checked, allowed)}), wild)

    def include(self, header: str) -> bool:
        """Whether this is the value of a Host header that names the server; its port does not matter."""
        found = _HOST.fullmatch(header.lower())
        if found is None:
            return False
        name = _plain(found[1])
        if name in self.names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.any_address or address.is_loopback


def _plain(host: str) -> str:
    return host.lower().strip("[]").removesuffix(".")


def _checked(name: str) -> str:
    plain = _plain(name)
    try:
        ipaddress.ip_address(plain)
    except ValueError:
        if not _NAME.fullmatch(plain):
            raise UserError(
                f"--allow-host {name!r} is not a host name; write the name only, as in --allow-host search.lan"
            ) from None
    return plain


class Guard:
    """Refuses requests before they reach an ASGI application."""

    def __init__(self, app: ASGIApp, hosts: Hosts, accepts: str | None) -> None:
        """`accepts`: the content type that every POST must have; None: any."""
        self._app, self._hosts, self._accepts = app, hosts, accepts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refusal(scope) if scope["type"] == "http" else None
        if refused is None:
            begun = False

            async def send_closing(message: Message) -> None:
                nonlocal begun
                begun = True
                # uvicorn closes the connection after an exception; without this header clients would reuse it
                if message["type"] == "http.response.start" and message["status"] == 500:
                    message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
                await send(message)

            try:
                await self._app(scope, receive, send_closing)
            except asyncio.CancelledError:  # the server stops, and has waited; an answer that has begun is cut off
                if not begun:
                    await refuse(scope, send, 503, "the server stops")
            return
        await refuse(scope, send, *refused)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason of a refusal; None: the request is accepted."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host")
        # HTTP/1.0 may leave it out, a browser never does
        if host is not None and not self._hosts.include(host):
            return 421, f"{host[:100]!r} is not a name of this server; --allow-host NAME adds one"
        if "content-length" in headers and "transfer-encoding" in headers:  # servers disagree where its body ends
            return 400, "a request has either a content-length or a transfer-encoding"
        if _from_elsewhere(headers, scope["method"]):
            return 403, "pages of other sites may not use this server"
        if scope["method"] == "POST" and self._accepts is not None:
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != self._accepts:
                return 415, f"a POST must have the content type {self._accepts}"
        return None


def failure(why: str, code: str = "refused", *, param: str | None = None) -> dict[str, Any]:
    """The body of an answer that refuses, in OpenAI's form. `param`: the field that is wrong."""
    return {"error": {"message": why, "type": "invalid_request_error", "param": param, "code": code}}


def error_body(path: str, why: str, *, field: str | None = None) -> dict[str, Any]:
    """The same in the form of the route. `field`: the one that is wrong."""
    return failure(why, param=field) if path.startswith("/v1/") else {"detail": why}


async def refuse(scope: Scope, send: Send, status: int, why: str) -> None:
    """Answer a request with why it is refused."""
    body = json.dumps(error_body(scope["path"], why)).encode("ascii")
    headers = [(b"content-type", JSON.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _from_elsewhere(headers: Mapping[str, str], method: str) -> bool:
    """Whether another site's page made the request. Following a link does not count."""
    site = headers.get("sec-fetch-site")
    if site in ("cross-site", "same-site"):
        followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        return not (followed and method == "GET")
    origin = headers.get("origin")
    return origin is not None and _authority(origin) != headers.get("host", "").lower()


def _authority(origin: str) -> str:
    """http://127.0.0.1:8000 -> 127.0.0.1:8000; empty for "null" and malformed origins."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


_LOGGERS = ("uvicorn.error", "asyncio", "mem1")
_CUT_OFF = "ASGI callable returned without completing response."
"""What uvicorn says of an answer that was cut off on purpose, as its upstream was, or the server stops."""
_MOST = 5
"""Most records of one kind per period."""
_PERIOD_S = 60.0


class Sparing(logging.Filter):
    """Passes a few records of each kind per minute, and reports how many were left out; those of answers that were cut
    off say nothing new."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._kinds: dict[object, tuple[float, int]] = {}
        """Kind -> (start of its period, records since)."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.msg == _CUT_OFF:
            return False
        # the template, without the parts that a client can vary
        kind = record.name, record.msg, record.exc_info and record.exc_info[0]
        began, seen = self._kinds.get(kind, (self._now(), 0))
        if self._now() - began >= _PERIOD_S:
            if seen > _MOST:
                record.left_out = seen - _MOST  # its message belongs to all handlers
            began, seen = self._now(), 0
        self._kinds[kind] = began, seen + 1
        return seen < _MOST


class Plain(logging.Formatter):
    """Escapes terminal control codes; a traceback keeps its lines. Says how many records were left out."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:
        left_out = getattr(record, "left_out", 0)
        return super().formatMessage(record) + (f" ({left_out:,} more like it in the last minute)" if left_out else "")


@contextlib.contextmanager
def logging_to_stderr() -> Iterator[None]:
    """Warnings and errors of the server and of asyncio go to stderr, each a few times a minute at most."""
    handler = logging.StreamHandler()
    handler.setFormatter(Plain("%(levelname)s: %(message)s"))
    handler.addFilter(Sparing())
    handler.setLevel(logging.WARNING)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


FINISH_S = 30
"""Seconds that open requests get to finish when the server stops."""


def bind(host: str, port: int, sockets: int = 1) -> list[socket.socket]:
    """Sockets on one port; 0: any free port. Raises UserError where the address is taken or unknown."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        first = socket.socket(family, kind, protocol)
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # without SO_REUSEPORT first, so that the port of another server is refused and not shared
        first.bind(place)
        if sockets == 1:
            return [first]
        place = first.getsockname()
        first.close()
        bound = [socket.socket(family, kind, protocol) for _ in range(sockets)]
        for one in bound:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.bind(place)
        return bound
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; choose another --host or --port"
        ) from error


def address(host: str, bound: socket.socket) -> str:
    """http://127.0.0.1:8000"""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{bound.getsockname()[1]}"


def make_server(
    app: ASGIApp,
    bound: socket.socket,
    *,
    hosts: Hosts,
    accepts: str | None = JSON,
    bounds: Bounds = BOUNDS,
    ready: Callable[[], None] = lambda: None,
) -> uvicorn.Server:
    """A server of the ASGI application on a socket from `bind`, which it owns from now on.

    Its `run()` serves until SIGTERM or SIGINT, or until its `should_exit` is set, then finishes the open requests, for
    `FINISH_S` at most, and returns.

    hosts    names that clients may use
    accepts  content type of every POST; None: any, so pages of other sites are recognised by their headers only
    ready    called once requests are answered
    """
    import uvicorn

    from mem1.net.connections import Connection, ConnectionLimit, Listener

    limit = ConnectionLimit(bounds)
    listener = Listener(bound, limit)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

        def run(self, sockets: list[socket.socket] | None = None) -> None:
            on_main = threading.current_thread() is threading.main_thread()
            # uvicorn raises the signal once more when it is done
            with logging_to_stderr(), handling(lambda *_: None) if on_main else contextlib.nullcontext():
                super().run([listener])

    return Server(
        uvicorn.Config(
            Guard(app, hosts, accepts),
            http=partial(Connection, limit=limit),  # type: ignore[arg-type]
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=math.ceil(bounds.idle_s) + 1,  # the connection's own deadline comes first
            timeout_graceful_shutdown=FINISH_S,
        )
    )


@contextlib.contextmanager
def handling(handler: Callable[..., Any]) -> Iterator[None]:
    """SIGTERM and SIGINT go to `handler`."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)
