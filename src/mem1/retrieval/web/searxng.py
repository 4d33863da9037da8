"""SearXNG (docs.searxng.org), on a server of one's own; it needs no key, but `json` among `search.formats`.

GET http://localhost:8080/search?q=capital+of+Norway&format=json
->  {"results": [{"title": "Oslo", "url": "https://...", "content": "..."}]}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mem1.retrieval.web.api import Result, get, listed, read_results
from mem1.retrieval.web.transport import Request


@dataclass(frozen=True)
class SearXNG:
    base_url: str = "http://localhost:8080"
    name: ClassVar[str] = "searxng"
    key_variable: ClassVar[str | None] = None

    def call(self, query: str, k: int, key: str) -> Request:
        return get(self.base_url, "/search", {"q": query, "format": "json"}, {})

    def results(self, answer: Any) -> list[Result]:
        return read_results(listed(answer, "results"), address="url", snippet="content")
