"""Tavily (tavily.com), at most 20 results a request.

POST https://api.tavily.com/search   {"query": "capital of Norway", "max_results": 10}
->  {"results": [{"title": "Oslo", "url": "https://...", "content": "...", "score": 0.9}]}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mem1.retrieval.web.api import Result, listed, post, read_results
from mem1.retrieval.web.transport import Request

_MOST = 20


@dataclass(frozen=True)
class Tavily:
    base_url: str = "https://api.tavily.com"
    name: ClassVar[str] = "tavily"
    key_variable: ClassVar[str | None] = "TAVILY_API_KEY"

    def call(self, query: str, k: int, key: str) -> Request:
        asked = {"query": query, "max_results": min(k, _MOST)}
        return post(self.base_url, "/search", asked, {"Authorization": f"Bearer {key}"})

    def results(self, answer: Any) -> list[Result]:
        return read_results(listed(answer, "results"), address="url", snippet="content")
