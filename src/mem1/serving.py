"""A web server in this process: its packages, its socket, its signals, and how it reads what it is sent.

check_packages()
(socket,) = bind("127.0.0.1", 8000)
run(app, socket, lambda: print(address("127.0.0.1", socket)))        until Ctrl-C or SIGTERM

asked = read_json(await read_body(request, largest=8 << 20, instead="send fewer queries"), Asked)
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import pydantic

from mem1.errors import UserError

if TYPE_CHECKING:
    from starlette.requests import Request

FINISH_S = 30
"""Given to open requests when the server is stopped."""
_KEEP_ALIVE_S = 75
"""An idle connection is kept so long: a trainer's next round of searches comes after an update."""

ModelT = TypeVar("ModelT", bound=pydantic.BaseModel)


class Refused(Exception):
    """The request is wrong; the message is for the client."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def check_packages() -> None:
    """Raises UserError where those of a server are missing."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UserError(f"the server needs {error.name}: pip install 'mem1[server]'") from error


def bind(host: str, port: int, sockets: int = 1) -> list[socket.socket]:
    """So many sockets on one port; 0 is any free one. Raises UserError where the address cannot be had."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        first = socket.socket(family, kind, protocol)
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # without SO_REUSEPORT yet, so that a port on which another server listens is refused and not shared
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


def run(app: Any, bound: socket.socket, ready: Callable[[], None]) -> None:
    """Serve the ASGI application until SIGTERM or SIGINT, then finish the open requests and return.

    `ready` is called once requests are answered.
    """
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

    config = uvicorn.Config(
        app,
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=FINISH_S,
    )
    with handling(lambda *_: None):  # uvicorn raises the signal once more when it is done
        Server(config).run(sockets=[bound])


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


async def read_body(request: Request, *, largest: int, instead: str) -> bytes:
    """Read piece by piece, so that a body that is too large is refused before it is in memory.

    Raises Refused for one of more than `largest` bytes, with what to do `instead`, and for one that is cut short.
    """
    from starlette.requests import ClientDisconnect

    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > largest:
                raise Refused(413, f"the request is larger than {largest:,} bytes; {instead}")
    except ClientDisconnect as error:
        raise Refused(400, "the request was cut short") from error
    return bytes(body)


def read_json(body: bytes, model_type: type[ModelT]) -> ModelT:
    """The body as an object of this type. Raises Refused, whatever the bytes, where it is none."""
    try:
        return model_type.model_validate_json(body)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise Refused(422, f"{where}: {first['msg']}" if where else first["msg"]) from error
