"""The words of a text as BM25 counts them: lower case, no English stop words, stemmed (Snowball).

words_of("The cats, asleep")  ->  ["the", "cats", "asleep"]
numbers = Numbers(stem=True)
[numbers[word] for word in words_of("The cats, a cat")]  ->  [-1, 0, 0]      "a" has one letter and is no word
"""

from __future__ import annotations

import re
from collections.abc import Callable

import Stemmer

_STOP_TEXT = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
STOP_WORDS = frozenset(_STOP_TEXT.split())
"""Lucene's English stop words, which bm25s uses too."""
_LANGUAGE = "english"
_WORD = re.compile(r"\w\w+")


def words_of(text: str) -> list[str]:
    """The words of two letters or more, in lower case, stop words included."""
    return _WORD.findall(text.lower())


def stemmer() -> Callable[[str], str]:
    """A stemmer of one's own, since it must not be shared between threads; making one costs a microsecond."""
    return Stemmer.Stemmer(_LANGUAGE).stemWord


class Numbers(dict[str, int]):
    """Word -> number of its stem, in order of first appearance; -1 for a stop word. Filled as words are met."""

    def __init__(self, *, stem: bool) -> None:
        self.terms: dict[str, int] = {}
        self._stem: Callable[[str], str] = stemmer() if stem else str

    def __missing__(self, word: str) -> int:
        number = -1 if word in STOP_WORDS else self.terms.setdefault(self._stem(word), len(self.terms))
        self[word] = number
        return number
