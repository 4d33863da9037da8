"""Serper (serper.dev): Google's results; what MEM1 used on the open web.

POST https://google.serper.dev/search   {"q": "capital of Norway", "num": 10}
->  {"organic": [{"title": "Oslo", "link": "https://...", "snippet": "...", "position": 1}]}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mem1.retrieval.web.api import Result, listed, post, read_results
from mem1.retrieval.web.transport import Request


@dataclass(frozen=True)
class Serper:
    base_url: str = "https://google.serper.dev"
    name: ClassVar[str] = "serper"
    key_variable: ClassVar[str | None] = "SERPER_API_KEY"

    def call(self, query: str, k: int, key: str) -> Request:
        return post(self.base_url, "/search", {"q": query, "num": k}, {"X-API-KEY": key})

    def results(self, answer: Any) -> list[Result]:
        return read_results(listed(answer, "organic"), address="link", snippet="snippet")
