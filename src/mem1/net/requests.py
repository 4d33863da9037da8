"""Requests of every server: read within bounds, awaited, answered and counted.

with metrics.request() as counted:              counted as answered, or by the exception that leaves the block
    body = await read_body(request, largest=8 << 20, instead="send fewer queries", room=bodies)
    wanted = await read_json(body, SearchRequest)
    counted.items = len(wanted.queries)
    with queries.holding(counted.items):        Refused with 503 and Retry-After where too many are waiting
        found = await unless_gone(request, batcher.submit(...))     cancelled if the client hangs up meanwhile

metrics.text()      mem1_retriever_requests_total{outcome="answered"} 1.0
                    mem1_retriever_queries_total 2.0
                    mem1_retriever_seconds_bucket{le="0.005"} 1.0 ...
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import pydantic

from mem1.net.web_server import error_body

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response


_RETRY_AFTER_S = "1"
_CLIENT_GONE = 499
"""Status of an answer that nobody receives."""
_HALVES = re.compile("[\ud800-\udfff]")
_PIECE = 1 << 16
"""Bytes of an answer that are written at a time."""

ModelT = TypeVar("ModelT", bound=pydantic.BaseModel)
T = TypeVar("T")


class Refused(Exception):
    """The request is wrong, or the server is too busy; the message is for the client."""

    def __init__(self, status: int, why: str, *, field: str | None = None) -> None:
        """`field`: what is wrong in the body of the request; None: no single one."""
        super().__init__(why)
        self.status, self.field = status, field
        self.headers = {"retry-after": _RETRY_AFTER_S} if status == 503 else {}


class ClientGone(Exception):
    """The client has hung up, and nobody reads the answer."""


class CapacityLimit:
    """Upper limit on what all requests together hold at a time.

    room = CapacityLimit(4096, "queries")
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


async def read_body(request: Request, *, largest: int, instead: str, room: CapacityLimit) -> bytes:
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


async def read_json(body: bytes, model_type: type[ModelT]) -> ModelT:
    """The body as an object of this type, read in a thread. Raises Refused for anything else."""
    return await asyncio.to_thread(_read, body, model_type)


def _read(body: bytes, model_type: type[ModelT]) -> ModelT:
    try:
        return model_type.model_validate_json(body)
    except pydantic.ValidationError as error:
        # of the kinds that a field may have, the one that was given fails by more than its type
        first = min(error.errors(), key=lambda each: each["type"].endswith("_type"))
        if first["type"] == "json_invalid" and (mended := _with_whole_characters(body)) is not None:
            return _read(mended, model_type)
        where = ".".join(str(part) for part in first["loc"] if "[" not in str(part))
        why = first["msg"].removeprefix("Value error, ")
        raise Refused(422, f"{where}: {why}" if where else why, field=where or None) from error


def _with_whole_characters(body: bytes) -> bytes | None:
    """The same JSON with U+FFFD for halves of characters, such as "\\ud83d", which Python and JavaScript write where
    a text was cut within an emoji; None: there are none."""
    try:
        text = json.dumps(json.loads(body), ensure_ascii=False)  # whose pairs of halves are one character
    except (ValueError, RecursionError):
        return None
    whole = _HALVES.sub("\ufffd", text)
    return None if whole == text else whole.encode()


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
        for future in (work, result, gone):
            future.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def refusal(request: Request, refused: Refused) -> Response:
    """The answer with the reason, and when to try again. OpenAI's routes answer what is wrong with 400."""
    from starlette.responses import JSONResponse

    path = request.url.path
    status = 400 if refused.status == 422 and path.startswith("/v1/") else refused.status
    return JSONResponse(error_body(path, str(refused), field=refused.field), status, refused.headers)


def handle_refusals(app: Starlette) -> None:
    """Answer a route's Refused with its status and reason; a ClientGone needs no answer."""
    from starlette.responses import Response

    async def refuse(request: Request, refused: Exception) -> Response:
        assert isinstance(refused, Refused)
        return refusal(request, refused)

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


OUTCOMES = ("answered", "refused", "failed", "busy", "gone")
"""refused: the request was wrong (4xx); failed: the server could not answer it (5xx); busy: too many requests were
waiting already (503); gone: the client hung up before it was answered."""
_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_FOLDER = "PROMETHEUS_MULTIPROC_DIR"


def share_metrics(folder: str) -> None:
    """Add this process's counts to those of others with the same folder; to be called before any RequestMetrics."""
    os.environ[_FOLDER] = folder  # read when prometheus_client is imported


@dataclass(slots=True)
class CountedRequest:
    """A request under way."""

    items: int = 0
    """Number of queries or prompts in it."""


class RequestMetrics:
    """Counts and durations of one server's requests."""

    def __init__(self, name: str, items: str) -> None:
        """`name`: prefix of the metrics; `items`: what requests consist of, in the plural."""
        from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

        disable_created_metrics()
        self._registry = own = CollectorRegistry()
        self._requests = Counter(f"{name}_requests", "Requests by outcome", ["outcome"], registry=own)
        self._items = Counter(f"{name}_{items}", f"Number of {items}", registry=own)
        self._seconds = Histogram(f"{name}_seconds", "Duration of requests", buckets=_BOUNDS_S, registry=own)
        for outcome in OUTCOMES:
            self._requests.labels(outcome)

    @contextlib.contextmanager
    def request(self) -> Iterator[CountedRequest]:
        """Count a request that is handled inside the block."""
        started, counted, outcome = time.perf_counter(), CountedRequest(), "failed"
        try:
            yield counted
            outcome = "answered"
        except Refused as refused:
            outcome = "busy" if refused.status == 503 else "refused"
            raise
        except ClientGone:
            outcome = "gone"
            raise
        finally:
            self._requests.labels(outcome).inc()
            self._items.inc(counted.items)
            self._seconds.observe(time.perf_counter() - started)

    def text(self) -> str:
        """All metrics; of all processes together where they share a folder."""
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector

        registry = self._registry
        if _FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(registry).decode()


def add_status_routes(app: FastAPI, metrics: RequestMetrics) -> None:
    """GET /health, which answers while the server accepts requests, and GET /metrics."""
    from fastapi.responses import PlainTextResponse

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def show_metrics() -> str:
        """Sums over all worker processes, for Prometheus."""
        return metrics.text()
