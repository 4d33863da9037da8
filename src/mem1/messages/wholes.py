"""The whole words, numbers and paths of a text: the one reading by which what a note says is looked for in its source.

    normal("A limit of 1,200 (Vec<u8>), 10\u2076 rows, \u22125 %")   ->   "a limit of 1200 (vec(u8)), 10^6 rows, -5 %"
    Wholes("19.99 eur in /srv/eu/a.toml").places("srv/eu")        ->   at 14; of "99", "a.to" and "/eu": nowhere

What may begin or end where:

    identifiers, addresses   joined by - _ . @ +, they are whole; what stands behind an @, a count before "-day" and a
                             method in self.get_user(5) are words of their own
    paths                    end at any slash and begin behind one; "/data" is not a piece of ./data, ~/data, s3://data
    numbers                  have their sign, point, fraction, power and the separators of their thousands: 1,200,300
                             12,34,567 1'200 -5.2 555-0199 10^6; digits with commas are a list of numbers in brackets
                             ("[80,443]"), among other items ("a,80,b"), or where no number has such commas ("80,8443")
    times                    may end before their minutes and seconds, 10:22 in 10:22:01
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

_AROUND = " .,;:!?()[]{}<>\"'`*|=\u201c\u201d\u2018\u2019\u00ab\u00bb\u300c\u300d\u300e\u300f\u2039\u203a\u201a\u201e"
"""Signs around words."""
CUT = "\u22ef"
"""Sign in the place of the rest of a word that was cut."""
_DOTTED = 3
"""Letters of "e.g", which is no name."""
_EDGES = "-_./\\@+^~"
"""Signs that do not begin or end a word behind, or before, a letter or digit."""
_JOINS_BEFORE, _JOINS_AFTER = "-_.+", "-_.@+"
"""Signs by which a longer word goes on, before and behind a whole one."""
_ALWAYS_JOIN = frozenset(("^", "\u2044", CUT))
_SLASHES = "/\\"
_CURRENCIES = ("$", "\u20ac", "\xa3", "\xa5")
_BEFORE_SLASHES = "_.~}):/\\%$-+@*"
"""Signs behind which a slash goes on with a path."""
_PARTING = frozenset(' ,;&|"`()[]{}<>=!?*')
_LONGEST_NUMBER = 30
_RAISED = re.compile(
    "(?<![^\\W\\d_])[\xb2\xb3\xb9\xbc-\xbe\u2070-\u208e\u2150-\u215f\u2189\u2460-\u249b\u24ea-\u24ff\u2776-\u2793]+"
)
"""Small and framed digits and fractions that are not of a name, such as CO\u2082."""
_COMPARED = re.compile(r"</?[A-Za-z][^<>]*(?<!\s)>|(?<![\-=<>!])([<>]=?|!=) ?(?=[-.\u2212]?\d)(?![^\s<>]{0,40}>)")
"""A tag, or a comparison with a number."""
_COMPARISONS = {"<": "\u2aaa", "<=": "\u2264", ">": "\u2aab", ">=": "\u2265", "!=": "\u2260"}
_SIGNS = str.maketrans("<>\u2010\u2011\u2012\u2013\u2212\u2019", "()-----'")
_NARROW = re.compile(r"(?<![\w.,])\d{1,3}(?:[\u00a0\u202f\u2009]\d{3})+(?!\d)")
_THOUSANDS = re.compile(r"(?<![\w.\[{:,'])(?<!\w-)\d{1,3}([,'])\d{3}(?:\1\d{3})*(?!\1?\w)(?![\]}])")
_RUN = re.compile(r"(?<!\d)\d+(?:[.,']\d+)+")
_NUMBER = re.compile(r"\d{1,3}(?:[,']\d{2,3})*[,']\d{3}(?:\.\d+)?|[\d.]*\d,\d+")
_OF_TIME = re.compile(r"(?:\d\d:|\d{4}-\d\d-)$")
_TIME = re.compile(r"(?<![^\Wt])(?<![.:])\d{1,2}(?::\d\d){1,2}(?![\d:])")
_SPACED = re.compile(r"(?<![\w.,'^-])(?<!\d )\d{1,3}(?: \d{3})+(?!\w|[.,'-]\d)")


def compared(text: str) -> str:
    """The text with one sign of its own, which is no bracket, for each comparison with a number: apart from what
    is before it, and at the number."""
    return _COMPARED.sub(lambda found: f" {_COMPARISONS[found[1]]}" if found[1] else found[0], text)


def comparisons(text: str) -> Iterator[str]:
    """Those with a number, "\u226518" for ">= 18"."""
    signs = frozenset(_COMPARISONS.values())
    return (word for word in words(with_commas(text)) if word[0] in signs and is_exact(word))


def normal(text: str) -> str:
    """The text as texts are compared: small letters, single spaces, round brackets for angles, one sign for all dashes,
    powers and fractions apart from what they follow, thousands without separators."""
    return _THOUSANDS.sub(_joined, with_commas(text))


def with_commas(text: str) -> str:
    """The same with the separators of thousands, but for spaces that hold a line together."""
    text = _RAISED.sub(lambda small: f"^{unicodedata.normalize('NFKC', small[0])}", text)
    text = _NARROW.sub(lambda number: "".join(filter(str.isdecimal, number[0])), text)
    text = unicodedata.normalize("NFKC", compared(text)).casefold().translate(_SIGNS)
    return " ".join(text.split())


def _joined(number: re.Match[str]) -> str:
    around = number.string[max(0, number.start() - 1) : number.start()] + number.string[number.end() :][:1]
    return number[0] if around == "()" else number[0].replace(number[1], "")


def bare(text: str) -> str:
    """The text without the signs around it; a point before a letter, digit or slash is no such sign."""
    found = text.strip(_AROUND)
    if not found:
        return ""
    before = text[: text.find(found)]
    points = before[len(before.rstrip(".")) :]
    leads = len(points) == 1 and (found[0].isalnum() or found[0] == "_")
    return f"{points}{found}" if leads or found[0] in _SLASHES else found


def words(text: str) -> Iterator[str]:
    """Its words, without the signs around them."""
    return filter(None, map(bare, text.split()))


def is_exact(word: str) -> bool:
    """Whether it is a number, identifier, path or the like, which must not change by a letter."""
    if any(sign.isdigit() for sign in word):
        return len(word) > 1
    path = any(slash in word[:-1] for slash in _SLASHES)
    return len(word) > _DOTTED and ("_" in word or path or "." in word.rstrip("."))


def hyphened(word: str) -> tuple[str, ...]:
    """The first and the last part of a word that may be a name, "db-primary", or two words, "follow-up"; of another
    one nothing."""
    parts = word.split("-")
    return (parts[0], parts[-1]) if len(parts) > 1 and all(map(str.isalpha, parts)) else ()


def spaced(text: str) -> Iterator[re.Match[str]]:
    """Digits in groups of three behind single spaces, "1 200 300", which are one number or several."""
    return _SPACED.finditer(text)


def parts_words(text: str, at: int) -> bool:
    """Whether no word of the text goes on over this place."""
    before, behind = text[at - 1], text[at]
    if "," in (before, behind):
        near = text[max(0, at - 2 * _LONGEST_NUMBER) : at + 2 * _LONGEST_NUMBER]
        at -= max(0, at - 2 * _LONGEST_NUMBER)
        return not any(run.start() < at < run.end() and not _is_list(run) for run in _RUN.finditer(near))
    signs = before in _PARTING or behind in _PARTING
    return signs or not (before.isascii() or behind.isascii() or (before + behind).isdecimal())


def _is_list(run: re.Match[str]) -> bool:
    """Whether digits with commas are several numbers."""
    text, start, end = run.string, run.start(), run.end()
    before, behind = text[max(0, start - 1) : start], text[end : end + 1]
    if before in ("[", "{", ",") or behind in ("]", "}") or before + behind == "()" or len(run[0]) > _LONGEST_NUMBER:
        return True
    followed = behind == "," and not text[end + 1 : end + 2].isspace() and end + 1 < len(text)
    return followed or bool(_OF_TIME.search(text, max(0, start - 8), start)) or not _NUMBER.fullmatch(run[0])


@dataclass(frozen=True)
class Wholes:
    """A text in the form of `normal` or `with_commas`, read once for all that is looked for in it."""

    text: str

    @cached_property
    def _inside_numbers(self) -> frozenset[int]:
        """Places before and behind commas and the like that are in a number."""
        runs = (run for run in _RUN.finditer(self.text) if not run[0].replace(".", "").isdecimal())
        return frozenset(at for run in runs if not _is_list(run) for at in range(run.start() + 1, run.end()))

    @cached_property
    def _inside_times(self) -> frozenset[int]:
        """Places behind the hours."""
        return frozenset(at for time in _TIME.finditer(self.text) for at in range(time.start() + 1, time.end()))

    def places(self, wanted: str) -> Iterator[int]:
        """Where this stands as whole words."""
        start = self.text.find(wanted) if wanted else -1
        while start >= 0:
            if self._is_whole(start, wanted):
                yield start
            start = self.text.find(wanted, start + 1)

    def __contains__(self, wanted: str) -> bool:
        return next(self.places(wanted), None) is not None

    def _is_whole(self, start: int, wanted: str) -> bool:
        text, end = self.text, start + len(wanted)
        if CUT in wanted or start in self._inside_numbers or end in self._inside_numbers or start in self._inside_times:
            return False
        if self._loses_a_sign(start, wanted):
            return False
        before, behind = text[max(0, start - 2) : start][::-1], text[end : end + 2]
        if wanted.isdecimal() and behind[:1] == "-" and behind[1:].isalpha():  # "30-day" is thirty days
            behind = ""
        if before[:1] == "." and behind[:1] == "(" and not wanted[0].isdecimal():  # of self.get_user()
            before = ""
        if before[:1] == "." and before[1:] and before[1:] in _SLASHES:  # of /.env.local
            return False
        if wanted[0] in _SLASHES:
            return not self._goes_on_with_a_path(start) and not _continues(behind, wanted[-1], _JOINS_AFTER)
        if before[:1] in ("-", ".") and (wanted[0].isdecimal() or wanted[0] == "."):
            return False
        return not (_continues(before, wanted[0], _JOINS_BEFORE) or _continues(behind, wanted[-1], _JOINS_AFTER))

    def _loses_a_sign(self, start: int, wanted: str) -> bool:
        """Whether it is an amount of money behind a minus, with the sign of its currency or without."""
        text = self.text
        if wanted[0].isdecimal() and text[start - 1 : start] in _CURRENCIES:
            start -= 1
        elif not (wanted[0] in _CURRENCIES and wanted[1:2].isdecimal()):
            return False
        return text[start - 1 : start] == "-" and not text[max(0, start - 2) : start - 1].isalnum()

    def _goes_on_with_a_path(self, start: int) -> bool:
        """Whether the slash there is not the first sign of a path."""
        text, before = self.text, self.text[max(0, start - 3) : start]
        if before[-1:] == ":":  # of s3:// and C:\, but not of host:/data
            drive = before[-2:-1].isalpha() and not before[-3:-2].isalnum()
            return drive or text[start + 1 : start + 2] == text[start]
        return before[-1:].isalnum() or (before[-1:] != "" and before[-1:] in _BEFORE_SLASHES)


def _continues(beyond: str, edge: str, joins: str) -> bool:
    """Whether a word goes on beyond its edge; `beyond`: the two signs there, the nearer one first."""
    near, far = beyond[:1], beyond[1:2]
    if near in _ALWAYS_JOIN:
        return True
    if edge in _EDGES or near.isalnum():
        return near.isalnum() and (edge in _EDGES or edge.isalnum())
    return bool(near) and near in joins and far.isalnum()
