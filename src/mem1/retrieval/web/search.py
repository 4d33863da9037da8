"""Searching the web through an API, behind the port `Retriever`.

WebSearch(search_api("serper"), WebCache("web.sqlite")).search(["capital of Norway"], k=10)
->  [[(Passage("https://en.wikipedia.org/wiki/Oslo", "Oslo", "Oslo is the capital of ..."), 1.0), ...]]

A passage's id is the address, its text the snippet. Its score is 1 / rank, since the APIs return no comparable scores.
The key is read from the environment for each request and stored nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from mem1.errors import UserError
from mem1.net.api_keys import read_key, redact
from mem1.net.exchange import TryFailed, read_json, retry_after
from mem1.net.failover import HostLimit, Retry
from mem1.net.spending import LimitReached, Spending, Usage, WebBudget
from mem1.net.threads import in_parallel
from mem1.records import Passage
from mem1.retrieval.base import Result, RetrievalFailed, check_search
from mem1.retrieval.web.apis import SearchApi, SearchResult, WrongAnswer
from mem1.retrieval.web.cache import WebCache
from mem1.retrieval.web.transport import ACCEPTED, HttpReply, HttpRequest, decompress, resolve_any, send
from mem1.retrieval.web.urls import FetchFailed, Why, parse_address

_QUERY_WORDS, _QUERY_CHARACTERS = 50, 400
"""Longest query that every API accepts (Brave's limits); the rest is cut off."""
_TITLE_CHARACTERS, _SNIPPET_CHARACTERS = 300, 2000
_MAX_BYTES = 4_000_000
_KIND = "search"


@dataclass(frozen=True, slots=True)
class WebSearch:
    """One search API with its cache and limits; thread-safe."""

    api: SearchApi
    cache: WebCache
    _: KW_ONLY
    spending: Spending = field(default_factory=lambda: Spending(WebBudget()))
    limit: HostLimit = field(default_factory=lambda: HostLimit(0.0))
    retry: Retry = field(default_factory=Retry)
    seconds: float = 15.0
    """Time limit of one request."""
    threads: int = 8
    """Most requests under way at the same time."""

    def __post_init__(self) -> None:
        if self.cache.mode == "live":
            self._key()

    def search(self, queries: Sequence[str], k: int) -> list[Result]:
        """Per query at most `k` (passage, score), best first; a repeated query is sent once.

        Raises RetrievalFailed for the first query that cannot be answered, ValueError for k < 1 and TypeError for a
        single string.
        """
        check_search(queries, k)
        sent = [" ".join(query.split()[:_QUERY_WORDS])[:_QUERY_CHARACTERS] for query in queries]
        different = list(dict.fromkeys(sent))
        found = in_parallel(lambda query: self._passages(query, k), different, self.threads)
        by_query = dict(zip(different, found, strict=True))
        return [[(p, 1 / rank) for rank, p in enumerate(by_query[query], start=1)] for query in sent]

    def _passages(self, query: str, k: int) -> list[Passage]:
        if not query:
            return []
        key = {"api": self.api.name, "url": self.api.base_url, "query": query, "k": k}
        stored = self.cache.load(_KIND, key)
        if stored is None:
            try:
                results = self.retry(lambda: self._ask(query, k))
            except (TryFailed, LimitReached) as error:
                raise RetrievalFailed(str(error)) from error
            stored = [[p.id, p.title, p.text] for p in _passages(results, k)]
            self.cache.store(_KIND, key, stored)
        return [Passage(*fields) for fields in stored]

    def _ask(self, query: str, k: int) -> list[SearchResult]:
        """One request. Raises TryFailed, RetrievalFailed where another try would not help, or LimitReached."""
        key = self._key()
        call = self.api.call(query, k, key)
        self.spending.spend(Usage(searches=1))
        self.limit.wait(call.address.host)
        reply = self._send(call)
        self._check(reply)
        try:
            body = decompress(reply.body, reply.headers.get("content-encoding", ""), max_bytes=_MAX_BYTES)
            found = self.api.results(read_json(body))
        except (ValueError, WrongAnswer, FetchFailed):
            raise TryFailed(f"{self.api.name} answered with something that is not its format") from None
        # a server that echoes the key must not get it into traces and cache
        fields = ([redact(text, key) for text in (one.title, one.address, one.snippet)] for one in found)
        return [SearchResult(title=title, address=address, snippet=snippet) for title, address, snippet in fields]

    def _send(self, call: HttpRequest) -> HttpReply:
        call = HttpRequest(
            method=call.method,
            address=call.address,
            headers={**call.headers, "Accept-Encoding": ACCEPTED},
            body=call.body,
        )
        try:
            return send(call, resolve=resolve_any, seconds=self.seconds, max_bytes=_MAX_BYTES)
        except FetchFailed as error:
            if error.why in (Why.TIME, Why.NETWORK):
                raise TryFailed(f"{self.api.name}: {error}") from None
            raise RetrievalFailed(f"{self.api.name}: {error}") from None

    def _check(self, reply: HttpReply) -> None:
        status = reply.status
        answered = f"{self.api.name} answered with status {status}"
        if status == 429 or status >= 500:
            raise TryFailed(answered, wait_s=retry_after(reply.headers.get("retry-after")) or 0.0)
        if status in (401, 403):
            raise RetrievalFailed(f"{answered}: {self._access_advice}")
        if status != 200:
            raise RetrievalFailed(f"{answered}; check its address {self.api.base_url}")

    @property
    def _access_advice(self) -> str:
        if self.api.key_variable is None:
            return "it refuses the search; SearXNG needs `json` among search.formats in its settings.yml"
        return f"check the key in {self.api.key_variable}"

    def _key(self) -> str:
        """The API's key. Raises UserError, without showing it, where it is missing or malformed."""
        variable = self.api.key_variable
        if variable is None:
            return ""
        key = read_key(variable)
        if not key:
            raise UserError(f"{self.api.name} needs a key: set the environment variable {variable}")
        return key


def _passages(results: Sequence[SearchResult], k: int) -> list[Passage]:
    """The first `k` results that have an address and a text, each address once."""
    passages: dict[str, Any] = {}
    for result in results:
        try:
            address = str(parse_address(result.address))
        except FetchFailed:
            continue
        title = " ".join(result.title.split())[:_TITLE_CHARACTERS]
        snippet = " ".join(result.snippet.split())[:_SNIPPET_CHARACTERS]
        if title or snippet:
            passages.setdefault(address, Passage(address, title, snippet or title))
    return list(passages.values())[:k]
