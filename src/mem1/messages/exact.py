"""Notes that are checked against what they are about: no identifier, number, path, date or quotation is invented.

    verified("Limit 1200 in /srv/eu/limits.toml", "The limit of 1,200 is set in /srv/eu/limits.toml.")   ->   as it is
    verified("The queue dead_leters", "The queue dead_letters is full")      ->   "The queue dead_letters": repaired
    verified("Ticket OPS-9 is open", "Ticket OPS-1471 is open")              ->   None: nothing in the source is near it

An exact word (`is_exact`) must stand in the source whole (`mem1.messages.wholes`), in small or large letters, with or
without the separators of thousands; a date in any of three forms; a month beside a number as such a pair. A word that
does not is replaced by the only exact word of the source that differs in a letter of a name of four or more, never in a
digit or sign, and otherwise the note is dropped. So what is kept can be wrong in what it says of exact words, not in
them. Words without digits, "_", "/", "\\" or "." are not looked at, but for those with hyphens that begin or end like
one of the source: "db-replica" may be a slip for its "db-primary", and "follow-up" is a word like any other.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from rapidfuzz.distance import OSA

from mem1.messages.wholes import Wholes, bare, comparisons, hyphened, is_exact, normal, spaced, with_commas, words

_QUOTES = {
    '"': '"\u201d',
    "`": "`",
    "\u201c": '\u201d"',
    "\u201e": '\u201c\u201d"',
    "\u2018": "\u2019",
    "\u00ab": "\u00bb",
    "\u00bb": "\u00ab",
    "\u201a": "\u2018\u2019",
    "\u2039": "\u203a",
    "\u203a": "\u2039",
    "\u300c": "\u300d",
    "\u300e": "\u300f",
}
"""Sign that opens a quotation -> those that close it."""
_MONTHS = tuple(
    "january february march april may june july august september october november december".split()  # noqa: SIM905
)
_SHORTEST = 4
"""Letters of a name, between other signs, that is repaired; of shorter ones too many others are one letter away."""
_FIRST_YEAR = 1_000
"""The first one with four digits."""
_ISO = re.compile(r"(?<!\d)(\d{4})-(\d{2})-(\d{2})(?!\d)")
_DAY_OR_YEAR = re.compile(r"(\d{1,2}|\d{4})(?:st|nd|rd|th)?")
_RUNS = re.compile(r"\d+(?:st|nd|rd|th)?(?![^\W_])|[^\W\d_]+|[\w]+")
_NAMES = re.compile(r"([\W_]+)")
_DAY = r"(?:0?[1-9]|[12]\d|3[01])\s+(?:may|march)\b"
_VERBS = re.compile(
    rf"(?<!\S)(?:((?i:on|by|until|since)\s+{_DAY}(?!\s+(?:be|have|not|also)\b)"
    rf"|{_DAY}(?=\s+(?:(?:from|at)\b|(?:to|until|and)\s+\d)))"
    r"|(?<!\bof )(?<!\dst )(?<!\dnd )(?<!\drd )(?<!\dth )(?:may|march)(?=\s+[a-z]))"
)
"""A day of one of these months, which is no verb, or a verb."""


@dataclass(frozen=True)
class Source:
    """What notes are about; looked through once for many of them."""

    text: str

    @cached_property
    def normal(self) -> str:
        return normal(self.text)

    @cached_property
    def wholes(self) -> Wholes:
        """Its whole words, in the form of `normal`."""
        return Wholes(self.normal)

    @cached_property
    def with_commas(self) -> Wholes:
        return Wholes(with_commas(self.text))

    @cached_property
    def exact(self) -> dict[str, str]:
        """Exact word in one form -> as it stands."""
        found = (word for word in words(self.text) if is_exact(word) or hyphened(word))
        return {normal(word): word for word in found}

    @cached_property
    def parts(self) -> frozenset[str]:
        """First and last parts of its words with hyphens."""
        return frozenset(part for word in self.exact for part in hyphened(word))

    @cached_property
    def calendar(self) -> Calendar:
        return calendar(normal(_without_verbs(self.text)))

    @cached_property
    def pairs(self) -> Calendar:
        """The same, where a month may also be a verb, "item 3 may be late"."""
        return calendar(self.normal)

    @cached_property
    def spaced(self) -> frozenset[str]:
        """Digits in groups behind single spaces."""
        return frozenset(found[0] for found in spaced(self.normal))

    def has(self, word: str) -> bool:
        """Whether an exact word, in the form of `normal` or of `with_commas`, stands in it as a whole one."""
        return normal(word) in self.wholes or (("," in word or "'" in word) and word in self.with_commas)

    def beyond(self, source: Source) -> frozenset[str]:
        """Its exact words, in the form of `normal`, that this source does not say; a number ends with its line."""
        lines = map(_plain, self.text.splitlines())
        found = (normal(bare(plain[at])) for plain in lines for at in _unsaid(plain, source))
        return frozenset(filter(is_exact, found))

    def nearest(self, word: str) -> str | None:
        """The only exact word that is a slip of the pen away, with the same digits."""
        near = [own for own in self.exact if OSA.distance(own, word, score_cutoff=1) <= 1 and _is_slip(own, word)]
        return self.exact[near[0]] if len(near) == 1 and _digits(near[0]) == _digits(word) else None


def _is_slip(own: str, word: str) -> bool:
    """Whether names of four letters or more are all that differs."""
    ours, theirs = _NAMES.split(own), _NAMES.split(word)
    if len(ours) != len(theirs):
        return False
    return all(
        a == b or (a.isalnum() and b.isalnum() and min(len(a), len(b)) >= _SHORTEST)
        for a, b in zip(ours, theirs, strict=True)
    )


def verified(note: str, source: Source | str) -> str | None:
    """The note, repaired where that can be done; None: it says something exact that its source does not."""
    given = Source(source) if isinstance(source, str) else source
    flat = [part for word in note.split() for part in _parted(word)]
    note = " ".join(flat)
    if not all(normal(quoted) in given.wholes for quoted in quotations(note)):
        return None
    if not all(map(given.has, comparisons(note))):
        return None
    if not (calendar(normal(_without_verbs(note))) <= given.calendar and calendar(normal(note)) <= given.pairs):
        return None
    plain = _plain(note)
    for at in _unsaid(plain, given):
        word = bare(plain[at])
        instead = given.nearest(word)
        if instead is None or any(normal(instead) == normal(bare(other)) for other in plain):
            return None  # a second one would make another statement of it
        flat[at] = flat[at].replace(bare(flat[at]), instead)
    return " ".join(flat)


def _plain(text: str) -> list[str]:
    """Its words in the form of `with_commas`; instead of "may" and "march", where they are verbs, a sign."""
    return [with_commas(word) for word in _without_verbs(text).split()]


def _unsaid(plain: Sequence[str], source: Source) -> Iterator[int]:
    """Which of these words are numbers, or exact, and not said by the source."""
    one_number = _grouped(plain, source)
    known = dict[str, bool]()
    for at, word in enumerate(map(bare, plain)):
        if not (is_exact(word) or word.isdecimal() or not source.parts.isdisjoint(hyphened(word))):
            continue
        if at in one_number:
            said = one_number[at]
        elif _ISO.fullmatch(word):
            said = calendar(word) <= source.calendar
        else:
            own = word.removesuffix("'s")
            said = known[own] if own in known else known.setdefault(own, source.has(own))
            if not said and _is_of_date(around := [*map(bare, plain[max(0, at - 2) : at + 3])], min(at, 2)):
                said = calendar(" ".join(around)) <= source.calendar
        if not said:
            yield at


def _grouped(plain: Sequence[str], source: Source) -> dict[int, bool]:
    """Which words are digits of one number, "1 200 300", and whether the source says it; not those that stand there
    behind spaces, too."""
    starts = list(accumulate((len(word) + 1 for word in plain), initial=0))
    found = dict[int, bool]()
    for group in spaced(" ".join(plain)):
        said = source.has(group[0].replace(" ", ""))
        if said or group[0] not in source.spaced:
            first = bisect_right(starts, group.start()) - 1
            found |= dict.fromkeys(range(first, first + 1 + group[0].count(" ")), said)
    return found


def _parted(word: str) -> list[str]:
    """The word; or its parts, where a sign in it is an accent with a space of its own."""
    flat = unicodedata.normalize("NFKC", word).split()
    return flat if len(flat) > 1 else [word]


def _without_verbs(text: str) -> str:
    return _VERBS.sub(lambda found: found[1] or "-", text)


def _digits(word: str) -> str:
    return "".join(sign for sign in word if sign.isdigit())


def _is_of_date(near: list[str], at: int) -> bool:
    """Whether it is the day or the year beside a month, or the year behind "may 3"."""
    number = _DAY_OR_YEAR.fullmatch(near[at])
    if number is None or not int(number[1]):
        return False
    last, first = near[max(0, at - 2) : at], near[at + 1 : at + 2]
    day = _DAY_OR_YEAR.fullmatch(last[1]) if len(last) > 1 and month_of(last[0]) else None
    behind_a_day = day is not None and int(day[1]) < _FIRST_YEAR
    year = int(number[1]) >= _FIRST_YEAR
    return any(map(month_of, [*last[-1:], *first])) or (behind_a_day and year)


def month_of(word: str) -> int:
    """Its number, from 1; 0: the word names none, in whole or by its first three letters or more."""
    if len(word) < len("may"):
        return 0
    return next((number for number, month in enumerate(_MONTHS, 1) if month.startswith(word)), 0)


def quotations(text: str) -> Iterator[str]:
    """What stands in quotation marks or backticks; behind one that is not closed, all."""
    start, close = -1, ""
    for at, sign in enumerate(text):
        if start >= 0 and sign in close:
            if quoted := bare(text[start:at]):
                yield quoted
            start = -1
        elif start < 0 and sign in _QUOTES:
            start, close = at + 1, _QUOTES[sign]
    if start >= 0 and (quoted := bare(text[start:])):
        yield quoted


Calendar = frozenset[tuple[int, ...]]
"""(year, month, day), and what stands beside a month: (month, day) and (month, year)."""


def calendar(text: str) -> Calendar:
    """The dates of a text in the form of `normal`: "3 may 2027", "may 3, 2027", "2027-05-03", "3 may", "may 2027".

    calendar("on 3 may 2027")  ->  {(2027, 5, 3), (5, 3), (5, 2027)}
    """
    found = set[tuple[int, ...]]()
    for year, month, day in ((int(part) for part in match.groups()) for match in _ISO.finditer(text)):
        found |= {(year, month, day), (month, day), (month, year)}
    runs = [run for run in _RUNS.findall(text) if run != "of"]
    for at, run in enumerate(runs):
        if not (month := month_of(run)):
            continue
        before, *behind = (_number(runs, place) for place in (at - 1, at + 1, at + 2))
        found |= {(month, number) for number in (before, behind[0]) if number}
        days = {(behind[0], month, before), (behind[1], month, behind[0])}
        found |= {day for day in days if day[0] >= _FIRST_YEAR and 0 < day[2] < _FIRST_YEAR}
    return frozenset(found)


def _number(runs: list[str], at: int) -> int:
    """The day or year that stands there; 0: none does."""
    match = _DAY_OR_YEAR.fullmatch(runs[at]) if 0 <= at < len(runs) else None
    return int(match[1]) if match else 0
