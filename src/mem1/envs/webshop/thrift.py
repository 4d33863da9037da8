"""A scripted shopper for errands, with a memory or without one.

It is a function of the text in view: the task, its last notes, and the pages after them. It opens every product of the
line, notes the cheapest that fits, goes back to it and buys it: 14 turns per good. Its notes:

    page        notes                                            action
    search      good 2 ; spent 24.49                             search[Fala Prellov tent]
    results     good 2 ; spent 24.49                             click[HOLA88]
    HOLA88      good 2 ; spent 24.49 ; seen HOLA88 ; best HOLA88 24.49                click[< Prev]
    results     good 2 ; spent 24.49 ; seen HOLA88 ; best HOLA88 24.49                click[GOLA64]
    GOLA64      good 2 ; spent 24.49 ; seen HOLA88 GOLA64 ; best GOLA64 19.25         click[< Prev]
    ...         (when all five are seen)
    results     good 2 ; spent 24.49 ; take GOLA64 19.25         click[GOLA64]
    GOLA64      good 2 ; spent 24.49 ; take GOLA64 19.25         click[s]
    GOLA64      good 2 ; spent 24.49 ; take GOLA64 19.25         click[Buy Now]
    search      good 3 ; spent 43.74                             search[...]

With a memory too small for them it writes no notes and knows what is in view. Where that is only the last page, it buys
the first product that fits, opening them at random, and tells by the brand which good the page is about.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mem1.protocol import ACT, Tags

_WANTED = re.compile(r"\bQ(\d+) an? (\w+) (\w+ \w+) (\w+) in (?:size|a pack of) (\w+)")
_NOTES = re.compile(
    r"good (\d+) ; spent ([\d.]+\d)(?: ; seen ([\w ]+?))?(?: ; (best|take) (\w+) ([\d.]+\d))?(?= *(?:<|\n|$))"
)
_SEARCH_PAGE = re.compile(r"Search page \| Bought (\d+) of \d+")
_REST = r"((?:(?!</).)*)"
"""The rest of a page: to the end of its line or its tag."""
_RESULTS_PAGE = re.compile(rf"Results \d+ to \d+ of \d+ \| {_REST}")
_ITEM_PAGE = re.compile(rf"(\w+): ([\w ]+) \| \$([\d.]+\d) \| {_REST}")
_RESULT = re.compile(r"(\w+): ([\w ]*\w)")
BACK = "click[< Prev]"
BUY = "click[Buy Now]"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One good, read from the task."""

    feature: str
    brand: str
    kind: str
    option: str

    def is_line(self, title: str) -> bool:
        """Whether a product with this title is of the good's brand and type."""
        return title.startswith(f"{self.brand} ") and title.lower().endswith(f" {self.kind}")


