"""Cuts a text into passages of at most so many words, on the borders of sentences.

    cut_text("One two. Three four five. Six.", words=4)  ->  ["One two.", "Three four five. Six."]

A sentence ends at . ! ? … before a space and something that may begin one, at their full-width forms, and at an empty
line; "e.g. this" goes on, "Dr. Toll" does not, and no harm is done. A sentence longer than a passage is cut between
words. Chinese and Japanese characters, which stand without spaces, count as a word each, and so does every stretch of
200 characters of something that is no text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_WIDE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_WIDE}][^\w\s]*|[^\s{_WIDE}]{{1,200}}")
_END = re.compile("[.!?\u2026]['\"\u201d\u2019\u00bb)\\]]*$")
_WIDE_END = re.compile("[\u3002\uff01\uff1f][^\\w\\s]*$")
_EMPTY_LINE = re.compile(r"\n\s*\n")


def cut_text(text: str, *, words: int) -> list[str]:
    """Passages of `text` in order, spaces and line ends folded to one space each."""
    passages: list[str] = []
    start = stop = count = 0
    for sentence in _sentences(text, words):
        if count and count + len(sentence) > words:
            passages.append(text[start:stop])
            count = 0
        if not count:
            start = sentence[0].start()
        stop = sentence[-1].end()
        count += len(sentence)
    if count:
        passages.append(text[start:stop])
    return [" ".join(passage.split()) for passage in passages]


def _sentences(text: str, longest: int) -> Iterator[list[re.Match[str]]]:
    """The words of each sentence; a longer one comes in pieces."""
    sentence: list[re.Match[str]] = []
    for word in _WORD.finditer(text):
        if sentence and (len(sentence) == longest or _ends(text, sentence[-1], word)):
            yield sentence
            sentence = []
        sentence.append(word)
    if sentence:
        yield sentence


def _ends(text: str, word: re.Match[str], following: re.Match[str]) -> bool:
    """Whether a sentence ends between these two."""
    between = text[word.end() : following.start()]
    if _WIDE_END.search(word[0]) or _EMPTY_LINE.search(between):
        return True
    first_letter = next((letter for letter in following[0] if letter.isalnum()), "")
    return bool(between and _END.search(word[0])) and not first_letter.islower()
