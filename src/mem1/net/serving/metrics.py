"""Counts and durations of a server's requests, in Prometheus' text format.

    metrics = RequestMetrics("mem1_retriever", "queries")
    with metrics.request() as request:              counted as answered, or by the exception that leaves the block
        request.items = 2
    metrics.text()      mem1_retriever_requests_total{outcome="answered"} 1.0
                        mem1_retriever_queries_total 2.0
                        mem1_retriever_seconds_bucket{le="0.005"} 1.0 ...

Several worker processes that call `share_metrics` with one folder each show the sums over all of them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mem1.net.serving.requests import ClientGone, Refused

if TYPE_CHECKING:
    from fastapi import FastAPI

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
