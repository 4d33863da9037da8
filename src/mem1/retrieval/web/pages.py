"""Opening pages of the open web: fetched safely, where robots.txt (RFC 9309) allows it, as readable text in pieces.

Fetcher().fetch("http://example.org")
->  Fetched(address="https://example.org/", content_type="text/html", text="<!doctype html>...")
PageReader(cache=WebCache("web.sqlite")).open("https://en.wikipedia.org/wiki/Oslo")
->  OpenedPage(address="https://en.wikipedia.org/wiki/Oslo", title="Oslo", pieces=("Oslo is the capital of ...", ...))
reader.open("http://169.254.169.254/latest/meta-data")
->  OpenedPage(address=..., failed="169.254.169.254 is not an address of the public internet")
pieces("One two. Three four. Five.", 16)    ->  ["One two.", "Three four.", "Five."]

Redirects are followed by hand, and every address on the way is checked like the first: its spelling here, the IP
addresses of its host when connecting. Requests carry no cookies, no referrer and no keys. A page that cannot be opened
is an ordinary result: the model chose the address and can choose another one.
"""

from __future__ import annotations

import re
import string
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass, field
from typing import Any
from urllib.parse import quote, urljoin

from pydantic import Field

from mem1.configuration import Config
from mem1.errors import UserError
from mem1.net.failover import HostLimit
from mem1.net.spending import LimitReached, Spending, Usage, WebBudget
from mem1.retrieval.base import RetrievalFailed
from mem1.retrieval.extraction import LibraryMissing, Unreadable, extract
from mem1.retrieval.web import transport
from mem1.retrieval.web.cache import WebCache
from mem1.retrieval.web.robots import NOTHING, Rules, read_rules
from mem1.retrieval.web.urls import Address, FetchFailed, Why, check_public, parse_address
from mem1.sanitize import sound_text
from mem1.version import __version__

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
    resolve: transport.Resolve = transport.resolve_any
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
        content_types: Collection[str] | None = PAGES,
        before: Callable[[Address], None] = lambda address: None,
    ) -> Fetched:
        """The page at an address. Raises FetchFailed with the reason where there is none.

        `content_types` are those that are read; None: all, also one that is not named.
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
            # headers are read as Latin-1; as browsers do, bytes that an address cannot hold are quoted as they are
            target = quote(reply.headers["location"].encode("latin-1"), safe=string.punctuation)
            address = self.parse(urljoin(str(address), target))
            if str(address) in seen:
                raise FetchFailed(Why.REDIRECTS, "it redirects in a circle")

    def _ask(self, address: Address, seconds: float) -> transport.HttpReply:
        headers = {
            "User-Agent": f"{AGENT}/{__version__}",
            "Accept": "text/html, application/xhtml+xml, text/plain;q=0.9",
            "Accept-Encoding": transport.ACCEPTED,
        }
        checked = transport.public_only(self.resolve, allow_loopback=self.allow_loopback)
        request = transport.HttpRequest(method="GET", address=address, headers=headers)
        return transport.send(request, resolve=checked, seconds=max(seconds, 0.0), max_bytes=self._max_bytes)

    def _fetched(self, address: Address, reply: transport.HttpReply, content_types: Collection[str] | None) -> Fetched:
        if reply.status != 200:
            raise FetchFailed(Why.STATUS, f"the server answered with status {reply.status}", status=reply.status)
        declared = reply.headers.get("content-type", "")
        kind = declared.partition(";")[0].strip().lower()
        if content_types is not None and kind not in content_types:
            named = "a PDF file" if kind == "application/pdf" else kind[:60] or "a file of unnamed type"
            raise FetchFailed(Why.CONTENT_TYPE, f"it is {named}, not a page of text")
        body = transport.decompress(reply.body, reply.headers.get("content-encoding", ""), max_bytes=self._max_bytes)
        return Fetched(address=str(address), content_type=kind, text=transport.decode(body, declared))

    @property
    def _max_bytes(self) -> int:
        return int(self.limits.megabytes * 1e6)


_LONGEST = 500 * 1024
"""Characters of robots.txt that are read, the minimum of RFC 9309."""
_AGE_S, _FAILED_AGE_S = 24 * 3600.0, 300.0


@dataclass(frozen=True, slots=True)
class Robots:
    """The rules of every site visited so far, kept for a day. Thread-safe.

    A site without robots.txt (status 4xx) allows everything; one whose file cannot be read (5xx, 429, no connection)
    allows nothing, and is asked again after some minutes.
    """

    fetcher: Fetcher
    clock: Callable[[], float] = time.monotonic
    _rules: dict[str, tuple[float, Rules]] = field(default_factory=dict, init=False, repr=False)
    """Per site until when its rules are kept, and the rules."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def check(self, address: Address, *, before: Callable[[Address], None] = lambda address: None) -> None:
        """Raises FetchFailed (ROBOTS) where the site asks programs not to read `address`.

        `before` is called before robots.txt itself is requested, as in `Fetcher.fetch`.
        """
        with self._lock:
            until, rules = self._rules.get(address.origin, (0.0, None))
        if rules is None or self.clock() > until:
            rules, age_s = self._read(address, before)
            with self._lock:
                self._rules[address.origin] = (self.clock() + age_s, rules)
        if not rules.allow(address.target):
            raise FetchFailed(Why.ROBOTS, f"robots.txt of {address.host} asks programs to stay away")

    def _read(self, address: Address, before: Callable[[Address], None]) -> tuple[Rules, float]:
        try:
            fetched = self.fetcher.fetch(f"{address.origin}/robots.txt", content_types=None, before=before)
        except FetchFailed as error:
            missing = error.status is not None and 400 <= error.status < 500 and error.status != 429
            return (Rules(), _AGE_S) if missing else (NOTHING, _FAILED_AGE_S)
        return read_rules(fetched.text[:_LONGEST], agent=AGENT), _AGE_S


