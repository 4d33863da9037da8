"""Running a web server: sockets, signals, and a log on stderr that clients cannot flood or fill with escape codes."""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from mem1.errors import UserError, printable
from mem1.net.serving.connections import BOUNDS, Bounds
from mem1.net.serving.guard import JSON, Guard, Hosts

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp


_LOGGERS = ("uvicorn.error", "asyncio")
_MOST = 5
"""Most records of one kind per period."""
_PERIOD_S = 60.0


class Sparing(logging.Filter):
    """Passes a few records of each kind per minute, and reports how many were left out."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._kinds: dict[object, tuple[float, int]] = {}
        """Kind -> (start of its period, records since)."""

    def filter(self, record: logging.LogRecord) -> bool:
        # the template, without the parts that a client can vary
        kind = record.name, record.msg, record.exc_info and record.exc_info[0]
        began, seen = self._kinds.get(kind, (self._now(), 0))
        if self._now() - began >= _PERIOD_S:
            if seen > _MOST:
                record.msg = f"{record.msg} ({seen - _MOST:,} more like it in the last minute)"
            began, seen = self._now(), 0
        self._kinds[kind] = began, seen + 1
        return seen < _MOST


class _Plain(logging.Formatter):
    """Escapes terminal control codes; a traceback keeps its lines."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


@contextlib.contextmanager
def logging_to_stderr() -> Iterator[None]:
    """Warnings and errors of the server and of asyncio go to stderr, each a few times a minute at most."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Plain("%(levelname)s: %(message)s"))
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


def check_packages() -> None:
    """Raises UserError where packages of a server are missing."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UserError(f"the server needs {error.name}: pip install 'mem1[server]'") from error


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
    accepts: str = JSON,
    bounds: Bounds = BOUNDS,
    ready: Callable[[], None] = lambda: None,
) -> uvicorn.Server:
    """A server of the ASGI application on a socket from `bind`, which it owns from now on.

    Its `run()` serves until SIGTERM or SIGINT, or until its `should_exit` is set, then finishes the open requests and
    returns.

    hosts    names that clients may use
    accepts  content type of every POST
    ready    called once requests are answered
    """
    import uvicorn

    from mem1.net.serving.connections import Connection, Door, Listener

    door = Door(bounds)
    listener = Listener(bound, door)

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
            http=partial(Connection, door=door),  # type: ignore[arg-type]
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
