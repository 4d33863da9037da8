"""Recall: an action that is answered from what the attempt itself has seen or noted and its memory has dropped.

    <recall> 3 </recall>                        the result of turn 3
    <recall> Q3 </recall>                       the note with this label or key
    <recall> where Mira Toll was born </recall>     the dropped result or note that fits best, by BM25 over words

It takes a turn, as a search does, and finds only what was shown or written before: memory on demand, not in sight.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mem1.memory.notes import read_note, standing
from mem1.memory.selection import Kept, MemoryPolicy
from mem1.protocol import without_hint
from mem1.records import Turn
from mem1.words import words_of


class WordIndex:
    """A few texts that an attempt has seen or written, compared with a query by their words (`mem1.words`)."""

    def __init__(self, texts: Sequence[str]) -> None:
        from mem1.lexical import bm25s

        # BM25 needs at least one word, so a text without any gets the empty one
        words = [words_of(text) or [""] for text in texts]
        self._known = {word for of_one in words for word in of_one}
        self._bm25 = bm25s.BM25()
        self._bm25.index(words, show_progress=False)
        self._size = len(words)

    def scores(self, query: str) -> list[float]:
        """The BM25 score of each text, in their order; 0 where it shares no word with the query."""
        known = [word for word in words_of(query, asked=True) if word in self._known]
        return self._bm25.get_scores(known).tolist() if known else [0.0] * self._size


NOTHING = "Nothing that was shown or noted before and is no longer in sight fits."
_HANDLE = re.compile(r"(?:turn\s+)?(\d{1,6})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Dropped:
    """A result or a note that is out of sight."""

    turn: int
    """Number of its turn, from 1."""
    query: str | None
    """Of a result, what was searched; None: a note."""
    text: str

    def __str__(self) -> str:
        return f"Turn {self.turn}, {'note' if self.query is None else self.query}: {self.text}"


def recalled(policy: MemoryPolicy, turns: Sequence[Turn]) -> str:
    """The reply to the last of these turns, which asks for something that `policy` has dropped."""
    asked, kept = turns[-1].content, policy.select(turns).kept
    results, notes = _results(turns, kept), notes_out_of_sight(turns, kept)
    handle = _HANDLE.fullmatch(asked)
    if handle is not None and int(handle[1]) <= len(turns):  # else it is a year or another number in the texts
        found = next((result for result in results if result.turn == int(handle[1])), None)
    else:
        keys = {asked.strip().rstrip(":").lower(), read_note(asked).key.lower()} - {""}
        found = next((note for note in notes if read_note(note.text).key.lower() in keys), None)
        found = found or _best(asked, sorted([*results, *notes], key=lambda dropped: dropped.turn))
    return NOTHING if found is None else str(found)


def _results(turns: Sequence[Turn], kept: Sequence[Kept[Turn]]) -> list[Dropped]:
    in_sight = {id(one.turn) for one in kept if one.result}
    return [
        Dropped(number, turn.content, without_hint(turn.observation).strip())
        for number, turn in enumerate(turns[:-1], start=1)
        if turn.observation and id(turn) not in in_sight
    ]


def notes_out_of_sight(turns: Sequence[Turn], kept: Sequence[Kept[Turn]]) -> list[Dropped]:
    """Those that stand after these turns, no two with one key, and are not among what is kept of them."""
    in_sight = {(id(one.turn), p) for one in kept for p in _positions(one)}
    return [
        Dropped(number, None, turns[number - 1].notes[p].strip())
        for number, positions in standing(turns, first=1).items()
        for p in positions
        if (id(turns[number - 1]), p) not in in_sight
    ]


def _positions(kept: Kept[Turn]) -> Sequence[int]:
    return range(len(kept.turn.notes)) if kept.only_notes is None else kept.only_notes


def _best(query: str, dropped: Sequence[Dropped]) -> Dropped | None:
    """The newest of those that fit best; None if none has a word of the query."""
    if not dropped:
        return None
    scores = WordIndex([f"{one.query or ''} {one.text}" for one in dropped]).scores(query)
    best = max(range(len(dropped)), key=lambda i: (scores[i], i))
    return dropped[best] if scores[best] > 0 else None
