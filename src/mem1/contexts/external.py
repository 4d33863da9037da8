"""`external(k)`: a store of notes beside the context, after A-MEM: every turn becomes a note, k of them are recalled.

    context = prompt, the k notes that the last turn recalls (oldest first), the last turn

A note is a whole turn, what was written and what came back, never shortened. The last turn is the query, by BM25 over
words. As in A-MEM a note is linked to the earlier one most like it, and a recalled note brings the linked one along:
places are filled by the best match, its link, the second match, its link, and so on. A-MEM lets a language model write
keywords and links; here both follow from the words, so that nothing is called that is not trained.

Source: A-MEM (arXiv 2502.12110); used with k = 3 and the last turn as the query by MEM1's baseline, whose notes were
truncated for a while and whose contexts had lost the task.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from mem1.contexts.base import Selection, keep
from mem1.records import Turn


@dataclass(frozen=True, slots=True)
class External:
    """Keep the last turn, and before it `k` older ones that it recalls."""

    k: int
    asks = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"external(k) needs k >= 1, not {self.k}")

    @property
    def name(self) -> str:
        return f"external({self.k})"

    def select(self, turns: Sequence[Turn]) -> Selection:
        *notes, newest = turns
        recalled = range(len(notes)) if len(notes) <= self.k else sorted(islice(_recalled(turns), self.k))
        return keep([*(notes[i] for i in recalled), newest])


def _recalled(turns: Sequence[Turn]) -> Iterator[int]:
    """Numbers of the notes in the order in which they are recalled, each once."""
    import bm25s

    words = [_words(turn) for turn in turns]
    store = bm25s.BM25()
    store.index(words[:-1], show_progress=False)

    def best_first(query: int, among: int) -> list[int]:
        """The first `among` notes by how much they are like a turn; the newest of equals first."""
        scores = store.get_scores(words[query])[:among]
        return sorted(range(among), key=lambda note: (-scores[note], -note))

    seen: set[int] = set()
    for match in best_first(len(turns) - 1, among=len(turns) - 1):
        for note in (match, *best_first(match, among=match)[:1]):
            if note not in seen:
                seen.add(note)
                yield note


def _words(turn: Turn) -> list[str]:
    # a note without words is like another one: BM25 needs at least one
    return re.findall(r"\w+", f"{turn.state} {turn.content} {turn.observation}".lower()) or [""]
