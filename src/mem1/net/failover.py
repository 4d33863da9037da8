"""When to send a request again, and to which address.

addresses = Addresses(["http://a/retrieve", "http://b/retrieve"], now=time.monotonic)
addresses.order()               a, b          then b, a           then a, b ...; the least busy ones first
addresses.failed(a)             b, a for a second; twice as long after each further failure in a row
addresses.first_answer(ask)     ask("http://b/retrieve"); where that fails, ask("http://a/retrieve")

Retry(tries=4)(call)            after a TryFailed that may pass: waits, each time about twice as long, and calls again

HostLimit(1.0).wait("en.wikipedia.org")     sleeps until one second after the last request to that host
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar
from urllib.parse import urlsplit

from mem1.net.exchange import TryFailed

T = TypeVar("T")
_FIRST_REST_S, _LONGEST_REST_S = 1.0, 30.0


def is_http(url: str) -> bool:
    """Whether `url` is an http(s) address with a host. User, path and query are not checked."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Time and chance as clients use them; tests replace it."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random
    """Uniform in [0, 1)."""


CLOCK = Clock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Exponential backoff with full jitter: a random wait up to a limit that doubles with each failure."""

    tries: int | None = 4
    """Most calls; None: any number before the deadline."""
    deadline_s: float = float("inf")
    """Time after the first call beyond which no other call begins."""
    first_wait_s: float = 2.0
    """Longest random wait after the first failure."""
    longest_wait_s: float = 60.0
    """Longest random wait after any failure."""
    longest_server_wait_s: float = 60.0
    """A server that asks for a longer wait is given up at once."""
    clock: Clock = CLOCK

    def __call__(self, call: Callable[[], T]) -> T:
        """The result of `call`. Raises TryFailed, with its last failure and why there is no further try."""
        started = self.clock.now()
        for failures in count():
            try:
                return call()
            except TryFailed as failure:
                if failure.for_good:
                    raise
                if failures + 1 == self.tries:
                    raise TryFailed(f"{failure}; tried {self.tries} times") from failure
                if failure.wait_s > self.longest_server_wait_s:
                    raise TryFailed(f"{failure}; it asks for a wait of {failure.wait_s:.0f} s") from failure
                longest = min(self.longest_wait_s, self.first_wait_s * 2 ** min(failures, 30))
                # random also on top of the server's own wait, so that refused clients do not all return at once
                wait = failure.wait_s + longest * self.clock.random()
                if self.clock.now() - started + wait > self.deadline_s:
                    raise TryFailed(f"no answer within {self.deadline_s:g} s: {failure}") from failure
                self.clock.sleep(wait)
        raise AssertionError("count() ends")


class Addresses:
    """The addresses of one service that runs several times. Thread-safe."""

    def __init__(
        self, urls: Sequence[str], *, now: Callable[[], float], until_any: Callable[[], None] = lambda: None
    ) -> None:
        """`until_any` waits, before each request, for an address to be there; it may raise what ends the request."""
        self._urls, self._now, self._until_any = tuple(urls), now, until_any
        self._turn = count()
        self._lock = threading.Lock()
        self._failures: dict[str, tuple[int, float]] = {}
        """Failures in a row, and the time until which the address rests."""
        self._open: Counter[str] = Counter()
        """Number of requests under way."""

    def first_answer(self, ask: Callable[[str], T], *, path: str = "") -> T:
        """The result of `ask(address + path)` for the first address that answers.

        An `ask` that raises ValueError or RecursionError got an answer that cannot be read, and failed as well.
        Raises TryFailed naming all failures, which is for good only where every address has failed for good; status and
        detail are those of the first refusal.
        """
        self._until_any()
        failures: list[TryFailed] = []
        for url in self.order():
            try:
                with self._counted(url):
                    answer = ask(url + path)
            except (TryFailed, ValueError, RecursionError) as error:
                failure = error if isinstance(error, TryFailed) else TryFailed(str(error))
                self.failed(url, rest_s=failure.wait_s)
                failures.append(failure.named(f"{url}{path}: {failure}"))
            else:
                self.answered(url)
                return answer
        refusal = next((failure for failure in failures if failure.status is not None), None)
        raise TryFailed(
            "; ".join(map(str, failures)) or "there is no server to ask",
            wait_s=min((failure.wait_s for failure in failures), default=0.0),
            for_good=bool(failures) and all(failure.for_good for failure in failures),
            status=None if refusal is None else refusal.status,
            detail="" if refusal is None else refusal.detail,
        )

    def order(self) -> list[str]:
        """All addresses in the order in which to try them.

        Those with the fewest requests under way come first, so that a slow server gets fewer; equals take turns.
        Resting ones come last.
        """
        with self._lock:
            if not self._urls:
                return []
            start = next(self._turn) % len(self._urls)
            turned = self._urls[start:] + self._urls[:start]
            now = self._now()
            return sorted(turned, key=lambda url: (self._failures.get(url, (0, now))[1] > now, self._open[url]))

    @contextmanager
    def _counted(self, url: str) -> Iterator[None]:
        """A request to the address is under way inside the block."""
        with self._lock:
            self._open[url] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open[url] -= 1

    def use(self, urls: Sequence[str]) -> None:
        """Replace the addresses; one that stays keeps its record of failures."""
        with self._lock:
            self._urls = tuple(urls)
            self._failures = {url: failures for url, failures in self._failures.items() if url in self._urls}

    def failed(self, url: str, *, rest_s: float = 0.0) -> None:
        """Let an address rest, for at least `rest_s`."""
        with self._lock:
            failures, _ = self._failures.get(url, (0, 0.0))
            rest = min(_LONGEST_REST_S, _FIRST_REST_S * 2 ** min(failures, 10))
            self._failures[url] = (failures + 1, self._now() + max(rest, rest_s))

    def answered(self, url: str) -> None:
        """Forget the failures of an address."""
        with self._lock:
            self._failures.pop(url, None)


@dataclass(slots=True)
class HostLimit:
    """Keeps requests to one host at least `seconds_between` apart, whichever threads make them."""

    seconds_between: float
    clock: Clock = CLOCK
    _next: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float), repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def wait(self, host: str) -> None:
        """Reserve the host's next free moment and sleep until then."""
        with self._lock:
            now = self.clock.now()
            moment = max(now, self._next[host])
            self._next[host] = moment + self.seconds_between
        if moment > now:
            self.clock.sleep(moment - now)
