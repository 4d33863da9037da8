"""The words of a text as BM25 compares them, in any script.

    words_of("The cats, asleep")             ->  ["the", "cats", "asleep"]
    words_of("C# on .NET, Norway's U.S.")    ->  ["c#", "on", ".net", "net", "norway", "us"]
    words_of("getUserName")                  ->  ["getusername", "get", "user", "name"], like get-user_name
    words_of("v3.11.2 and 1,234.5")          ->  ["v3.11.2", "3.11.2", "3.11", "11", "and", "1234.5", "234"]
    words_of("Zürich")                       ->  ["zürich", "zurich"]
    words_of("東京都")                        ->  ["東京", "京都", "東", "京", "都"], of a query ["東京", "京都"]

Case, Unicode form and width do not count. A compound is found as a whole, in whichever way it is joined, and by its
parts of at least two letters; a word with accents also by its plain letters. Scripts without blanks between words are
cut into pairs of neighbouring letters, alphabets among them into three, and what is shorter, of which a query takes
the longest only: shorter ones stand everywhere. No word reaches across white space.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

VERSION = 3
"""Raised when texts get other words: an index of the old ones is of no use."""

_MARKS = "".join(c for c in map(chr, range(0x300, 0x10000)) if unicodedata.category(c)[0] == "M")
"""Combining marks, such as the vowels of Hindi and Thai: `re` takes none for a letter."""
_RUN = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3041-\u30fa\u30fc-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]+)"
)
"""Thai, Lao, Burmese, Khmer, kana and Han; and Hangul, which puts its blanks between phrases."""
_HAN = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_LONE = re.compile(f"(?<![{_HAN}])[{_HAN}](?![{_HAN}])")
_ALPHABETS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")
"""Those of them that write sounds with several letters: Thai, Lao, Burmese, Khmer."""
_WIDE = f"\u3040-\u30ff{_HAN}"
COUNTED = re.compile(
    rf"[{_WIDE}][^\w\s]*|(?:{_ALPHABETS.pattern}[{_MARKS}]*){{1,4}}"
    rf"|(?:(?!{_ALPHABETS.pattern})[^\s{_WIDE}]){{1,200}}"
)
"""A word as limits on the length of a text count it: a character of Chinese or Japanese, up to four letters of Thai and
the like with their marks, else what stands between blanks, at most 200 characters of it."""
_LETTER = re.compile(f".[{_MARKS}]*", re.DOTALL)
_COMPOUND = re.compile(
    rf"(?:(?<![\w.])\.(?=[^\W\d_]))?[\w{_MARKS}]+"
    rf"(?:(?:[.'\-+&@/\\]|::?|(?<=\d),(?=\d))[\w{_MARKS}]+)*(?:\+\+|[+#])?"
)
_OUTER = re.compile(r"[@/\\]|::?")
_NUMBER = re.compile(r"\d+(?:[.,'_]\d+)+")
_PART = re.compile(rf"{_NUMBER.pattern}|[vV](?=\d+\.\d)|(?:^\.)?(?:[^\W_]|[{_MARKS}])+(?:[+#]+(?!\w))?")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z\d])(?=[A-Z][a-z])")
_GROUPED = re.compile(r"\d{1,3}(?:[,'_]\d{2,3})*[,'_]\d{3}(?:\.\d+)?")
_DIGITS, _FOREIGN_DIGITS = re.compile(r"\d+"), re.compile(r"(?![0-9])\d")
_SAME = str.maketrans(
    {
        **dict.fromkeys("™℠", " "),
        **dict.fromkeys("\u2019\u2018\u02bc\u02b9\u2032\uff07", "'"),
        **dict.fromkeys("\u2010\u2011", "-"),
        # the soft hyphen, Arabic elongation, joiners, and marks of direction and variation
        **dict.fromkeys(map(chr, (0xAD, 0x640, *range(0x200B, 0x2010), 0x2060, 0xFEFF, *range(0xFE00, 0xFE10)))),
    }
)
"""Signs written in several ways -> one of them; None: left out."""
_ACCENTS = re.compile("[\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670\u06d6-\u06ed]+")
_PLAIN = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ð": "d", "\u0131": "i", "æ": "ae", "œ": "oe", "þ": "th"})
_LONGEST_PIECE = 10_000
"""Characters without white space that are cut into words at once."""
_LONGEST = 5
"""Numbers of a version from which shorter versions are taken."""


def words_of(text: str, *, asked: bool = False) -> list[str]:
    """The words in the order of the text, stop words and single letters included; those of a compound together.

    asked    the text is a query
    """
    return [word for piece in text.split() for word in words_in(piece, asked=asked)]


def words_in(piece: str, *, asked: bool = False) -> list[str]:
    """`words_of` a text without white space."""
    if len(piece) > _LONGEST_PIECE:
        pieces = (piece[at : at + _LONGEST_PIECE] for at in range(0, len(piece), _LONGEST_PIECE))
        return [word for each in pieces for word in words_in(each, asked=asked)]
    if piece.isascii():
        if piece.isalnum() and (
            piece.islower() or piece.isupper() or piece.isdigit() or (piece.istitle() and piece.isalpha())
        ):
            return [piece.lower()]  # as most are
        return [word for compound in _COMPOUND.findall(piece) for word in _of_compound(compound)]
    piece = unicodedata.normalize("NFKC", piece.translate(_SAME))
    return list(_of_any_script(_FOREIGN_DIGITS.sub(_ascii, piece), asked))


def apart(text: str) -> str:
    """The text with blanks around each letter of scripts without blanks between words.   a 東京都  ->  a 東 京 都"""
    if text.isascii():
        return text
    return " ".join(_RUN.sub(lambda run: f" {' '.join(_LETTER.findall(run[0]))} ", text).split())


def _of_any_script(piece: str, asked: bool) -> Iterator[str]:
    for place, run in enumerate(_RUN.split(piece)):
        if place % 2:
            yield from _of_run(run, asked)
        else:
            for compound in _COMPOUND.findall(run):
                yield from _of_compound(compound)


def _of_run(run: str, asked: bool) -> Iterator[str]:
    letters = _LETTER.findall(run)
    longest = min(3 if _ALPHABETS.match(run) else 2, len(letters))
    for size in range(longest, longest - 1 if asked else 0, -1):
        yield from ("".join(letters[i : i + size]) for i in range(len(letters) - size + 1))
    if asked and len(letters) > 1:
        yield from _LONE.findall(run)  # words of one letter, such as 犬 in 犬は


def _ascii(digit: re.Match[str]) -> str:
    return str(unicodedata.decimal(digit[0]))


def _of_compound(compound: str) -> Iterator[str]:
    if compound.endswith(("'s", "'S")):
        compound = compound[:-2]
    parts = [_parts(piece) for piece in _OUTER.split(compound)]
    if len(parts) > 1:
        yield "/".join(map(_joined, parts))
    for of_piece in parts:
        if len(of_piece) > 1:
            yield from _spellings(_joined(of_piece))
        for part in of_piece:
            if part[0].isdigit() and _NUMBER.fullmatch(part):
                yield from _of_number(part)
            elif len(part) > 1 or len(of_piece) == 1:
                yield from _spellings(part.casefold())


def _parts(piece: str) -> list[str]:
    return [part for found in _PART.findall(piece) for part in ([found] if found.isdigit() else _HUMP.split(found))]


def _joined(parts: Sequence[str]) -> str:
    """The parts as one word, with a sign only between two numbers."""
    whole = ""
    for part in parts:
        word = _plain_number(part) if part[0].isdigit() and _NUMBER.fullmatch(part) else part.casefold()
        whole += f"-{word}" if whole[-1:].isdigit() and word[:1].isdigit() else word
    return whole


def _of_number(number: str) -> Iterator[str]:
    """Itself, the shorter versions of a version, 1.234.567 as one number, and its groups of at least two digits."""
    plain = _plain_number(number)
    yield plain
    groups = plain.split(".")
    for count in range(2, min(len(groups), _LONGEST)):
        yield ".".join(groups[:count])
    if len(groups) > 2 and all(len(group) == 3 for group in groups[1:]):
        yield "".join(groups)
    yield from (group for group in _DIGITS.findall(number) if len(group) > 1 and group != plain)


def _plain_number(number: str) -> str:
    """ "1,234.5" -> "1234.5", "3,5" -> "3.5"."""
    if _GROUPED.fullmatch(number):
        return number.replace(",", "").replace("'", "").replace("_", "")
    return number.replace(",", ".").replace("'", ".").replace("_", ".")


def _spellings(word: str) -> Iterator[str]:
    """The word, then without signs and without accents."""
    yield word
    bare = word.strip(".+#")
    if bare != word and len(bare) > 1:
        yield bare
    if not bare.isascii():
        plain = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", bare))).translate(_PLAIN)
        if plain != bare:
            yield plain
