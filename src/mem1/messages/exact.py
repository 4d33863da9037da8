"""Notes that are checked against what they are about: no identifier, number, path, date or quotation is invented.

    verified("Limit 1200 in /srv/eu/limits.toml", "The limit of 1,200 is set in /srv/eu/limits.toml.")   ->   as it is
    verified("The queue dead_leters", "The queue dead_letters is full")      ->   "The queue dead_letters": repaired
    verified("Ticket OPS-9 is open", "Ticket OPS-1471 is open")              ->   None: nothing in the source is near it

An exact word (`is_exact`) must stand in the source, in small or large letters, with or without the commas of thousands;
a date in any of three forms, and a month beside a number. One that does not is replaced by the only exact word of the
source that differs in a letter, never in a digit, and otherwise the note is dropped. So what is kept can be wrong in
what it says of exact words, not in them. Words without digits, "_", "/" or "." are not looked at.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from rapidfuzz.distance import OSA

_AROUND = ".,;:!?()[]{}<>\"'`*|=\u201c\u201d\u2018\u2019\u00ab\u00bb"
"""Signs around words."""
_QUOTES = {'"': '"', "`": "`", "\u201c": "\u201d", "\u2018": "\u2019", "\u00ab": "\u00bb"}
_MONTHS = tuple(
    "january february march april may june july august september october november december".split()  # noqa: SIM905
)
_DOTTED = 3
"""Letters of "e.g", which is no name."""
_SLIP = 6
"""A word may be repaired by one letter for so many of its own, at least one."""
_SHORTEST = 4
"""Letters of a word that is repaired; of shorter ones too many others are one letter away."""


def normal(text: str) -> str:
    """Small letters, single spaces, digits without commas between them."""
    flat = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    parts = flat.split(",")
    joined = [parts[0]]
    for part in parts[1:]:
        thousands = joined[-1][-1:].isdigit() and part[:3].isdigit() and len(part) > 2 and not part[3:4].isdigit()
        joined.append(part if thousands else f",{part}")
    return "".join(joined)


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


@dataclass(frozen=True)
class Source:
    """What notes are about; looked through once for many of them."""

    text: str

    @cached_property
    def normal(self) -> str:
        return normal(self.text)

    @cached_property
    def exact(self) -> dict[str, str]:
        """Exact word in one form -> as it stands."""
        found = (word for word in words(self.text) if is_exact(word))
        return {normal(word): word for word in found}

    @cached_property
    def dates(self) -> frozenset[str]:
        return frozenset(day for day, _ in dates(list(words(self.normal))))

    def nearest(self, word: str) -> str | None:
        """The only exact word that is a slip of the pen away, with the same digits."""
        most = max(1, len(word) // _SLIP)
        if len(word) < _SHORTEST:
            return None
        near = [own for own in self.exact if OSA.distance(own, word, score_cutoff=most) <= most]
        return self.exact[near[0]] if len(near) == 1 and _digits(near[0]) == _digits(word) else None


def verified(note: str, source: Source | str) -> str | None:
    """The note, repaired where that can be done; None: it says something exact that its source does not."""
    given = Source(source) if isinstance(source, str) else source
    note = " ".join(note.split())
    if not all(normal(quoted) in given.normal for quoted in quotations(note)):
        return None
    flat = note.split()
    bare = [next(words(normal(word)), "") for word in flat]
    days = dict(dates(bare))
    if not given.dates.issuperset(days):
        return None
    dated = {at for found in days.values() for at in found}
    for at, word in enumerate(bare):
        checked = is_exact(word) or word.isdecimal() or _is_month(bare, at)
        if at in dated or not checked or stands(word.removesuffix("'s").removesuffix("\u2019s"), given.normal):
            continue
        instead = given.nearest(word)
        if instead is None or normal(instead) in bare:  # a second one would make another statement of it
            return None
        as_written = next(words(flat[at]))
        flat[at] = flat[at].replace(as_written, instead)
    return " ".join(flat)


def _digits(word: str) -> str:
    return "".join(sign for sign in word if sign.isdigit())


def _is_month(flat: list[str], at: int) -> bool:
    """Whether it names a month beside a number."""
    beside = flat[max(0, at - 1) : at] + flat[at + 1 : at + 2]
    named = any(month.startswith(flat[at]) for month in _MONTHS)
    return len(flat[at]) > 2 and named and any(word[:1].isdigit() for word in beside)


def quotations(text: str) -> Iterator[str]:
    """What stands in quotation marks or backticks."""
    start, close = -1, ""
    for at, sign in enumerate(text):
        if start >= 0 and sign == close:
            if quoted := text[start:at].strip(_AROUND + " "):
                yield quoted
            start = -1
        elif start < 0 and sign in _QUOTES:
            start, close = at + 1, _QUOTES[sign]


def dates(flat: Sequence[str]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Days as "2027-05-03", and where their words are: "3 may 2027", "may 3 2027" and "2027-05-03" are found."""
    for at, word in enumerate(flat):
        parts = word.split("-")
        if [len(part) for part in parts] == [4, 2, 2] and all(part.isdecimal() for part in parts):
            yield word, (at,)
        if at + 2 >= len(flat) or not flat[at + 2].isdecimal() or len(flat[at + 2]) != 4:
            continue
        day, month = (word, flat[at + 1]) if word.isdecimal() else (flat[at + 1], word)
        if day.isdecimal() and 1 <= int(day) <= 31 and month in _MONTHS:
            yield f"{flat[at + 2]}-{_MONTHS.index(month) + 1:02d}-{int(day):02d}", (at, at + 1, at + 2)
