"""A search engine as a server that speaks Search-R1's protocol (client.py).

    serve(partial(BM25.load, folder), host="127.0.0.1", port=8000, workers=2, top_k=3, listening=print)

    POST /retrieve    the protocol; 4xx: invalid request, 503: the search engine failed or too many requests wait
    GET  /health      {"status": "ok"}
    GET  /metrics     counts and durations for Prometheus

Requests that wait at the same time are searched together. One of many queries is searched in several calls, with other
requests in between. A request whose client hangs up is dropped. Every worker process opens the search engine itself (a
memory-mapped index still is in memory only once) and has its own socket on the same port, among which the kernel
distributes connections.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from multiprocessing.process import BaseProcess
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from mem1.errors import UserError
from mem1.net.requests import (
    CapacityLimit,
    Refused,
    RequestMetrics,
    add_status_routes,
    answered,
    handle_refusals,
    read_body,
    read_json,
    share_metrics,
    unless_gone,
)
from mem1.net.threads import Batcher
from mem1.net.web_server import FINISH_S, Hosts, address, bind, handling, make_server
from mem1.retrieval.base import Result, RetrievalFailed, Retriever, checked_results
from mem1.retrieval.client import PATH, SearchRequest, encode_found, joined_answer
from mem1.scoring import number
from mem1.version import __version__

_SPAWN = get_context("spawn")


class _Stop(BaseException):
    """A signal told the server to stop."""


_GIVEN_UP = 3
"""Times that a worker dies before it serves, after which the server ends."""


def serve(
    open_retriever: Callable[[], Retriever],
    *,
    host: str,
    port: int,
    workers: int,
    top_k: int,
    listening: Callable[[str], None],
    allow_hosts: Sequence[str] = (),
) -> None:
    """Serve until SIGTERM or SIGINT, then finish the open requests and return.

    With several workers `open_retriever` must be picklable. `listening` is called with the address once the server
    answers requests; port 0 means any free port. `allow_hosts` are host names to accept besides the server's address.
    Raises UserError where the address is not available or a worker cannot start.
    """
    sockets = bind(host, port, workers)
    where = address(host, sockets[0])
    hosts = Hosts.of(host, sockets[0], allow_hosts)
    if workers == 1:
        _work(_Job(open_retriever, sockets[0], hosts, top_k), lambda: listening(where))
        return
    with tempfile.TemporaryDirectory(prefix="mem1-metrics-") as metrics:
        jobs = [_Job(open_retriever, socket, hosts, top_k, metrics) for socket in sockets]
        _supervise(jobs, lambda: listening(where))


@dataclass(frozen=True, slots=True)
class _Job:
    """The settings of one worker."""

    open_retriever: Callable[[], Retriever]
    socket: socket.socket
    hosts: Hosts
    top_k: int
    metrics: str | None = None
    """Folder of the counts of all workers; None: there is one worker."""


def _work(job: _Job, ready: Callable[[], None]) -> None:
    """Serve on one socket, in this process, until a signal."""
    if job.metrics is not None:
        share_metrics(job.metrics)
    app = make_app(job.open_retriever(), top_k=job.top_k)
    make_server(app, job.socket, hosts=job.hosts, ready=ready).run()


def _supervise(jobs: Sequence[_Job], ready: Callable[[], None]) -> None:
    """Run one process per job until a signal, restarting those that die."""

    def stop(*_: object) -> None:
        raise _Stop

    workers: list[BaseProcess] = []
    try:
        with handling(stop):
            pipes = [_SPAWN.Pipe(duplex=False) for _ in jobs]
            workers += [_start(job, sender) for job, (_, sender) in zip(jobs, pipes, strict=True)]
            for worker, (receiver, sender) in zip(workers, pipes, strict=True):
                sender.close()
                if receiver not in connection.wait([receiver, worker.sentinel]) or not _received(receiver):
                    raise UserError("a worker of the server could not start; see its message above")
            ready()
            started = {}  # by number, pipes of those that were started again and have not said that they serve
            failures = Counter[int]()
            while True:
                connection.wait([worker.sentinel for worker in workers])
                for number, worker in enumerate(workers):
                    if worker.is_alive():
                        continue
                    failures[number] = (
                        failures[number] + 1 if number in started and not _received(started[number]) else 0
                    )
                    if failures[number] == _GIVEN_UP:
                        raise UserError(
                            f"worker {number} died {_GIVEN_UP} times before it served; see its messages above"
                        )
                    print(f"worker {number} died ({worker.exitcode}); starting it again", file=sys.stderr)
                    time.sleep(2 ** failures[number] - 1)
                    started[number], sender = _SPAWN.Pipe(duplex=False)
                    workers[number] = _start(jobs[number], sender)
                    sender.close()
    except _Stop:
        pass
    finally:
        _end(jobs, workers)


def _received(pipe: Any) -> bool:
    try:
        return bool(pipe.recv())
    except EOFError:
        return False


def _start(job: _Job, started: Any) -> BaseProcess:
    worker = _SPAWN.Process(target=_worker, args=(job, started), daemon=True)
    worker.start()
    return worker


def _end(jobs: Sequence[_Job], workers: Sequence[BaseProcess]) -> None:
    with handling(lambda *_: None):
        for job in jobs:
            job.socket.close()  # otherwise connections would keep queueing here
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join(FINISH_S + 5)
            worker.kill()


def _worker(job: _Job, started: Any) -> None:
    threading.Thread(target=_follow_parent, daemon=True).start()
    try:
        _work(job, lambda: started.send(True) if started is not None else None)
    except UserError as error:
        sys.exit(f"error: {error}")


def _follow_parent() -> None:
    """End when the parent is gone; otherwise a killed parent would leave the port occupied."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


