"""The readable text of a page, and its pieces.

read_page(fetched)                          ->  Page(title="Oslo", text="Oslo is the capital of Norway. ...")
pieces("One two. Three four. Five.", 16)    ->  ["One two.", "Three four.", "Five."]

Opening pages: fetch, robots.txt, limits, readable text and cache together.

reader = PageReader(cache=WebCache("web.sqlite"))
reader.open("https://en.wikipedia.org/wiki/Oslo")
->  OpenedPage(address="https://en.wikipedia.org/wiki/Oslo", title="Oslo", pieces=("Oslo is the capital of ...", ...))
reader.open("http://10.0.0.1/")
->  OpenedPage(address="http://10.0.0.1/", failed="10.0.0.1 is not an address of the public internet")

A page that cannot be opened is an ordinary answer: the model chose the address, and can choose another one.
"""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from mem1.errors import UserError
from mem1.retrieval.base import sound_text
from mem1.retrieval.extraction import LibraryMissing, Unreadable, extract
from mem1.retrieval.web.cache import WebCache
from mem1.retrieval.web.fetch import Fetched, Fetcher, Robots
from mem1.retrieval.web.limits import HostLimit, Spending
from mem1.retrieval.web.urls import Address, FetchFailed, Why

SECONDS = 10.0
"""For the text of one page."""
_SENTENCE_END = re.compile(r"[.!?…][\"')\]]? |[\u3002\uff01\uff1f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a reader would read."""

    title: str
    """Empty where the page has none."""
    text: str
    """White space is folded."""


def read_page(fetched: Fetched) -> Page:
    """Title and text, without menus, advertisements and comments.

    Raises FetchFailed (UNREADABLE) where there is no text, UserError where the package that finds it is missing.
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
        # the library parses what anybody may have written; a page it stumbles over is one without text
        raise FetchFailed(Why.UNREADABLE, f"its text could not be extracted: {error}") from error
    return Page(title=title, text=text)


def pieces(text: str, characters: int) -> list[str]:
    """Cut a text into pieces of at most so many characters: after a sentence, else at a blank, else anywhere.

    A cut is made in the second half of a piece, so that there are at most twice as many pieces as needed.
    """
    found = []
    start = 0
    while len(text) - start > characters:
        # a blank right behind the longest piece is seen, as a cut there is the best one
        room = characters + (text[start + characters] == " ")
        window = text[start : start + room]
        ends = [match.end() for match in _SENTENCE_END.finditer(window, characters // 2)]
        cut = ends[-1] if ends else window.rfind(" ", characters // 2) + 1 or room
        found.append(window[:cut].strip())
        start += cut
    return [piece for piece in (*found, text[start:].strip()) if piece]


_KIND = "page"
_TITLE_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedPage:
    """A page, or why there is none."""

    address: str
    """As asked for, in its only spelling."""
    title: str = ""
    pieces: tuple[str, ...] = ()
    failed: str | None = None
    """None: the page was opened and has at least one piece."""


@dataclass(frozen=True, slots=True)
class PageReader:
    """Opens pages, each once while it is fresh in the cache; any number of threads may do so."""

    cache: WebCache
    _: KW_ONLY
    fetcher: Fetcher = field(default_factory=Fetcher)
    spending: Spending = field(default_factory=Spending)
    limit: HostLimit = field(default_factory=lambda: HostLimit(1.0))
    respect_robots: bool = True
    piece_characters: int = 2000
    _robots: Robots = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_robots", Robots(self.fetcher))

    def open(self, text: str) -> OpenedPage:
        """The page at an address.

        Raises RetrievalFailed where the budget is spent, or the page is not in the cache of a run without a network.
        """
        try:
            address = self.fetcher.parse(text)
        except FetchFailed as error:
            return OpenedPage(address=text, failed=str(error))
        key = {"address": str(address)}
        stored: dict[str, Any] | None = self.cache.load(_KIND, key)
        if stored is None or (stored["failed"] is not None and self.cache.mode == "live"):
            stored = self._read(address)  # a page that failed may be there now
            self.cache.store(_KIND, key, stored)
        cut = tuple(pieces(stored["text"], self.piece_characters))
        return OpenedPage(
            address=str(address), title=stored["title"][:_TITLE_CHARACTERS], pieces=cut, failed=stored["failed"]
        )

    def _read(self, address: Address) -> dict[str, Any]:
        self.spending.page()
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
