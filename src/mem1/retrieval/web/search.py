"""Searching the web through an API, behind the port `Retriever`.

WebSearch(search_api("serper"), WebCache("web.sqlite")).search(["capital of Norway"], k=10)
->  [[(Passage("https://en.wikipedia.org/wiki/Oslo", "Oslo", "Oslo is the capital of ..."), 1.0), ...]]

    api       request                    answer
    serper    POST /search               {"organic": [{"title": ..., "link": ..., "snippet": ...}]}
    brave     GET /res/v1/web/search     {"web": {"results": [{"title": ..., "url": ..., "description": ...}]}}
    tavily    POST /search               {"results": [{"title": ..., "url": ..., "content": ...}]}
    searxng   GET /search                {"results": [{"title": ..., "url": ..., "content": ...}]}

A passage's id is the address, its text the snippet, its score 1 / rank, since the APIs return no comparable scores. The
key is read from the environment for each request and stored nowhere. To add an API, write a `JsonApi` with its own
fields, or a subclass with its own `call` and `results`, and name it in a recipe: tasks.api = "package.module:NAME".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from typing import Any, Literal
from urllib.parse import quote_plus, urlencode

from mem1.errors import UserError
from mem1.net.exchange import TryFailed, read_json, read_key, redact, retry_after
from mem1.net.failover import HostLimit, Retry
from mem1.net.spending import LimitReached, Spending, Usage, WebBudget
from mem1.net.threads import in_parallel
from mem1.records import Passage
from mem1.registry import register
from mem1.retrieval.base import Result, RetrievalFailed, check_search
from mem1.retrieval.web.cache import WebCache
from mem1.retrieval.web.transport import ACCEPTED, HttpReply, HttpRequest, decompress, resolve_any, send
from mem1.retrieval.web.urls import FetchFailed, Why, parse_address


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """One search result as the API returned it; none of it can be trusted."""

    title: str
    address: str
    snippet: str


class WrongAnswer(Exception):
    """The API's answer does not have its documented format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonApi:
    """A search API that differs from the others only in these names."""

    name: str
    base_url: str
    path: str
    method: Literal["GET", "POST"]
    """GET sends the parameters in the address, POST as a JSON object."""
    query: str = "q"
    """Name of the parameter that holds the query."""
    count: str | None = None
    """Name of the parameter that holds the number of results; None: the API has none."""
    most: int | None = None
    """Largest number of results that the API accepts per request; None: any."""
    fixed: Mapping[str, str] = field(default_factory=dict)
    """Parameters that are the same in every request."""
    key_variable: str | None = None
    """Environment variable that holds the key; None: the API needs no key."""
    key_header: tuple[str, str] | None = None
    """Name of the header that carries the key, and the text in front of the key."""
    listed_under: tuple[str, ...] = ("results",)
    """Names that lead to the list of results in the answer."""
    address: str = "url"
    """Name of a result's address."""
    snippet: str = "content"
    """Name of a result's snippet."""

    def at(self, base_url: str) -> JsonApi:
        """The same API at another base address."""
        return replace(self, base_url=base_url)

    def call(self, query: str, k: int, key: str) -> HttpRequest:
        """The request for `k` results. Raises UserError where `base_url` is not a web address."""
        parameters: dict[str, str | int] = {self.query: query, **self.fixed}
        if self.count is not None:
            parameters[self.count] = k if self.most is None else min(k, self.most)
        headers = {"Accept": "application/json"}
        if self.key_header is not None:
            header, before = self.key_header
            headers[header] = before + key
        path, body = self.path, b""
        if self.method == "GET":
            path += f"?{urlencode(parameters, errors='replace')}"
        else:
            headers["Content-Type"] = "application/json"
            body = json.dumps(parameters).encode("ascii")
        try:
            address = parse_address(self.base_url.rstrip("/") + path)
        except FetchFailed as error:
            raise UserError(f"{self.base_url!r} is not the base address of a search API: {error}") from error
        return HttpRequest(method=self.method, address=address, headers=headers, body=body)

    def results(self, answer: Any) -> list[SearchResult]:
        """One result per entry; a field that is missing or not a string becomes empty.

        Raises WrongAnswer, or TryFailed where another try may find more.
        """
        for name in self.listed_under:
            if not isinstance(answer, Mapping):
                raise WrongAnswer(f"no object around {name!r}")
            answer = answer.get(name)
            if answer is None:
                return []
        if not isinstance(answer, list) or not all(isinstance(entry, Mapping) for entry in answer):
            raise WrongAnswer(f"{'.'.join(self.listed_under)} is not a list of objects")
        return [
            SearchResult(
                title=_text(entry, "title"), address=_text(entry, self.address), snippet=_text(entry, self.snippet)
            )
            for entry in answer
        ]


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    return value if isinstance(value, str) else ""


