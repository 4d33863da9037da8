"""The words around a blank, and why some of them make no question.

window(words, Span(4, 6, "Mira Toll"), left=3, right=2)  ->  "was founded by ____ in 1901"

refused(...)  ->  "odd"        a mark in it that prompts or states are made of, or a word of over 100 characters
                  "short"      fewer words than `least`, or fewer than two before the blank
                  "repeated"   the answer, or a word of it, stands in the window
                  "title"      the passage's title says the answer, or most of it
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, get_args

from mem1.scoring import normalize
from mem1.tasks.cloze.record import BLANK
from mem1.tasks.cloze.spans import LONGEST_WORD, Span, Word

Refusal = Literal["odd", "short", "repeated", "title"]
REFUSALS: tuple[Refusal, ...] = get_args(Refusal)
_MARKS = re.compile(r"[|=]|__|(?:^|\s)Q\d|\bDoc \d")
_LEAST_BEFORE = 2


def window(words: Sequence[Word], span: Span, *, left: int, right: int) -> str:
    """`left` words before the blank and `right` after it; where one side has too few, the other gives more."""
    low, high = _borders(len(words), span, left, right)
    first, last = words[span.start], words[span.stop - 1]
    before = [_whole(word) for word in words[low : span.start]]
    after = [_whole(word) for word in words[span.stop : high]]
    return " ".join((*before, f"{first.before}{BLANK}{last.after}", *after))


def _borders(length: int, span: Span, left: int, right: int) -> tuple[int, int]:
    lacking_before, lacking_after = max(0, left - span.start), max(0, right - (length - span.stop))
    return max(0, span.start - left - lacking_after), min(length, span.stop + right + lacking_before)


def _whole(word: Word) -> str:
    return f"{word.before}{word.core}{word.after}"


def refused(text: str, answer: str, title: str, *, least: int) -> Refusal | None:
    """Why this window makes no question of this answer; None: it makes one. `least` is the fewest words around it."""
    around = text.replace(BLANK, " ", 1)
    answered = set(normalize(answer).split())
    if not answered or _MARKS.search(around) or max(map(len, around.split()), default=0) > LONGEST_WORD:
        return "odd"
    if len(around.split()) < least or len(text.split(BLANK)[0].split()) < _LEAST_BEFORE:
        return "short"
    if answered & set(normalize(around).split()):
        return "repeated"
    titled = set(normalize(title).split())
    if answered <= titled or (titled and titled <= answered):
        return "title"
    return None
