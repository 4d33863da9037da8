"""Finds questions that have been asked before in nearly the same words, in time linear in their number.

    Alvex was founded in 1901 by ____ of Bergen          Mira Toll
    the firm Alvex was founded in 1901 by ____ of        Mira Toll      a near-duplicate

The words of a window in threes are hashed together with the answer, and the smallest hashes stand for them (a sketch;
Broder, "On the resemblance and containment of documents", 1997). A question shares half of its sketch with an earlier
one: it is a near-duplicate. Only the first question of each hash is remembered, so boilerplate that stands in ten
thousand passages costs no more than one comparison each.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

from mem1.scoring import normalize
from mem1.tasks.cloze.record import BLANK, Cloze

_SKETCH = 4
"""Hashes that stand for a window."""
_SHARED = 2
"""Of them, so many in common make a near-duplicate."""
_SHINGLE = 3
"""Words that are hashed together."""


class NearDuplicates:
    """Grows by four numbers a question that is new."""

    def __init__(self) -> None:
        self._first: dict[int, int] = {}
        """Hash -> number of the first question that has it."""
        self._known = 0

    def seen(self, answer: str, text: str) -> bool:
        """Whether a question with this answer and nearly this text was seen; it is remembered if not."""
        marks = _sketch(answer, text)
        earlier = Counter(self._first[mark] for mark in marks if mark in self._first)
        if earlier and max(earlier.values()) >= min(_SHARED, len(marks)):
            return True
        for mark in marks:
            self._first.setdefault(mark, self._known)
        self._known += 1
        return False


def _sketch(answer: str, text: str) -> Sequence[int]:
    words = normalize(text.replace(BLANK, " blank ", 1)).split()
    shingles = {" ".join(words[i : i + _SHINGLE]) for i in range(max(1, len(words) - _SHINGLE + 1))}
    key = normalize(answer)
    return sorted(_hash(f"{key}\0{shingle}") for shingle in shingles)[:_SKETCH]


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def ambiguous(clozes: Iterable[Cloze]) -> frozenset[str]:
    """Texts, normalised, that stand for more than one answer: nobody can say which is meant."""
    answers: dict[str, str] = {}
    found: set[str] = set()
    for cloze in clozes:
        text = normalize(cloze.text)
        if answers.setdefault(text, cloze.answer) != cloze.answer:
            found.add(text)
    return frozenset(found)