SERPER = JsonApi(
    name="serper",
    base_url="https://google.serper.dev",
    path="/search",
    method="POST",
    count="num",
    key_variable="SERPER_API_KEY",
    key_header=("X-API-KEY", ""),
    listed_under=("organic",),
    address="link",
    snippet="snippet",
)
"""Google's results (serper.dev); used by MEM1 on the open web."""
BRAVE = JsonApi(
    name="brave",
    base_url="https://api.search.brave.com",
    path="/res/v1/web/search",
    method="GET",
    count="count",
    most=20,
    fixed={"text_decorations": "false"},
    key_variable="BRAVE_API_KEY",
    key_header=("X-Subscription-Token", ""),
    listed_under=("web", "results"),
    snippet="description",
)
"""Brave Search (api.search.brave.com)."""
TAVILY = JsonApi(
    name="tavily",
    base_url="https://api.tavily.com",
    path="/search",
    method="POST",
    query="query",
    count="max_results",
    most=20,
    key_variable="TAVILY_API_KEY",
    key_header=("Authorization", "Bearer "),
)
"""Tavily (tavily.com)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearxngApi(JsonApi):
    """SearXNG, whose answer has no results both where there are none and where the engines behind it fail."""

    def results(self, answer: Any) -> list[SearchResult]:
        """Those of `JsonApi`. Raises TryFailed where none were found and an engine failed, else WrongAnswer."""
        found = super(SearxngApi, self).results(answer)  # a class with slots is made twice: `super()` has the first
        if not found and answer.get("unresponsive_engines"):
            raise TryFailed(f"{self.name} found nothing, and some of its engines failed")
        if answer.get("results") is None:
            raise WrongAnswer("no results")
        return found


SEARXNG = SearxngApi(
    name="searxng", base_url="http://localhost:8080", path="/search", method="GET", fixed={"format": "json"}
)
"""SearXNG (docs.searxng.org) on your own server, with `json` among `search.formats` of its settings; needs no key."""
APIS: dict[str, JsonApi] = {api.name: api for api in (SERPER, BRAVE, TAVILY, SEARXNG)}


def search_api(name: str, base_url: str | None = None) -> JsonApi:
    """The API with this registered name, at its own address or at `base_url`. Raises UserError for an unknown name."""
    api: JsonApi = register.search_api.get(name)
    api = api if base_url is None else api.at(base_url)
    api.call("", 1, "")  # finds a wrong base address now instead of in the middle of a run
    return api


_QUERY_WORDS, _QUERY_CHARACTERS = 50, 400
"""Longest query that every API accepts (Brave's limits); the rest is cut off."""
_QUERY_WRITTEN = 1500
"""Characters of a query in an address, which may have `urls.LONGEST`."""
_TITLE_CHARACTERS, _SNIPPET_CHARACTERS = 300, 2000
_MAX_BYTES = 4_000_000
_KIND = "search"


@dataclass(frozen=True, slots=True)
class WebSearch:
    """One search API with its cache and limits; thread-safe."""

    api: JsonApi
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

        Raises RetrievalFailed for the first query that cannot be answered.
        """
        check_search(queries, k)
        sent = [self._sent(query) for query in queries]
        different = list(dict.fromkeys(sent))
        found = in_parallel(lambda query: self._passages(query, k), different, self.threads)
        by_query = dict(zip(different, found, strict=True))
        return [[(p, 1 / rank) for rank, p in enumerate(by_query[query], start=1)] for query in sent]

    def _sent(self, query: str) -> str:
        """The part of a query that the API takes; in an address, a letter may take many characters."""
        part = " ".join(query.split()[:_QUERY_WORDS])[:_QUERY_CHARACTERS]
        while self.api.method == "GET" and (written := len(quote_plus(part, errors="replace"))) > _QUERY_WRITTEN:
            part = part[: len(part) * _QUERY_WRITTEN // written]
        return part

    def _passages(self, query: str, k: int) -> list[Passage]:
        if not query:
            return []
        asked = _digest(self.api.call(query, k, ""))
        key = {"api": self.api.name, "url": self.api.base_url, "query": query, "k": k, "request": asked}
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
        return [SearchResult(**{name: redact(text, key) for name, text in asdict(one).items()}) for one in found]

    def _send(self, call: HttpRequest) -> HttpReply:
        call = replace(call, headers={**call.headers, "Accept-Encoding": ACCEPTED})
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
            if self.api.key_variable is not None:
                raise RetrievalFailed(f"{answered}: check the key in {self.api.key_variable}")
            advice = "SearXNG needs `json` among search.formats in its settings.yml"
            raise RetrievalFailed(f"{answered}: it refuses the search; {advice}")
        if status != 200:
            raise RetrievalFailed(f"{answered}; check its address {self.api.base_url}")

    def _key(self) -> str:
        """The API's key. Raises UserError, without showing it, where it is missing or malformed."""
        variable = self.api.key_variable
        return "" if variable is None else read_key(variable, needed_by=self.api.name)


def _digest(call: HttpRequest) -> str:
    """What tells a request apart from others, as a hash, since a parameter may be secret; 32 hexadecimal digits."""
    whole = [call.method, str(call.address), dict(call.headers), call.body.hex()]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode("ascii")).hexdigest()[:32]


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
