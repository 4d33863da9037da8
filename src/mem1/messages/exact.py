"""Notes that are checked against what they are about: no identifier, number, path, date or quotation is invented.

    verified("Limit 1200 in /srv/eu/limits.toml", "The limit of 1,200 is set in /srv/eu/limits.toml.")   ->   as it is
    verified("The queue dead_leters", "The queue dead_letters is full")      ->   "The queue dead_letters": repaired
    verified("Ticket OPS-9 is open", "Ticket OPS-1471 is open")              ->   None: nothing in the source is near it

An exact word (`is_exact`) must stand in the source whole, not as a piece of a longer one ("99" in "19.99", "users_eu"
in "old_users_eu"), in small or large letters, with or without the commas of thousands; a date in any of three forms; a
month beside a number as such a pair. A word that does not is replaced by the only exact word of the source that differs
in a letter of a name of four or more, never in a digit, and otherwise the note is dropped. So what is kept can be wrong
in what it says of exact words, not in them. Words without digits, "_", "/" or "." are not looked at. "80,443" is one
number in prose, and two in brackets.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from rapidfuzz.distance import OSA

_AROUND = ".,;:!?()[]{}<>\"'`*|=\u201c\u201d\u2018\u2019\u00ab\u00bb"
"""Signs around words."""
_QUOTES = {
    '"': '"\u201d',
    "`": "`",
    "\u201c": '\u201d"',
    "\u201e": '\u201c\u201d"',
    "\u2018": "\u2019",
    "\u00ab": "\u00bb",
    "\u00bb": "\u00ab",
}
"""Sign that opens a quotation -> those that close it."""
_MONTHS = tuple(
    "january february march april may june july august september october november december".split()  # noqa: SIM905
)
_DOTTED = 3
"""Letters of "e.g", which is no name."""
_SHORTEST = 4
"""Letters of a name, between other signs, that is repaired; of shorter ones too many others are one letter away."""
_THOUSANDS = re.compile(r"(?<![\w.\[(:-])(?<!\w,)\d{1,3}(?:,\d{3})+(?!,?\w)(?![\])])")
_JOINS_BEFORE, _JOINS_AFTER = "-_.", "-_.@"
"""Signs by which a longer word goes on, before and behind a whole one. A path goes on by a slash, but its pieces are
names of their own."""
_LONGEST_NUMBER = 30
_OF_NUMBERS, _OPENS, _CLOSES = frozenset("0123456789,'"), ("[", "(", "{"), ("]", ")", "}")
_EDGES = "-_./\\@+"
"""Signs that do not begin or end a word behind, or before, a letter or digit."""
_FIRST_YEAR = 1_000
"""The first one with four digits."""
_ISO = re.compile(r"(?<!\d)(\d{4})-(\d{2})-(\d{2})(?!\d)")
_DAY_OR_YEAR = re.compile(r"(\d{1,2}|\d{4})(?:st|nd|rd|th)?")
_RUNS = re.compile(r"\d+(?:st|nd|rd|th)?(?![^\W_])|[^\W\d_]+|[\w]+")
_BETWEEN_NAMES = re.compile(r"[\W_]+")
_ROUND = str.maketrans("<>", "()")


def normal(text: str) -> str:
    """Small letters, single spaces, round brackets for angles, thousands without commas."""
    return _THOUSANDS.sub(lambda number: number[0].replace(",", ""), _with_commas(text))


def _with_commas(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().translate(_ROUND).split())


def words(text: str) -> Iterator[str]:
    """Its words, without the signs around them."""
    for word in text.split():
        if bare := word.strip(_AROUND):
            yield bare


def is_exact(word: str) -> bool:
    """Whether it is a number, identifier, path or the like, which must not change by a letter."""
    if any(sign.isdigit() for sign in word):
        return len(word) > 1
    return len(word) > _DOTTED and ("_" in word or "/" in word[:-1] or "." in word.strip("."))


def places(wanted: str, text: str) -> Iterator[int]:
    """Where it stands as whole words."""
    start = text.find(wanted) if wanted else -1
    while start >= 0:
        before, after = text[start - 1 : start], text[start + len(wanted) : start + len(wanted) + 1]
        if not (_goes_on(before, wanted[0]) or _goes_on(after, wanted[-1])):
            yield start
        start = text.find(wanted, start + 1)


def stands(wanted: str, text: str) -> bool:
    """Whether it stands there as whole words."""
    return next(places(wanted, text), None) is not None


def _goes_on(neighbour: str, edge: str) -> bool:
    return neighbour.isalnum() and edge.isalnum()


def _is_whole(start: int, wanted: str, text: str) -> bool:
    """Whether what stands there is no piece of a longer exact word: "-5" in "3-5", "x.com" in "x.com.evil.net"."""
    end = start + len(wanted)
    before, behind = text[max(0, start - 2) : start][::-1], text[end : end + 2]
    if wanted.isdecimal() and (before[:1] in ("-", ".") or _in_number(start, end, text)):
        return False
    if wanted.isdecimal() and behind[:1] == "-" and behind[1:].isalpha():  # "30-day" is thirty days
        behind = ""
    if before[:1] == "." and behind[:1] == "(":  # of self.get_user()
        before = ""
    return not (_continues(before, wanted[0], _JOINS_BEFORE) or _continues(behind, wanted[-1], _JOINS_AFTER))


def _continues(beyond: str, edge: str, joins: str) -> bool:
    """`beyond`: the two signs next to the word, the nearer one first."""
    near, far = beyond[:1], beyond[1:2]
    if edge in _EDGES:
        return near.isalnum()
    return bool(near) and near in joins and far.isalnum()


def _in_number(start: int, end: int, text: str) -> bool:
    """Whether these digits are of a number with a comma or an apostrophe, "19,99" or "1'200", and of no list."""
    first, last = start - _LONGEST_NUMBER, end + _LONGEST_NUMBER
    while start > max(0, first) and text[start - 1] in _OF_NUMBERS:
        start -= 1
    while end < min(len(text), last) and text[end] in _OF_NUMBERS:
        end += 1
    run = text[start:end].strip(",'")
    listed = text[max(0, start - 1) : start] in _OPENS or text[end : end + 1] in _CLOSES or run.count(",") > 1
    return "'" in run or ("," in run and not listed)


@dataclass(frozen=True)
class Source:
    """What notes are about; looked through once for many of them."""

    text: str

    @cached_property
    def normal(self) -> str:
        return normal(self.text)

    @cached_property
    def with_commas(self) -> str:
        return _with_commas(self.text)

    @cached_property
    def exact(self) -> dict[str, str]:
        """Exact word in one form -> as it stands."""
        found = (word for word in words(self.text) if is_exact(word))
        return {normal(word): word for word in found}

    @cached_property
    def calendar(self) -> Calendar:
        return calendar(self.normal)

    def has(self, word: str) -> bool:
        """Whether an exact word, in the form of `normal` or with its commas, stands in it as a whole one."""
        forms = [(normal(word), self.normal), *[(word, self.with_commas)] * ("," in word)]
        return any(_is_whole(at, form, text) for form, text in forms for at in places(form, text))

    def nearest(self, word: str) -> str | None:
        """The only exact word that is a slip of the pen away, with the same digits."""
        near = [own for own in self.exact if OSA.distance(own, word, score_cutoff=1) <= 1 and _is_slip(own, word)]
        return self.exact[near[0]] if len(near) == 1 and _digits(near[0]) == _digits(word) else None


def _is_slip(own: str, word: str) -> bool:
    """Whether names of four letters or more are all that differs."""
    ours, theirs = _BETWEEN_NAMES.split(own), _BETWEEN_NAMES.split(word)
    if len(ours) != len(theirs):
        return False
    return all(a == b or min(len(a), len(b)) >= _SHORTEST for a, b in zip(ours, theirs, strict=True))


def verified(note: str, source: Source | str) -> str | None:
    """The note, repaired where that can be done; None: it says something exact that its source does not."""
    given = Source(source) if isinstance(source, str) else source
    flat = [part for word in note.split() for part in _parted(word)]
    note = " ".join(flat)
    if not all(stands(normal(quoted), given.normal) for quoted in quotations(note)):
        return None
    if not calendar(normal(note)) <= given.calendar:
        return None
    bare = [next(words(_with_commas(word)), "") for word in flat]
    for at, word in enumerate(bare):
        checked = is_exact(word) or word.isdecimal()
        if not checked or _ISO.fullmatch(word) or given.has(word.removesuffix("'s").removesuffix("\u2019s")):
            continue
        if _is_of_date(bare, at):  # what it says was compared as a whole
            continue
        instead = given.nearest(word)
        if instead is None or normal(instead) in bare:  # a second one would make another statement of it
            return None
        as_written = next(words(flat[at]))
        flat[at] = flat[at].replace(as_written, instead)
    return " ".join(flat)


def _parted(word: str) -> list[str]:
    """The word; or its parts, where a sign in it is an accent with a space of its own."""
    flat = unicodedata.normalize("NFKC", word).split()
    return flat if len(flat) > 1 else [word]


def _digits(word: str) -> str:
    return "".join(sign for sign in word if sign.isdigit())


def _is_of_date(bare: list[str], at: int) -> bool:
    """Whether it is the day or the year beside a month, or the year behind "may 3"."""
    number = _DAY_OR_YEAR.fullmatch(bare[at])
    if number is None:
        return False
    last, first = bare[max(0, at - 2) : at], bare[at + 1 : at + 2]
    day = _DAY_OR_YEAR.fullmatch(last[1]) if len(last) > 1 and _month(last[0]) else None
    behind_a_day = day is not None and int(day[1]) < _FIRST_YEAR
    year = int(number[1]) >= _FIRST_YEAR
    return any(map(_month, [*last[-1:], *first])) or (behind_a_day and year)


def _month(word: str) -> int:
    """Its number, from 1; 0: the word names none, in whole or by its first three letters or more."""
    if len(word) < len("may"):
        return 0
    return next((number for number, month in enumerate(_MONTHS, 1) if month.startswith(word)), 0)


def quotations(text: str) -> Iterator[str]:
    """What stands in quotation marks or backticks; behind one that is not closed, all."""
    start, close = -1, ""
    for at, sign in enumerate(text):
        if start >= 0 and sign in close:
            if quoted := text[start:at].strip(_AROUND + " "):
                yield quoted
            start = -1
        elif start < 0 and sign in _QUOTES:
            start, close = at + 1, _QUOTES[sign]
    if start >= 0 and (quoted := text[start:].strip(_AROUND + " ")):
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
        if not (month := _month(run)):
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
