"""The port of a search API: how a query is asked, and where the results stand in the answer.

serper.call("capital of Norway", k=10, key="...")   ->  POST https://google.serper.dev/search {"q": ..., "num": 10}
serper.results({"organic": [{"title": "Oslo", "link": "https://...", "snippet": "..."}]})  ->  [Result(...)]

Both are pure, so an API is a file of some thirty lines; sending, waiting and keeping are in search.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlencode

from mem1.errors import UserError
from mem1.retrieval.web.transport import Request
from mem1.retrieval.web.urls import FetchFailed, parse_address


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One result as the API gave it: nothing of it is to be trusted."""

    title: str
    address: str
    snippet: str


class WrongAnswer(Exception):
    """The API answered with something that is not in its format."""


class SearchApi(Protocol):
    """One search API at one base address."""

    @property
    def base_url(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def key_variable(self) -> str | None:
        """Environment variable that holds the key; None: it needs none."""
        ...

    def call(self, query: str, k: int, key: str) -> Request:
        """The request that asks for `k` results."""
        ...

    def results(self, answer: Any) -> list[Result]:
        """The results in an answer, best first. Raises WrongAnswer."""
        ...


def get(base_url: str, path: str, query: Mapping[str, str | int], headers: Mapping[str, str]) -> Request:
    """A GET request. Raises UserError where `base_url` is no address."""
    address = _endpoint(base_url, f"{path}?{urlencode(query, errors='replace')}")
    return Request(method="GET", address=address, headers={"Accept": "application/json", **headers})


def post(base_url: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Request:
    """A POST request of JSON. Raises UserError where `base_url` is no address."""
    headers = {"Accept": "application/json", "Content-Type": "application/json", **headers}
    return Request(
        method="POST", address=_endpoint(base_url, path), headers=headers, body=json.dumps(body).encode("ascii")
    )


def _endpoint(base_url: str, path: str) -> Any:
    try:
        return parse_address(base_url.rstrip("/") + path)
    except FetchFailed as error:
        raise UserError(f"{base_url!r} is not the base address of a search API: {error}") from error


def listed(answer: Any, *path: str) -> list[Mapping[str, Any]]:
    """The list of objects under a path of names; empty where a name is missing. Raises WrongAnswer for other shapes."""
    for name in path:
        if not isinstance(answer, Mapping):
            raise WrongAnswer(f"no object around {name!r}")
        answer = answer.get(name)
        if answer is None:
            return []
    if not isinstance(answer, list) or not all(isinstance(entry, Mapping) for entry in answer):
        raise WrongAnswer(f"{'.'.join(path)} is not a list of objects")
    return answer


def read_results(entries: Iterable[Mapping[str, Any]], *, address: str, snippet: str) -> list[Result]:
    """One result an entry: its "title", and the fields of these names; empty where one is no string."""
    return [
        Result(title=_text(entry, "title"), address=_text(entry, address), snippet=_text(entry, snippet))
        for entry in entries
    ]


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    return value if isinstance(value, str) else ""
