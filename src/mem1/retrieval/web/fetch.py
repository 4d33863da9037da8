"""Fetching a page from the open web, safely, where robots.txt (RFC 9309) allows it.

Fetcher().fetch("http://example.org")
->  Fetched(address="https://example.org/", content_type="text/html", text="<!doctype html>...")
Fetcher().fetch("http://169.254.169.254/latest/meta-data")
->  FetchFailed: 169.254.169.254 is not an address of the public internet
Robots(fetcher).check(parse_address("https://example.org/private/x"))
->  FetchFailed: robots.txt of example.org asks programs to stay away

Redirects are followed by hand, and every address on the way is checked like the first: its spelling here, the IP
addresses of its host when connecting. Requests carry no cookies, no referrer and no keys.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from urllib.parse import urljoin
from urllib.robotparser import RobotFileParser

from pydantic import Field

import mem1
from mem1.configuration import Config
from mem1.retrieval.web.transport import (
    ACCEPTED,
    HttpReply,
    HttpRequest,
    Resolve,
    decode,
    decompress,
    public_only,
    resolve_any,
    send,
)
from mem1.retrieval.web.urls import Address, FetchFailed, Why, check_public, parse_address

AGENT = "mem1"
"""Our user agent, by which robots.txt can address us."""
PAGES = frozenset({"text/html", "application/xhtml+xml", "text/plain"})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class FetchLimits(Config):
    """Limits on fetching one page."""

    megabytes: float = Field(default=3.0, gt=0)
    """Largest size, compressed and decompressed."""
    seconds: float = Field(default=20.0, gt=0)
    """Longest time, including redirects."""
    redirects: int = Field(default=5, ge=0)
    """Most redirects that are followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A page as the server sent it."""

    address: str
    """Final address, after redirects."""
    content_type: str
    """In lower case, without parameters."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetcher:
    """Fetches pages; immutable, so any number of threads may use it."""

    limits: FetchLimits = field(default_factory=FetchLimits)
    ports: Collection[int] = (80, 443)
    resolve: Resolve = resolve_any
    """Host name -> its IP addresses; each one is checked."""
    allow_loopback: bool = False
    """For tests: permits servers on this machine, on any port."""

    def parse(self, text: str) -> Address:
        """Parse an address. Raises FetchFailed where it must not be fetched."""
        address = parse_address(text)
        check_public(address, ports=self.ports, allow_loopback=self.allow_loopback)
        return address

    def fetch(
        self,
        text: str,
        *,
        content_types: Collection[str] = PAGES,
        before: Callable[[Address], None] = lambda address: None,
    ) -> Fetched:
        """The page at an address. Raises FetchFailed with the reason where there is none.

        `before` is called with each address, including those of redirects, before it is requested; it may wait, and
        may raise FetchFailed to forbid the request.
        """
        address, seconds = self.parse(text), self.limits.seconds
        seen: set[str] = set()
        while True:
            if len(seen) > self.limits.redirects:
                raise FetchFailed(Why.REDIRECTS, f"it redirects more than {self.limits.redirects} times")
            seen.add(str(address))
            before(address)
            start = time.monotonic()
            reply = self._ask(address, seconds)
            seconds -= time.monotonic() - start
            if reply.status not in _REDIRECTS or not reply.headers.get("location"):
                return self._fetched(address, reply, content_types)
            address = self.parse(urljoin(str(address), reply.headers["location"]))
            if str(address) in seen:
                raise FetchFailed(Why.REDIRECTS, "it redirects in a circle")

    def _ask(self, address: Address, seconds: float) -> HttpReply:
        headers = {
            "User-Agent": f"{AGENT}/{mem1.__version__}",
            "Accept": "text/html, application/xhtml+xml, text/plain;q=0.9",
            "Accept-Encoding": ACCEPTED,
        }
        checked = public_only(self.resolve, allow_loopback=self.allow_loopback)
        request = HttpRequest(method="GET", address=address, headers=headers)
        return send(request, resolve=checked, seconds=max(seconds, 0.0), max_bytes=self._max_bytes)

    def _fetched(self, address: Address, reply: HttpReply, content_types: Collection[str]) -> Fetched:
        if reply.status != 200:
            raise FetchFailed(Why.STATUS, f"the server answered with status {reply.status}", status=reply.status)
        declared = reply.headers.get("content-type", "")
        kind = declared.partition(";")[0].strip().lower()
        if kind not in content_types:
            named = "a PDF file" if kind == "application/pdf" else kind[:60] or "a file of unnamed type"
            raise FetchFailed(Why.CONTENT_TYPE, f"it is {named}, not a page of text")
        body = decompress(reply.body, reply.headers.get("content-encoding", ""), max_bytes=self._max_bytes)
        return Fetched(address=str(address), content_type=kind, text=decode(body, declared))

    @property
    def _max_bytes(self) -> int:
        return int(self.limits.megabytes * 1e6)


_LONGEST = 500 * 1024
"""Characters of robots.txt that are read, the minimum of RFC 9309."""
_AGE_S = 24 * 3600.0
_NOTHING_ALLOWED = ("User-agent: *", "Disallow: /")


@dataclass(frozen=True, slots=True)
class Robots:
    """The rules of every site visited so far, kept for a day. Thread-safe.

    A site without robots.txt (status 4xx) allows everything; one whose file cannot be read at the moment (5xx, 429, no
    connection) allows nothing. Python's own parser reads the rules: the first that matches counts, and `*` within a
    path has no special meaning.
    """

    fetcher: Fetcher
    clock: Callable[[], float] = time.monotonic
    _rules: dict[str, tuple[float, RobotFileParser]] = field(default_factory=dict, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def check(self, address: Address, *, before: Callable[[Address], None] = lambda address: None) -> None:
        """Raises FetchFailed (ROBOTS) where the site asks programs not to read `address`.

        `before` is called before robots.txt itself is requested, as in `Fetcher.fetch`.
        """
        with self._lock:
            read_at, rules = self._rules.get(address.origin, (0.0, None))
        if rules is None or self.clock() - read_at > _AGE_S:
            rules = self._read(address, before)
            with self._lock:
                self._rules[address.origin] = (self.clock(), rules)
        if not rules.can_fetch(AGENT, str(address)):
            raise FetchFailed(Why.ROBOTS, f"robots.txt of {address.host} asks programs to stay away")

    def _read(self, address: Address, before: Callable[[Address], None]) -> RobotFileParser:
        lines: Sequence[str] = ()
        try:
            fetched = self.fetcher.fetch(f"{address.origin}/robots.txt", content_types={"text/plain"}, before=before)
            lines = fetched.text[:_LONGEST].splitlines()
        except FetchFailed as error:
            missing = error.why is Why.CONTENT_TYPE or (error.status is not None and 400 <= error.status < 500)
            if not missing or error.status == 429:
                lines = _NOTHING_ALLOWED
        rules = RobotFileParser()
        try:
            rules.parse(lines)
        except ValueError:  # a "number" in the file that the parser fails to convert
            rules = RobotFileParser()
            rules.parse(_NOTHING_ALLOWED)
        return rules
