"""The readable text of a page, and its pieces.

read_page(fetched)                          ->  Page(title="Oslo", text="Oslo is the capital of Norway. ...")
pieces("One two. Three four. Five.", 16)    ->  ["One two.", "Three four.", "Five."]
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mem1.errors import UserError
from mem1.retrieval.base import sound_text
from mem1.retrieval.isolated import LibraryMissing, Unreadable, extract
from mem1.retrieval.web.failures import FetchFailed, Why
from mem1.retrieval.web.fetch import Fetched

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
