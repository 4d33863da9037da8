r"""Search-R1's retrieval protocol, and a client of servers that speak it: `mem1 serve-retriever`, Search-R1's own.

    request   {"queries": ["capital of Norway"], "topk": 3, "return_scores": true}
    answer    {"result": [[{"document": {"id": "p0", "contents": "\"Oslo\"\nThe capital of Norway."}, "score": 2.9}]]}

    retriever = HttpRetriever(RetrievalServer(urls=("http://10.0.0.1:8000", "http://10.0.0.2:8000")))
    retriever.search(["capital of Norway"], k=3)  ->  [[(Passage("p0", "Oslo", "The capital ..."), 2.9), ...]]

Without scores an entry is the document itself. Search-R1's own servers answer with {"id", "contents"} (dense) or with
{"title", "text", "contents"} and no id (BM25), and its clients read only `document.contents`. We read both forms.

One try goes through the addresses until one answers. A search that failed everywhere is tried again after ever longer
waits until its deadline; then it raises RetrievalFailed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, field_validator

from mem1.configuration import Config
from mem1.errors import UserError
from mem1.jsonl import encode_object
from mem1.net.exchange import TryFailed, exchange, number, read_json, shown, whole_number
from mem1.net.failover import CLOCK, Addresses, Clock, Retry, is_http
from mem1.net.threads import Batcher
from mem1.records import Passage
from mem1.retrieval.base import Result, RetrievalFailed, check_search
from mem1.retrieval.corpus import joined_contents, title_and_text
from mem1.sanitize import sound_text

if TYPE_CHECKING:
    import httpx


PATH = "/retrieve"
_ID_DIGITS = 16
_LONGEST_SCORE = 40
"""Most characters of a score given as text."""
_LARGEST_ID = (1 << 63) - 1
_LARGEST_SCORE = sys.float_info.max


class SearchRequest(BaseModel):
    """A client's request; unknown keys are ignored, as by Search-R1."""

    queries: list[str] = Field(fail_fast=True)
    topk: int | None = Field(default=None, ge=0)
    """Passages per query; None or 0: the server's default."""
    return_scores: bool = False


def encode_request(queries: Sequence[str], k: int) -> bytes:
    """A request with scores, without which Search-R1's own server can fail."""
    return encode_object({"queries": [sound_text(query) for query in queries], "topk": k, "return_scores": True})


def encode_found(found: Result, *, scores: bool) -> bytes:
    """The results of one query, encoded as a part of the answer."""
    return encode_object([_entry(*one, scores) for one in found])


def joined_answer(parts: Sequence[bytes]) -> list[bytes]:
    """The answer to a request, in consecutive pieces, from the `encode_found` of each of its queries."""
    pieces = [b'{"result":[']
    for i, part in enumerate(parts):
        pieces += (b",", part) if i else (part,)
    return [*pieces, b"]}\n"]


def _entry(passage: Passage, score: float, scores: bool) -> dict[str, Any]:
    document = {"id": passage.id, "contents": joined_contents(passage)}
    return {"document": document, "score": score} if scores else document


def read_answer(body: bytes, *, queries: int, k: int) -> list[Result]:
    """Per query at most `k` (passage, score) in the server's order.

    The id defaults to the SHA-256 of the document, the score to 1 / rank. Documents without text are left out, since
    there is nothing to show. Raises ValueError naming what is wrong with the answer.
    """
    answer = read_json(body)
    results = answer.get("result") if isinstance(answer, dict) else None
    if not isinstance(results, list) or not all(isinstance(result, list) for result in results):
        raise ValueError('the answer has no "result" with one list per query')
    if len(results) != queries:
        raise ValueError(f"the answer has {len(results)} results for {queries} queries")
    return [_found(result)[:k] for result in results]


def _found(entries: Sequence[Any]) -> Result:
    read = (_read_entry(entry, rank) for rank, entry in enumerate(entries, start=1))
    return [(passage, score) for passage, score in read if passage is not None]


def _read_entry(entry: Any, rank: int) -> tuple[Passage | None, float]:
    if not isinstance(entry, dict):
        raise ValueError(f"a document of the answer is {type(entry).__name__}, not an object")
    document = entry.get("document", entry)
    if not isinstance(document, dict):
        raise ValueError(f"a document of the answer is {type(document).__name__}, not an object")
    title, text = title_and_text(document)
    return Passage(_id(document), title, text) if text.strip() else None, _score(entry, rank)


