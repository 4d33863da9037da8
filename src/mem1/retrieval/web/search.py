"""Searching the web through an API, behind the port `Retriever`.

WebSearch(Serper(), WebCache("web.sqlite")).search(["capital of Norway"], k=10)
->  [[(Passage("https://en.wikipedia.org/wiki/Oslo", "Oslo", "Oslo is the capital of ..."), 1.0), ...]]

A passage's id is the address, its text the snippet; the score is one over the rank, as the APIs give none that can be
compared. The key is read from the environment for each request and is kept nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval.answers import read_json
from mem1.retrieval.base import RetrievalFailed, check_search
from mem1.retrieval.keys import read_key, redact
from mem1.retrieval.retry_after import retry_after
from mem1.retrieval.web.api import Result, SearchApi, WrongAnswer
from mem1.retrieval.web.brave import Brave
from mem1.retrieval.web.cache import WebCache
from mem1.retrieval.web.limits import HostLimit, Spending
from mem1.retrieval.web.parallel import in_parallel
from mem1.retrieval.web.retry import Retry, TryAgain
from mem1.retrieval.web.searxng import SearXNG
from mem1.retrieval.web.serper import Serper
from mem1.retrieval.web.tavily import Tavily
from mem1.retrieval.web.transport import ACCEPTED, Reply, Request, decompress, resolve_any, send
from mem1.retrieval.web.urls import FetchFailed, Why, parse_address

APIS: Mapping[str, type] = {api.name: api for api in (Serper, Brave, Tavily, SearXNG)}
_QUERY_WORDS, _QUERY_CHARACTERS = 50, 400
"""The longest query that all of the APIs take (Brave's limits); the rest is not asked."""
_TITLE_CHARACTERS, _SNIPPET_CHARACTERS = 300, 2000
_MAX_BYTES = 4_000_000
_KIND = "search"


def search_api(name: str, base_url: str | None = None) -> SearchApi:
    """The API called `name`, at its own address or at `base_url`. Raises UserError for an unknown name."""
    if name not in APIS:
        raise UserError(f"unknown search API {name!r}; known: {', '.join(APIS)}")
    api = APIS[name]() if base_url is None else APIS[name](base_url)
    api.call("", 1, "")  # a wrong base address is found here, not in the middle of a run
    return api


@dataclass(frozen=True, slots=True)
class WebSearch:
    """One search API with its cache and limits; any number of threads may search it."""

    api: SearchApi
    cache: WebCache
    _: KW_ONLY
    spending: Spending = field(default_factory=Spending)
    limit: HostLimit = field(default_factory=lambda: HostLimit(0.0))
    retry: Retry = field(default_factory=Retry)
    seconds: float = 15.0
    """For one request."""
    threads: int = 8
    """Queries asked at a time."""

    def __post_init__(self) -> None:
        if self.cache.mode == "live":
            self._key()

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        """Per query at most `k` (passage, score), best first; a query that stands twice is asked once.

        Raises RetrievalFailed where a query cannot be answered (for many at once: the first such), ValueError for
        k < 1 and TypeError for a lone string.
        """
        check_search(queries, k)
        asked = [" ".join(query.split()[:_QUERY_WORDS])[:_QUERY_CHARACTERS] for query in queries]
        different = list(dict.fromkeys(asked))
        found = in_parallel(lambda query: self._passages(query, k), different, self.threads)
        by_query = dict(zip(different, found, strict=True))
        return [[(p, 1 / rank) for rank, p in enumerate(by_query[query], start=1)] for query in asked]

    def _passages(self, query: str, k: int) -> list[Passage]:
        if not query:
            return []
        key = {"api": self.api.name, "url": self.api.base_url, "query": query, "k": k}
        stored = self.cache.load(_KIND, key)
        if stored is None:
            results = self.retry(lambda: self._ask(query, k))
            stored = [[p.id, p.title, p.text] for p in _passages(results, k)]
            self.cache.store(_KIND, key, stored)
        return [Passage(*fields) for fields in stored]

    def _ask(self, query: str, k: int) -> list[Result]:
        """One request. Raises TryAgain, or RetrievalFailed where trying again would not help."""
        key = self._key()
        call = self.api.call(query, k, key)
        self.spending.search()
        self.limit.wait(call.address.host)
        reply = self._send(call)
        self._check(reply)
        try:
            body = decompress(reply.body, reply.headers.get("content-encoding", ""), max_bytes=_MAX_BYTES)
            found = self.api.results(read_json(body))
        except (ValueError, WrongAnswer, FetchFailed):
            raise TryAgain(f"{self.api.name} answered with something that is not its format") from None
        # a server that echoes the key must not bring it into traces and cache
        fields = ([redact(text, key) for text in (one.title, one.address, one.snippet)] for one in found)
        return [Result(title=title, address=address, snippet=snippet) for title, address, snippet in fields]

    def _send(self, call: Request) -> Reply:
        call = Request(
            method=call.method,
            address=call.address,
            headers={**call.headers, "Accept-Encoding": ACCEPTED},
            body=call.body,
        )
        try:
            return send(call, resolve=resolve_any, seconds=self.seconds, max_bytes=_MAX_BYTES)
        except FetchFailed as error:
            if error.why in (Why.TIME, Why.NETWORK):
                raise TryAgain(f"{self.api.name}: {error}") from None
            raise RetrievalFailed(f"{self.api.name}: {error}") from None

    def _check(self, reply: Reply) -> None:
        status = reply.status
        answered = f"{self.api.name} answered with status {status}"
        if status == 429 or status >= 500:
            raise TryAgain(answered, wait_s=retry_after(reply.headers.get("retry-after")))
        if status in (401, 403):
            raise RetrievalFailed(f"{answered}: {self._refused}")
        if status != 200:
            raise RetrievalFailed(f"{answered}; check its address {self.api.base_url}")

    @property
    def _refused(self) -> str:
        if self.api.key_variable is None:
            return "it does not let us search; a SearXNG needs `json` among search.formats of its settings.yml"
        return f"check the key in {self.api.key_variable}"

    def _key(self) -> str:
        """The API's key. Raises UserError, without showing it, where it is missing or cannot be one."""
        variable = self.api.key_variable
        if variable is None:
            return ""
        key = read_key(variable)
        if not key:
            raise UserError(f"{self.api.name} needs a key: set the environment variable {variable}")
        return key


def _passages(results: Sequence[Result], k: int) -> list[Passage]:
    """The first `k` results that have an address and a text; of one address, the first."""
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
