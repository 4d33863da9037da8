"""How every server reads, awaits and answers requests.

body = await read_body(request, largest=8 << 20, instead="send fewer queries", room=bodies)
wanted = read_json(body, SearchRequest)
with queries.holding(len(wanted.queries)):              Refused with 503 and Retry-After where too many are waiting
    found = await unless_gone(request, batcher.submit(...))         cancelled if the client hangs up meanwhile
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

import pydantic

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_RETRY_AFTER_S = "1"
_CLIENT_GONE = 499
"""Status of an answer that nobody receives."""
_PIECE = 1 << 16
"""Bytes of an answer that are written at a time."""

ModelT = TypeVar("ModelT", bound=pydantic.BaseModel)
T = TypeVar("T")


class Refused(Exception):
    """The request is wrong, or the server is too busy; the message is for the client."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.headers = {"retry-after": _RETRY_AFTER_S} if status == 503 else {}


class ClientGone(Exception):
    """The client has hung up, and nobody reads the answer."""


class Room:
    """Upper limit on what all requests together hold at a time.

    room = Room(4096, "queries")
    with room.holding(32): ...         Refused with 503 where 4,096 would be exceeded
    """

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what, self._held = most, what, 0

    @contextlib.contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Raises Refused where it does not fit beside what is held; anything fits alone."""
        if self._held and self._held + size > self._most:
            raise Refused(503, f"{self._held:,} {self._what} are waiting, of at most {self._most:,}; try again later")
        self._held += size
        try:
            yield
        finally:
            self._held -= size


async def read_body(request: Request, *, largest: int, instead: str, room: Room) -> bytes:
    """Read the body piece by piece, so that one that is too large is refused before it is in memory.

    room    limit on the bytes of all requests being read

    Raises Refused for more than `largest` bytes, with advice on what to do `instead`, and where there is no room;
    ClientGone where the body is cut short.
    """
    from starlette.requests import ClientDisconnect

    body = bytearray()
    with contextlib.ExitStack() as held:
        try:
            async for piece in request.stream():
                body += piece
                if len(body) > largest:
                    raise Refused(413, f"the request is larger than {largest:,} bytes; {instead}")
                held.enter_context(room.holding(len(piece)))
        except ClientDisconnect as error:
            raise ClientGone from error
    return bytes(body)


def read_json(body: bytes, model_type: type[ModelT]) -> ModelT:
    """The body as an object of this type. Raises Refused for anything else."""
    try:
        return model_type.model_validate_json(body)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise Refused(422, f"{where}: {first['msg']}" if where else first["msg"]) from error


async def unless_gone(request: Request, work: Future[T]) -> T:
    """The result of `work`, or the error that it raised. The request's body must have been read.

    Raises ClientGone as soon as the client hangs up, and cancels the work if it has not begun.
    """
    result = asyncio.wrap_future(work)
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait((result, gone), return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise ClientGone
        return result.result()
    finally:
        result.cancel()
        gone.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def refusal(refused: Refused) -> Response:
    """The answer with the reason, and when to try again."""
    from starlette.responses import JSONResponse

    return JSONResponse({"detail": str(refused)}, refused.status, refused.headers)


def handle_refusals(app: Starlette) -> None:
    """Answer a route's Refused with its status and reason; a ClientGone needs no answer."""
    from starlette.responses import Response

    async def refuse(_: Request, refused: Exception) -> Response:
        assert isinstance(refused, Refused)
        return refusal(refused)

    async def gone(_: Request, error: Exception) -> Response:
        return Response(status_code=_CLIENT_GONE)

    app.add_exception_handler(Refused, refuse)
    app.add_exception_handler(ClientGone, gone)


def answered(parts: Sequence[bytes], *, done: Callable[[], None]) -> Response:
    """A large JSON answer, written piece by piece as the client reads it.

    done    called when everything is written or the client is gone, to free what was held for the answer
    """
    from starlette.responses import StreamingResponse
    from starlette.types import Receive, Scope, Send

    class Answer(StreamingResponse):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await super().__call__(scope, receive, send)
            finally:
                done()

    async def pieces() -> AsyncIterator[bytes]:
        for part in parts:
            for start in range(0, len(part), _PIECE):
                yield part[start : start + _PIECE]

    length = {"content-length": str(sum(map(len, parts)))}
    return Answer(pieces(), headers=length, media_type="application/json")