def _id(document: Mapping[str, Any]) -> str:
    given = document.get("id")
    if isinstance(given, str) or whole_number(given, most=_LARGEST_ID) is not None:
        return str(given)
    if given is not None:
        raise ValueError(f"the id of a document of the answer is {shown(given)}")
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:_ID_DIGITS]


def _score(entry: Mapping[str, Any], rank: int) -> float:
    if "document" not in entry or entry.get("score") is None:
        return 1 / rank
    given = entry["score"]
    if isinstance(given, str) and len(given) <= _LONGEST_SCORE:
        with suppress(ValueError):
            given = float(given)
    score = number(given, least=-_LARGEST_SCORE, most=_LARGEST_SCORE)
    if score is None:
        raise ValueError(f"a score of the answer is {shown(entry['score'])}")
    return score


_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.15, 7.5
_CONNECT_S = 5.0

log = logging.getLogger(__name__)


def _retrieve_url(url: str) -> str:
    """The address to post to; for a bare server its /retrieve."""
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
        return tuple(map(_retrieve_url, urls))


class HttpRetriever:
    """Client of a retrieval server. Thread-safe: searches at the same time share requests."""

    def __init__(
        self, server: RetrievalServer, *, transport: httpx.BaseTransport | None = None, clock: Clock = CLOCK
    ) -> None:
        """Does not connect before the first search."""
        from mem1.net.transport import Client

        self._server, self._clock = server, clock
        self._addresses = Addresses(server.urls, now=clock.now)
        self._timeout_s = min(server.timeout_s, server.deadline_s)
        self._client = Client(server.connections, {"content-type": "application/json"}, transport=transport)
        self._batcher = Batcher(self._search_once, threads=server.connections, size=server.batch)
        self._retry = Retry(
            tries=None,
            deadline_s=server.deadline_s,
            first_wait_s=_FIRST_WAIT_S,
            longest_wait_s=_LONGEST_WAIT_S,
            longest_server_wait_s=server.deadline_s,
            clock=clock,
        )
        self._down = threading.Event()

    def search(self, queries: Sequence[str], k: int) -> list[Result]:
        """Per query at most `k` (passage, score), in the server's order; waits for a server that is down.

        Raises RetrievalFailed after the deadline, or at once where the server refuses permanently.
        """
        check_search(queries, k)
        cut = [query[: self._server.query_chars] for query in queries]
        parts = [cut[start : start + self._server.batch] for start in range(0, len(cut), self._server.batch)]
        found: dict[int, list[Result]] = {}
        try:
            self._retry(lambda: self._search_missing(parts, k, found))
        except TryFailed as failure:
            raise RetrievalFailed(
                f"the retriever {'refuses' if failure.for_good else 'does not answer'}: {failure}"
            ) from failure
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

    def _search_missing(self, parts: Sequence[Sequence[str]], k: int, found: dict[int, list[Result]]) -> None:
        """Search the parts that are not in `found` yet. Raises TryFailed: the worst failure, after all have ended."""
        searches = {i: self._batcher.submit(part, k) for i, part in enumerate(parts) if i not in found}
        failures: list[TryFailed] = []
        for i, search in searches.items():
            try:
                found[i] = search.result()
            except TryFailed as error:
                failures.append(error)
        if failures:
            raise max(failures, key=lambda error: (error.for_good, error.wait_s))

    def _search_once(self, queries: Sequence[str], k: int) -> list[Result]:
        """One request, to the first address that answers. Raises TryFailed where none does."""
        body = encode_request(queries, k)

        def ask(url: str) -> list[Result]:
            answer = exchange(
                self._client, url, body, timeout_s=self._timeout_s, now=self._clock.now, connect_s=_CONNECT_S
            )
            return read_answer(answer, queries=len(queries), k=k)

        try:
            results = self._addresses.first_answer(ask)
        except TryFailed as failure:
            if not self._down.is_set():
                self._down.set()
                log.warning(
                    "no answer from the retriever (%s); retrying each search for %g s", failure, self._server.deadline_s
                )
            raise
        if self._down.is_set():
            self._down.clear()
            log.warning("the retriever answers again")
        return results
