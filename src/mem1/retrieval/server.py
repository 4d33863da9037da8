"""A search engine as a server that speaks Search-R1's protocol (`search_r1.py`).

    POST /retrieve    the protocol; 4xx: the request is wrong, 503: the search engine did not answer
    GET  /health      {"status": "ok"}
    GET  /metrics     counts and durations for Prometheus

Requests that wait at the same time are searched together. Needs the packages of `mem1[server]`.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

import mem1
from mem1.retrieval.base import RetrievalFailed, Retriever
from mem1.retrieval.batching import Batcher
from mem1.retrieval.counters import Counters
from mem1.retrieval.search_r1 import PATH, encode_answer
from mem1.retrieval.search_r1 import Request as Asked
from mem1.serving import Refused, read_body, read_json

_JOINED_QUERIES = 32
"""Of waiting requests that are searched together; more would make the first of them wait for the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a request may ask for; more is refused."""

    queries: int = 1024
    query_chars: int = 16_384
    top_k: int = 1000
    body_bytes: int = 8 << 20


def make_app(
    retriever: Retriever, *, top_k: int = 3, limits: Limits = Limits(), counters: Counters | None = None
) -> FastAPI:
    """The server as an ASGI application; `top_k` passages are given where a request does not say how many."""
    app = FastAPI(title="mem1 retriever", version=mem1.__version__)
    counted = counters or Counters.make()[0]
    # one thread: an index in memory computes, and a second thread would only take turns with the first
    batcher = Batcher(retriever.search, threads=1, size=_JOINED_QUERIES)

    async def answer(asked: Asked) -> Response:
        results = batcher.submit(asked.queries, asked.topk or top_k) if asked.queries else None
        found = await asyncio.wrap_future(results) if results is not None else []
        return Response(encode_answer(found, scores=asked.return_scores), media_type="application/json")

    @app.post(PATH, openapi_extra=_BODY)
    async def retrieve(request: Request) -> Response:
        """Passages for each query, best first."""
        started = time.perf_counter()
        queries = 0
        try:
            body = await read_body(request, largest=limits.body_bytes, instead="send fewer queries")
            asked = _read(body, limits)
            queries = len(asked.queries)
            response, outcome = await answer(asked), "answered"
        except Refused as refusal:
            response, outcome = JSONResponse({"detail": str(refusal)}, refusal.status), "refused"
        except RetrievalFailed as error:
            response, outcome = JSONResponse({"detail": str(error)}, 503), "failed"
        except Exception:
            counted.add("failed", queries=queries, seconds=time.perf_counter() - started)
            raise
        counted.add(outcome, queries=queries, seconds=time.perf_counter() - started)
        return response

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Answers while the server can take requests."""
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> str:
        """Of all worker processes together."""
        return counted.text()

    return app


def _read(body: bytes, limits: Limits) -> Asked:
    asked = read_json(body, Asked)
    if len(asked.queries) > limits.queries:
        raise Refused(413, f"{len(asked.queries):,} queries; a request may have at most {limits.queries:,}")
    longest = max(map(len, asked.queries), default=0)
    if longest > limits.query_chars:
        raise Refused(413, f"a query has {longest:,} characters; it may have at most {limits.query_chars:,}")
    if asked.topk and asked.topk > limits.top_k:
        raise Refused(422, f"topk is {asked.topk:,}; it may be at most {limits.top_k:,}")
    return asked


_BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": Asked.model_json_schema()}}}}
"""The route reads its body itself, so the page of the interface must be told of it."""
