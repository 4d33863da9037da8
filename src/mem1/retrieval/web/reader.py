"""Opening pages: fetch, robots.txt, limits, cache and readable text together.

reader = PageReader(cache=WebCache("web.sqlite"))
reader.open("https://en.wikipedia.org/wiki/Oslo")
->  OpenedPage(address="https://en.wikipedia.org/wiki/Oslo", title="Oslo", pieces=("Oslo is the capital of ...", ...))
reader.open("http://10.0.0.1/")
->  OpenedPage(address="http://10.0.0.1/", failed="10.0.0.1 is not an address of the public internet")
pieces("One two. Three four. Five.", 16)    ->  ["One two.", "Three four.", "Five."]

A page that cannot be opened is an ordinary result: the model chose the address and can choose another one.
"""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from mem1.errors import UserError
from mem1.net.failover import HostLimit
from mem1.net.spending import LimitReached, Spending, Usage, WebBudget
from mem1.retrieval.base import RetrievalFailed, sound_text
from mem1.retrieval.extraction import LibraryMissing, Unreadable, extract
from mem1.retrieval.web.cache import WebCache
from mem1.retrieval.web.fetch import Fetched, Fetcher, Robots
from mem1.retrieval.web.urls import Address, FetchFailed, Why

SECONDS = 10.0
"""Time limit for extracting the text of one page."""
_KIND = "page"
_TITLE_CHARACTERS = 300
_SENTENCE_END = re.compile(r"[.!?…][\"')\]]? |[\u3002\uff01\uff1f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page's readable part, white space folded."""

    title: str
    """Empty where the page has none."""
    text: str


def read_page(fetched: Fetched) -> Page:
    """Title and text, without menus, advertisements and comments.

    Raises FetchFailed (UNREADABLE) where there is no text, UserError where the extraction library is not installed.
    """
    page = Page(title="", text=fetched.text) if fetched.content_type == "text/plain" else _extract(fetched.text)
    page = Page(title=" ".join(page.title.split()), text=" ".join(page.text.split()))
    if not page.text:
        raise FetchFailed(Why.UNREADABLE, "no readable text was found in it")
    return page


def _extract(html: str) -> Page:
    try:
        title, text = extract("page", sound_text(html).encode(), seconds=SECONDS)
    except LibraryMissing as error:
        raise UserError(
            f"reading web pages needs the package trafilatura ({error}); install it: pip install 'mem1[web]'"
        ) from error
    except Unreadable as error:
        # the library parses hostile input; a page that makes it fail counts as a page without text
        raise FetchFailed(Why.UNREADABLE, f"its text could not be extracted: {error}") from error
    return Page(title=title, text=text)


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
        stored: dict[str, Any] | None = self.cache.load(_KIND, key)
        if stored is None or (stored["failed"] is not None and self.cache.mode == "live"):
            stored = self._read(address)  # a page that failed earlier may work now
            self.cache.store(_KIND, key, stored)
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
            page = read_page(self.fetcher.fetch(str(address), before=self._before))
        except FetchFailed as error:
            return {"title": "", "text": "", "failed": str(error)}
        return {"title": page.title, "text": page.text, "failed": None}

    def _before(self, address: Address) -> None:
        if self.respect_robots:
            self._robots.check(address, before=self._wait)
        self._wait(address)

    def _wait(self, address: Address) -> None:
        self.limit.wait(address.host)
