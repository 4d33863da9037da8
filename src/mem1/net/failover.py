"""The addresses of one service that runs several times: taken in turn, those that failed last.

addresses = Addresses(["http://a/retrieve", "http://b/retrieve"], now=time.monotonic)
addresses.order()       a, b          then b, a           then a, b ...
addresses.failed(a)     b, a for a second, twice as long after each further failure in a row
addresses.use([b, c])   from now on those two
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from urllib.parse import urlsplit

_FIRST_REST_S = 1.0
_LONGEST_REST_S = 30.0


def is_http(url: str) -> bool:
    """Whether `url` is an http(s) address with a host; what it says of user, path and query is not looked at."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """What the client needs of time and chance."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random
    """In [0, 1)."""


class Addresses:
    """Safe to use from many threads."""

    def __init__(self, urls: Sequence[str], *, now: Callable[[], float]) -> None:
        self._urls, self._now = tuple(urls), now
        self._turn = count()
        self._lock = threading.Lock()
        self._failures: dict[str, tuple[int, float]] = {}
        """Failures in a row, and the time until which the address rests."""

    def order(self) -> list[str]:
        """All of them, in the order in which to try: each first in its turn, resting ones after the others."""
        with self._lock:
            if not self._urls:
                return []
            start = next(self._turn) % len(self._urls)
            turned = self._urls[start:] + self._urls[:start]
            now = self._now()
            return sorted(turned, key=lambda url: self._failures.get(url, (0, now))[1] > now)

    def use(self, urls: Sequence[str]) -> None:
        """Take these in the place of those before; what is known of one that stays is kept."""
        with self._lock:
            self._urls = tuple(urls)
            self._failures = {url: failures for url, failures in self._failures.items() if url in self._urls}

    def failed(self, url: str, *, rest_s: float = 0.0) -> None:
        """Let it rest, for at least `rest_s`."""
        with self._lock:
            failures, _ = self._failures.get(url, (0, 0.0))
            rest = min(_LONGEST_REST_S, _FIRST_REST_S * 2 ** min(failures, 10))
            self._failures[url] = (failures + 1, self._now() + max(rest, rest_s))

    def answered(self, url: str) -> None:
        with self._lock:
            self._failures.pop(url, None)
