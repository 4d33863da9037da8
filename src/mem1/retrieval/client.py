"""A search engine behind HTTP: any server of Search-R1's protocol, `mem1 serve-retriever` or Search-R1's own.

    retriever = HttpRetriever(HttpServer(urls=("http://10.0.0.1:8000", "http://10.0.0.2:8000")))
    retriever.search(["capital of Norway"], k=3)  ->  [[(Passage("p0", "Oslo", "Oslo is ..."), 1.93), ...]]

One try goes through the addresses until one answers. A search that failed everywhere is tried again after ever longer
waits until its deadline; then it raises RetrievalFailed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from mem1.configuration import Config
from mem1.errors import UserError
from mem1.net.failover import Addresses, Clock, is_http
from mem1.net.post import TryFailed, post
from mem1.net.threads import Batcher
from mem1.retrieval.base import Result, RetrievalFailed, check_search
from mem1.retrieval.search_r1 import PATH, encode_request, read_answer

if TYPE_CHECKING:
    import httpx

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0
_CLOCK = Clock()
_CONNECT_S = 5.0
"""Longest wait for a connection; a machine that is switched off does not refuse, it stays silent."""

log = logging.getLogger(__name__)


def retrieve_url(url: str) -> str:
    """The address to post to; for a bare server its /retrieve. Raises UserError where it is not http(s)."""
    if not is_http(url):
        raise UserError(f"{url!r} is not the address of a retriever; set one such as http://127.0.0.1:8000")
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise UserError(
            f"the address of the retriever {parts.hostname} contains a user name or password, which every run "
            "would save; remove it"
        )
    return url if parts.path not in ("", "/") else f"{parts.scheme}://{parts.netloc}{PATH}"


class RetrievalServer(Config):
    """Addresses of a retrieval server, and the limits of its clients."""

    urls: tuple[str, ...] = Field(min_length=1)
    """One address, or several servers of the same collection; http://host:port means its /retrieve."""
    deadline_s: float = Field(default=300.0, gt=0)
    """Time after a search's first try beyond which no other try begins and the search fails."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Time limit of one try at one address."""
    batch: int = Field(default=32, ge=1, le=10_000)
    """Most queries per request."""
    connections: int = Field(default=4, ge=1, le=1_000)
    """Most requests under way at the same time."""
    query_chars: int = Field(default=4096, ge=1)
    """Characters of a query that are sent; servers refuse a whole request because of one very long query."""

    @field_validator("urls")
    @classmethod
    def _addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(retrieve_url, urls))


class HttpRetriever:
    """Client of a retrieval server. Thread-safe: searches at the same time share requests."""

    def __init__(
        self, server: RetrievalServer, *, transport: httpx.BaseTransport | None = None, clock: Clock = _CLOCK
    ) -> None:
        """Does not connect before the first search."""
        import httpx

        self._server, self._clock = server, clock
        self._addresses = Addresses(server.urls, now=clock.now)
        self._timeout_s = min(server.timeout_s, server.deadline_s)
        self._client = httpx.Client(
            transport=transport,
            timeout=httpx.Timeout(self._timeout_s, connect=min(_CONNECT_S, self._timeout_s)),
            limits=httpx.Limits(max_connections=server.connections, max_keepalive_connections=server.connections),
            headers={"content-type": "application/json"},
            trust_env=False,  # proxies for the open web do not reach a retriever of your own
        )
        self._batcher = Batcher(self._try, threads=server.connections, size=server.batch)
        self._down = threading.Event()

    def search(self, queries: Sequence[str], k: int) -> list[Result]:
        """Per query at most `k` (passage, score), in the server's order; waits for a server that is down.

        Raises RetrievalFailed after the deadline, or at once where the server refuses permanently; ValueError for
        k < 1 and TypeError for a single string.
        """
        check_search(queries, k)
        cut = [query[: self._server.query_chars] for query in queries]
        parts = [cut[start : start + self._server.batch] for start in range(0, len(cut), self._server.batch)]
        found: dict[int, list[Result]] = {}
        started, failures = self._clock.now(), 0
        while len(found) < len(parts):
            pending = {i: self._batcher.submit(part, k) for i, part in enumerate(parts) if i not in found}
            failure = self._gather(pending, found)
            if failure is not None:
                self._wait(failure, failures, started)
                failures += 1
        return [result for i in range(len(parts)) for result in found[i]]

    @classmethod
    def open(cls, server: RetrievalServer) -> HttpRetriever:
        """A client whose server has answered. Raises UserError where it does not."""
        retriever = cls(server)
        retriever.check()  # before anything is sampled instead of after the first round
        return retriever

    def check(self) -> None:
        """Wait for the server's first answer. Raises UserError where none comes before the deadline."""
        try:
            self.search(["test"], 1)
        except RetrievalFailed as error:
            raise UserError(f"{error}; start one with mem1 serve-retriever, or set another address") from error

    def close(self) -> None:
        """Close the connections and refuse further searches."""
        self._batcher.close()
        self._client.close()

    def _gather(self, pending: dict[int, Future[list[Result]]], found: dict[int, list[Result]]) -> TryFailed | None:
        """Collect the results that arrived; returns the worst failure of the others."""
        failures: list[TryFailed] = []
        for i, future in pending.items():
            try:
                found[i] = future.result()
            except TryFailed as error:
                failures.append(error)
        return max(failures, key=lambda error: (error.for_good, error.wait_s), default=None)

    def _wait(self, failure: TryFailed, failures: int, started: float) -> None:
        """Wait before the next try. Raises RetrievalFailed where there will be none."""
        if failure.for_good:
            raise RetrievalFailed(f"the retriever refuses: {failure}") from failure
        waited, deadline = self._clock.now() - started, self._server.deadline_s
        wait = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** min(failures, 10)) * (0.5 + self._clock.random() / 2)
        wait = max(wait, failure.wait_s)
        if waited + wait > deadline:
            raise RetrievalFailed(f"no retriever answered within {deadline:g} s: {failure}") from failure
        self._clock.sleep(wait)

    def _try(self, queries: Sequence[str], k: int) -> list[Result]:
        """Results from the first address that answers. Raises TryFailed where none does."""
        body = encode_request(queries, k)
        failures: list[TryFailed] = []
        for url in self._addresses.order():
            try:
                answer = post(self._client, url, body, timeout_s=self._timeout_s, now=self._clock.now)
                results = read_answer(answer, queries=len(queries), k=k)
            except (TryFailed, ValueError, RecursionError) as error:
                failure = error if isinstance(error, TryFailed) else TryFailed(str(error))
                self._addresses.failed(url, rest_s=failure.wait_s)
                failures.append(TryFailed(f"{url}: {failure}", wait_s=failure.wait_s, for_good=failure.for_good))
            else:
                self._addresses.answered(url)
                self._log_up(url)
                return results
        self._log_down(failures)
        raise TryFailed(
            "; ".join(map(str, failures)),
            wait_s=min(failure.wait_s for failure in failures),
            for_good=all(failure.for_good for failure in failures),
        )

    def _log_down(self, failures: Sequence[TryFailed]) -> None:
        if not self._down.is_set():
            self._down.set()
            why = "; ".join(map(str, failures))
            log.warning(
                "no answer from the retriever (%s); retrying up to %g s per search", why, self._server.deadline_s
            )

    def _log_up(self, url: str) -> None:
        if self._down.is_set():
            self._down.clear()
            log.warning("the retriever answers again: %s", url)