SECONDS = 10.0
"""Time limit for extracting the text of one page."""
_KIND = "page"
_TITLE_CHARACTERS = 300
_SENTENCE_END = re.compile(r"[.!?…][\"')\]]? |[\u3002\uff01\uff1f]")


def read_page(fetched: Fetched) -> tuple[str, str]:
    """(title, text) without menus, advertisements and comments, white space folded; the title may be empty.

    Raises FetchFailed (UNREADABLE) where there is no text, UserError where the extraction library is not installed.
    """
    title, text = ("", fetched.text) if fetched.content_type == "text/plain" else _extract(fetched.text)
    title, text = (" ".join(one.split()) for one in (title, text))
    if not text:
        raise FetchFailed(Why.UNREADABLE, "no readable text was found in it")
    return title, text


def _extract(html: str) -> tuple[str, str]:
    try:
        return extract("page", sound_text(html).encode(), seconds=SECONDS)
    except LibraryMissing as error:
        raise UserError(
            f"reading web pages needs the package trafilatura ({error}); install it: pip install 'mem1-agents[web]'"
        ) from error
    except Unreadable as error:
        # the library parses hostile input; a page that makes it fail counts as a page without text
        raise FetchFailed(Why.UNREADABLE, f"its text could not be extracted: {error}") from error


def pieces(text: str, characters: int) -> list[str]:
    """Cut a text into pieces of at most `characters`: after a sentence, else at a blank, else anywhere.

    Every cut lies in the second half of its piece, so there are at most twice as many pieces as needed.
    """
    found = []
    start = 0
    while len(text) - start > characters:
        # include a blank that directly follows the longest piece, since a cut there is best
        room = characters + (text[start + characters] == " ")
        window = text[start : start + room]
        ends = [match.end() for match in _SENTENCE_END.finditer(window, characters // 2)]
        cut = ends[-1] if ends else window.rfind(" ", characters // 2) + 1 or room
        found.append(window[:cut].strip())
        start += cut
    return [piece for piece in (*found, text[start:].strip()) if piece]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedPage:
    """A page, or the reason why it could not be opened."""

    address: str
    """The requested address, in its canonical spelling."""
    title: str = ""
    pieces: tuple[str, ...] = ()
    failed: str | None = None
    """None: the page was opened and has at least one piece."""


@dataclass(frozen=True, slots=True)
class PageReader:
    """Opens pages, each once while the cache holds it; thread-safe."""

    cache: WebCache
    _: KW_ONLY
    fetcher: Fetcher = field(default_factory=Fetcher)
    spending: Spending = field(default_factory=lambda: Spending(WebBudget()))
    limit: HostLimit = field(default_factory=lambda: HostLimit(1.0))
    respect_robots: bool = True
    piece_characters: int = 2000
    """Longest piece of a page, in characters."""
    _robots: Robots = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_robots", Robots(self.fetcher))

    def open(self, text: str) -> OpenedPage:
        """The page at an address.

        Raises RetrievalFailed where the budget is spent, or a run without a network needs a page that is not cached.
        """
        try:
            address = self.fetcher.parse(text)
        except FetchFailed as error:
            return OpenedPage(address=text, failed=str(error))
        key = {"address": str(address)}
        stored: Any = self.cache.load(_KIND, key)
        if stored is None or (stored["failed"] is not None and self.cache.mode == "live"):
            read = self._read(address)  # a page that failed earlier may work now
            earlier = None if read["failed"] is None else self.cache.kept(_KIND, key)
            if earlier is None or earlier["failed"] is not None:
                self.cache.store(_KIND, key, read)
                earlier = read
            stored = earlier  # too old, perhaps, but it was read, and a replay of that run needs it
        cut = tuple(pieces(stored["text"], self.piece_characters))
        return OpenedPage(
            address=str(address), title=stored["title"][:_TITLE_CHARACTERS], pieces=cut, failed=stored["failed"]
        )

    def _read(self, address: Address) -> dict[str, Any]:
        try:
            self.spending.spend(Usage(pages=1))
        except LimitReached as error:
            raise RetrievalFailed(str(error)) from error
        try:
            title, text = read_page(self.fetcher.fetch(str(address), before=self._before))
        except FetchFailed as error:
            return {"title": "", "text": "", "failed": str(error)}
        return {"title": title, "text": text, "failed": None}

    def _before(self, address: Address) -> None:
        if self.respect_robots:
            self._robots.check(address, before=self._wait)
        self._wait(address)

    def _wait(self, address: Address) -> None:
        self.limit.wait(address.host)
