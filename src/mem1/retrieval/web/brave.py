"""Brave Search (api.search.brave.com), at most 20 results a request.

GET https://api.search.brave.com/res/v1/web/search?q=capital+of+Norway&count=10&text_decorations=false
->  {"web": {"results": [{"title": "Oslo", "url": "https://...", "description": "..."}]}}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mem1.retrieval.web.api import Result, get, listed, read_results
from mem1.retrieval.web.transport import Request

_MOST = 20


@dataclass(frozen=True)
class Brave:
    base_url: str = "https://api.search.brave.com"
    name: ClassVar[str] = "brave"
    key_variable: ClassVar[str | None] = "BRAVE_API_KEY"

    def call(self, query: str, k: int, key: str) -> Request:
        asked = {"q": query, "count": min(k, _MOST), "text_decorations": "false"}
        return get(self.base_url, "/res/v1/web/search", asked, {"X-Subscription-Token": key})

    def results(self, answer: Any) -> list[Result]:
        return read_results(listed(answer, "web", "results"), address="url", snippet="description")
