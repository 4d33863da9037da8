"""Scripted shoppers for errands: one that remembers prices, and one that remembers nothing.

Both are functions of the text in view: the task, what they wrote last, and the last page. The thrifty one opens every
product of the line, notes the cheapest that fits, goes back to it and buys it: 14 turns per good. Its notes:

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

The other buys the first product that fits, and tells which good it is about by the brand on the page.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

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


@dataclass(frozen=True, slots=True)
class View:
    """The text in view, read: the goods, the last notes, and the last page."""

    wanted: tuple[Wanted, ...]
    notes: str
    """Empty if there are none."""
    bought: int | None
    """On the search page, the number of purchases; else None."""
    results: tuple[tuple[str, str], ...] | None
    """(asin, title) on a page of results; else None."""
    item: Item | None

    @classmethod
    def of(cls, text: str) -> View:
        """Raises ValueError for a text without an errand."""
        wanted = {int(number): Wanted(*words) for number, *words in _WANTED.findall(text)}
        if not wanted:
            raise ValueError("no errand is in view")
        notes = [found[0] for found in _NOTES.finditer(text)]
        goods = tuple(wanted[number] for number in sorted(wanted))
        pages = [
            (found.start(), found)
            for page in (_SEARCH_PAGE, _RESULTS_PAGE, _ITEM_PAGE)
            for found in page.finditer(text)
        ]
        page = max(pages, default=(0, None), key=lambda found: found[0])[1]
        bought, results, item = 0 if page is None else None, None, None
        if page is not None and page.re is _SEARCH_PAGE:
            bought = int(page[1])
        elif page is not None and page.re is _RESULTS_PAGE:
            results = tuple(_RESULT.findall(page[1]))
        elif page is not None:
            item = Item(page[1], page[2], float(page[3]), page[4])
        return cls(goods, notes[-1] if notes else "", bought, results, item)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One turn of a shopper."""

    notes: str
    """What it wants to keep."""
    act: str
    """Its action: search[...] or click[...]."""


class Shopper(Protocol):
    """Writes the next move for the text in view."""

    def move(self, text: str, /) -> Move: ...


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
class ThriftyShopper:
    """Buys the cheapest product that fits every good."""

    def move(self, text: str) -> Move:
        """Raises ValueError for a text without an errand."""
        view = View.of(text)
        notes = _Notes.of(view.notes)
        if notes.verb == "take" and view.bought is not None and view.bought >= notes.good:
            notes = _Notes(notes.good + 1, notes.spent + notes.price)  # the shop says that it is bought
        good = view.wanted[min(notes.good, len(view.wanted)) - 1]
        if view.item is not None:
            return self._read(notes, good, view.item)
        if view.results is None:
            return _move(notes, f"search[{good.brand} {good.kind}]")
        line = [asin for asin, title in view.results if good.is_line(title)]
        fresh = [asin for asin in line if asin not in notes.seen]
        if notes.verb != "take" and fresh:
            return _move(notes, f"click[{fresh[0]}]")
        if not notes.verb:  # nothing fits: a search for another good, or lost notes
            return _move(_Notes(notes.good, notes.spent), f"search[{good.brand} {good.kind}]")
        return _move(replace(notes, verb="take", seen=()), f"click[{notes.asin}]")

    def _read(self, notes: _Notes, good: Wanted, item: Item) -> Move:
        if notes.verb == "take" and item.asin == notes.asin:
            return _move(notes, BUY if item.chosen(good) else f"click[{good.option}]")
        seen = notes.seen if item.asin in notes.seen else (*notes.seen, item.asin)
        notes = replace(notes, seen=seen)
        if item.fits(good) and (not notes.verb or item.price < notes.price):
            notes = replace(notes, verb="best", asin=item.asin, price=item.price)
        return _move(notes, BACK)


@dataclass(frozen=True, slots=True)
class ForgetfulShopper:
    """Buys the first product that fits, opening them at random; keeps no notes.

    The draws follow from the seed and the text in view, in which the number of turns left makes every page different.
    """

    seed: int = 0

    def move(self, text: str) -> Move:
        """Raises ValueError for a text without an errand."""
        view = View.of(text)
        if view.item is not None:
            return Move(notes="", act=self._read(view, view.item))
        if view.results is not None:
            return Move(notes="", act=self._open(view.wanted, view.results, random.Random(f"{self.seed}/{text}")))
        assert view.bought is not None
        good = view.wanted[min(view.bought, len(view.wanted) - 1)]
        return Move(notes="", act=f"search[{good.brand} {good.kind}]")

    def _open(self, wanted: Sequence[Wanted], results: Sequence[tuple[str, str]], rng: random.Random) -> str:
        """Opens a product of the line that the search found first."""
        searched = next(good for _, title in results for good in wanted if good.is_line(title))
        return f"click[{rng.choice([asin for asin, title in results if searched.is_line(title)])}]"

    def _read(self, view: View, item: Item) -> str:
        good = next((good for good in view.wanted if good.is_line(item.title)), None)
        if good is None or not item.fits(good):
            return BACK
        return BUY if item.chosen(good) else f"click[{good.option}]"


@dataclass(frozen=True, slots=True)
class ShopperScript:
    """Writes a shopper's moves as completions in tags: text of a context -> completion."""

    shopper: Shopper
    tags: Tags

    def __call__(self, context: str) -> str:
        move = self.shopper.move(context)
        state, action = self.tags.state, self.tags.action_tags[ACT]
        return f"<{state}> {move.notes} </{state}> <{action}> {move.act} </{action}>"


def _move(notes: _Notes, act: str) -> Move:
    return Move(notes=str(notes), act=act)