_JOINED_QUERIES = 32
"""Most queries of waiting requests searched together; with more, the first would wait for the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on one request, and on all current requests together; anything beyond is refused."""

    queries: int = 1024
    query_chars: int = 16_384
    top_k: int = 1000
    passages: int = 32_768
    """Queries times passages per query."""
    body_bytes: int = 8 << 20
    answer_bytes: int = 64 << 20
    all_queries: int = 4096
    """Queries of all requests that are waiting or being searched."""
    all_passages: int = 131_072
    """Passages of the same requests and of answers being sent."""
    all_body_bytes: int = 128 << 20
    """Bytes of all requests being read."""


def make_app(retriever: Retriever, *, top_k: int = 3, limits: Limits = Limits()) -> FastAPI:
    """The server as an ASGI application; `top_k` is the number of passages for requests that do not set one."""
    app = FastAPI(title="mem1 retriever", version=__version__, docs_url=None, redoc_url=None)
    handle_refusals(app)
    metrics = RequestMetrics("mem1_retriever", "queries")

    def search_checked(queries: Sequence[str], k: int) -> list[Result]:
        found = checked_results(retriever.search(queries, k), len(queries), k)
        try:
            return [[(passage, number(score)) for passage, score in result] for result in found]
        except ValueError as error:
            raise RetrievalFailed(f"the retriever must return lists of (passage, score): {error}") from error

    # one thread: searching an index in memory is computation, and a second thread would only take turns with it
    batcher = Batcher(search_checked, threads=1, size=_JOINED_QUERIES)
    bodies = CapacityLimit(limits.all_body_bytes, "bytes of requests")
    queries = CapacityLimit(limits.all_queries, "queries")
    passages = CapacityLimit(limits.all_passages, "passages")

    async def answer(request: Request, wanted: SearchRequest) -> Response:
        k = wanted.topk or top_k
        with ExitStack() as held:
            held.enter_context(passages.holding(len(wanted.queries) * k))
            with queries.holding(len(wanted.queries)):
                parts = await search(request, wanted, k)
            return answered(joined_answer(parts), done=held.pop_all().close)

    async def search(request: Request, wanted: SearchRequest, k: int) -> list[bytes]:
        parts: list[bytes] = []
        for start in range(0, len(wanted.queries), _JOINED_QUERIES):
            found: Future[list[Result]] = batcher.submit(wanted.queries[start : start + _JOINED_QUERIES], k)
            room = limits.answer_bytes - sum(map(len, parts))
            parts += await run_in_threadpool(_encoded, await unless_gone(request, found), wanted.return_scores, room)
        return parts

    @app.post(PATH, openapi_extra=_BODY)
    async def retrieve(request: Request) -> Response:
        """Passages for each query, best first."""
        try:
            with metrics.request() as counted:
                body = await read_body(request, largest=limits.body_bytes, instead="send fewer queries", room=bodies)
                wanted = await _read(body, top_k, limits)
                counted.items = len(wanted.queries)
                return await answer(request, wanted)
        except RetrievalFailed as error:
            return JSONResponse({"detail": str(error)}, 503)

    add_status_routes(app, metrics)
    return app


async def _read(body: bytes, top_k: int, limits: Limits) -> SearchRequest:
    wanted = await read_json(body, SearchRequest)
    if len(wanted.queries) > limits.queries:
        raise Refused(413, f"{len(wanted.queries):,} queries; a request may have at most {limits.queries:,}")
    longest = max(map(len, wanted.queries), default=0)
    if longest > limits.query_chars:
        raise Refused(413, f"a query has {longest:,} characters; it may have at most {limits.query_chars:,}")
    if wanted.topk and wanted.topk > limits.top_k:
        raise Refused(422, f"topk is {wanted.topk:,}; it may be at most {limits.top_k:,}")
    if (passages := len(wanted.queries) * (wanted.topk or top_k)) > limits.passages:
        raise Refused(
            413,
            f"{len(wanted.queries):,} queries of {wanted.topk or top_k:,} passages are {passages:,}; a request may ask "
            f"for at most {limits.passages:,}: send fewer queries at a time, or a smaller topk",
        )
    return wanted


def _encoded(results: Sequence[Result], scores: bool, room: int) -> list[bytes]:
    """Each query's part of the answer. Raises Refused where they exceed `room` bytes."""
    parts: list[bytes] = []
    for result in results:
        parts.append(encode_found(result, scores=scores))
        room -= len(parts[-1])
        if room < 0:
            raise Refused(413, "the answer would be too large: send fewer queries at a time, or a smaller topk")
    return parts


_BODY = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": SearchRequest.model_json_schema()}}}
}
"""OpenAPI schema of the request, needed because the route reads its body itself."""
