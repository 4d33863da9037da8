"""Search APIs: how each one is queried, and where its answer holds the results.

SERPER.call("capital of Norway", k=10, key="...")   ->  POST https://google.serper.dev/search {"q": ..., "num": 10}
SERPER.results({"organic": [{"title": "Oslo", "link": "https://...", "snippet": "..."}]})  ->  [SearchResult(...)]

    api       request                    answer
    serper    POST /search               {"organic": [{"title": ..., "link": ..., "snippet": ...}]}
    brave     GET /res/v1/web/search     {"web": {"results": [{"title": ..., "url": ..., "description": ...}]}}
    tavily    POST /search               {"results": [{"title": ..., "url": ..., "content": ...}]}
    searxng   GET /search                {"results": [{"title": ..., "url": ..., "content": ...}]}

Both methods are pure; search.py sends, waits and caches. To add an API, write a `JsonApi` with its own fields, or any
`SearchApi`, and name it in a recipe: tasks.api = "package.module:NAME".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol
from urllib.parse import urlencode

from mem1.errors import UserError
from mem1.registry import register
from mem1.retrieval.web.transport import HttpRequest
from mem1.retrieval.web.urls import FetchFailed, parse_address


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """One search result as the API returned it; none of it can be trusted."""

    title: str
    address: str
    snippet: str


class WrongAnswer(Exception):
    """The API's answer does not have its documented format."""


class SearchApi(Protocol):
    """One search API at one base address."""

    @property
    def name(self) -> str: ...

    @property
    def base_url(self) -> str: ...

    @property
    def key_variable(self) -> str | None:
        """Environment variable that holds the key; None: the API needs no key."""
        ...

    def at(self, base_url: str) -> SearchApi:
        """The same API at another base address."""
        ...

    def call(self, query: str, k: int, key: str) -> HttpRequest:
        """The request for `k` results."""
        ...

    def results(self, answer: Any) -> list[SearchResult]:
        """The results in a parsed answer, best first. Raises WrongAnswer."""
        ...


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
    key_header: tuple[str, str] | None = None
    """Name of the header that carries the key, and the text in front of the key."""
    listed_under: tuple[str, ...] = ("results",)
    """Names that lead to the list of results in the answer."""
    address: str = "url"
    """Name of a result's address."""
    snippet: str = "content"
    """Name of a result's snippet."""

    def at(self, base_url: str) -> JsonApi:
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
        """One result per entry; a field that is missing or not a string becomes empty. Raises WrongAnswer."""
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
SEARXNG = JsonApi(
    name="searxng", base_url="http://localhost:8080", path="/search", method="GET", fixed={"format": "json"}
)
"""SearXNG (docs.searxng.org) on your own server, with `json` among `search.formats` of its settings; needs no key."""
APIS: dict[str, SearchApi] = {api.name: api for api in (SERPER, BRAVE, TAVILY, SEARXNG)}


def search_api(name: str, base_url: str | None = None) -> SearchApi:
    """The API with this registered name, at its own address or at `base_url`. Raises UserError for an unknown name."""
    api: SearchApi = register.search_api.get(name)
    api = api if base_url is None else api.at(base_url)
    api.call("", 1, "")  # finds a wrong base address now instead of in the middle of a run
    return api
