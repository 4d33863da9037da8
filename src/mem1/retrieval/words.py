"""The words of a text as BM25 counts them: lower case, no English stop words, stemmed (Snowball).

words_of("The cats, asleep")  ->  ["the", "cats", "asleep"]
Numbers(stem=True).of_text("The cats, a cat")  ->  [0, 0]      "the" is a stop word, "a" has one letter
"""

from __future__ import annotations

import re
from collections.abc import Callable

import Stemmer
from bm25s.stopwords import STOPWORDS_EN

STOP_WORDS = frozenset(STOPWORDS_EN)
"""Lucene's English stop words."""
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

    def of_text(self, text: str) -> list[int]:
        """The numbers of its words in their order, stop words left out."""
        return [number for number in map(self.__getitem__, words_of(text)) if number >= 0]