@dataclass(frozen=True, slots=True)
class Item:
    """The page of a product, read."""

    asin: str
    title: str
    price: float
    """Dollars."""
    about: str
    """Features, options and what was chosen."""

    def fits(self, good: Wanted) -> bool:
        """Whether it is a product that the good asks for."""
        offered = re.findall(r"\| (?:size|pack): ([\w, ]+)", f"| {self.about}")
        options = {value.strip() for values in offered for value in values.split(",")}
        words = re.findall(r"\w+", f"{self.title} {self.about}".lower())
        return good.is_line(self.title) and good.feature in words and good.option in options

    def chosen(self, good: Wanted) -> bool:
        """Whether the good's option has been clicked."""
        return f"chosen: {good.option}" in re.split(r" *\| *", self.about)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One turn of a shopper."""

    notes: str
    """What it wants to keep."""
    act: str
    """Its action: search[...] or click[...]."""


@dataclass(frozen=True, slots=True)
class _Notes:
    good: int = 1
    spent: float = 0.0
    seen: tuple[str, ...] = ()
    verb: str = ""
    """"best": the cheapest product so far; "take": it is being bought; "": none fits yet."""
    asin: str = ""
    price: float = 0.0

    @classmethod
    def of(cls, text: str) -> _Notes:
        found = _NOTES.fullmatch(text)
        if found is None:
            return cls()
        good, spent, seen, verb, asin, price = found.groups(default="")
        return cls(int(good), float(spent), tuple(seen.split()), verb, asin, float(price or 0))

    def __str__(self) -> str:
        seen = f" ; seen {' '.join(self.seen)}" if self.seen else ""
        product = f" ; {self.verb} {self.asin} {self.price:.2f}" if self.verb else ""
        return f"good {self.good} ; spent {self.spent:.2f}{seen}{product}"


@dataclass(frozen=True, slots=True)
class Known:
    """What follows from the text in view."""

    wanted: tuple[Wanted, ...]
    notes: _Notes
    """The last notes, brought up to date by the pages after them."""
    noted: bool
    """Whether there were notes."""
    line: tuple[str, ...] = ()
    """asins of the good's line, from the last page of results after the notes."""
    page: str = "search"
    """The last page: "search", "results" or "item"."""
    item: Item | None = None
    """The product on it."""

    @classmethod
    def of(cls, text: str) -> Known:
        """Raises ValueError for a text without an errand."""
        goods = {int(number): Wanted(*words) for number, *words in _WANTED.findall(text)}
        if not goods:
            raise ValueError("no errand is in view")
        noted = list(_NOTES.finditer(text))
        notes, start = (_Notes.of(noted[-1][0]), noted[-1].end()) if noted else (_Notes(), 0)
        known = cls(tuple(goods[number] for number in sorted(goods)), notes, bool(noted))
        pages = [found for page in (_SEARCH_PAGE, _RESULTS_PAGE, _ITEM_PAGE) for found in page.finditer(text, start)]
        for page in sorted(pages, key=lambda found: found.start()):
            if page.re is _SEARCH_PAGE:
                known = known._searching(int(page[1]))
            elif page.re is _RESULTS_PAGE:
                known = known._found(_RESULT.findall(page[1]))
            else:
                known = known._opened(Item(page[1], page[2], float(page[3]), page[4]))
        return known

    @property
    def good(self) -> Wanted:
        return self.wanted[min(self.notes.good, len(self.wanted)) - 1]

    def _searching(self, bought: int) -> Known:
        """The search page says how many goods are bought."""
        notes = self.notes
        if bought >= notes.good:
            notes = _Notes(bought + 1, notes.spent + notes.price)
        return replace(self, notes=notes, line=(), page="search", item=None)

    def _found(self, results: Sequence[tuple[str, str]]) -> Known:
        """A page of results; the search was for the line of the first one."""
        found = self._about(results[0][1])
        line = tuple(asin for asin, title in results if found.good.is_line(title))
        return replace(found, line=line, page="results", item=None)

    def _opened(self, item: Item) -> Known:
        found = self._about(item.title)
        notes = found.notes
        seen = notes.seen if item.asin in notes.seen else (*notes.seen, item.asin)
        if notes.verb != "take":
            notes = replace(notes, seen=seen)
            if item.fits(found.good) and (not notes.verb or item.price < notes.price):
                notes = replace(notes, verb="best", asin=item.asin, price=item.price)
        return replace(found, notes=notes, page="item", item=item)

    def _about(self, title: str) -> Known:
        """The good is known by the title of a product, where nothing else says which one it is."""
        if self.noted or self.good.is_line(title):
            return self
        number = next((n for n, good in enumerate(self.wanted, start=1) if good.is_line(title)), self.notes.good)
        return replace(self, notes=_Notes(number))


NOTES_TOKENS = 25
"""Length of the longest notes of a good, at four characters a token."""


@dataclass(frozen=True, slots=True)
class Shopper:
    """Buys the cheapest product that fits every good, as far as it remembers."""

    memory: int | None = None
    """Tokens of its notes; with fewer than `NOTES_TOKENS` it writes none. None: as many as it likes."""
    seed: int = 0
    """Of the order in which it opens products; the order follows from the seed and the text in view."""

    def move(self, text: str) -> Move:
        """Raises ValueError for a text without an errand."""
        known = Known.of(text)
        good, notes = known.good, known.notes
        fresh = [asin for asin in known.line if asin not in notes.seen]
        if known.item is not None:
            if not self._wants(known, known.item, fresh):
                return self._move(notes, BACK)
            taken = replace(notes, verb="take", seen=())
            return self._move(taken, BUY if known.item.chosen(good) else f"click[{good.option}]")
        if known.page == "results" and notes.verb != "take" and fresh:
            return self._move(notes, f"click[{random.Random(f'{self.seed}/{text}').choice(fresh)}]")
        if known.page == "results" and notes.verb:
            return self._move(replace(notes, verb="take", seen=()), f"click[{notes.asin}]")
        return self._move(notes, f"search[{good.brand} {good.kind}]")

    def _wants(self, known: Known, item: Item, fresh: Sequence[str]) -> bool:
        """Whether the open product is to be bought."""
        if not known.noted and not known.line:  # nothing but this page is in view
            return item.fits(known.good)
        decided = known.notes.verb == "take" or (bool(known.line) and not fresh)
        return decided and item.asin == known.notes.asin

    def _move(self, notes: _Notes, act: str) -> Move:
        written = self.memory is None or self.memory >= NOTES_TOKENS
        return Move(notes=str(notes) if written else "", act=act)


@dataclass(frozen=True, slots=True)
class ShopperScript:
    """Writes a shopper's moves as completions in tags: text of a context -> completion."""

    shopper: Shopper
    tags: Tags

    def __call__(self, context: str) -> str:
        move = self.shopper.move(context)
        state, action = self.tags.state, self.tags.action_tags[ACT]
        return f"<{state}> {move.notes} </{state}> <{action}> {move.act} </{action}>"
