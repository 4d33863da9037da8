"""Shows of each result only the words around the best match of the query.

    Snippets(bm25, words=5).search(["capital of Norway"], k=1)
    Passage("p0", "Oslo", "a long way north, Oslo is the capital of Norway. It has ...")
    ->  Passage("p0", "Oslo", "is the capital of Norway.")

The best match is the stretch of so many words that shares most words with the query, each counted as often as the
query has it; of equally good ones the middle one, so that there is as much to see on both sides. Words are compared in
lower case and stemmed, little words too: they tell where a copied sentence stands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval.base import Retriever, check_search
from mem1.retrieval.words import stemmer, words_of


@dataclass(frozen=True, slots=True)
class Snippets:
    """The results of `retriever`, each with `words` words of its text, or all where it has fewer."""

    retriever: Retriever
    words: int = 24

    def __post_init__(self) -> None:
        if self.words < 1:
            raise UserError(f"snippets need at least 1 word, not {self.words}")

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        """Per query at most `k` (passage with a shortened text, score), as the retriever has them."""
        check_search(queries, k)
        return [
            [(replace(passage, text=snippet(passage.text, query, words=self.words)), score) for passage, score in found]
            for query, found in zip(queries, self.retriever.search(queries, k), strict=True)
        ]


def snippet(text: str, query: str, *, words: int) -> str:
    """The stretch of `text` that matches `query` best, white space folded. Time is linear in the text."""
    shown = text.split()
    if len(shown) <= words:
        return " ".join(shown)
    stem = stemmer()
    wanted = Counter(map(stem, words_of(query)))
    stems = [[s for s in map(stem, words_of(word)) if s in wanted] for word in shown]
    start = min(max(0, _best_start(stems, wanted, words)), len(shown) - words)
    return " ".join(shown[start : start + words])


def _best_start(stems: Sequence[Sequence[str]], wanted: Counter[str], words: int) -> int:
    """The middle of the first row of starts whose stretches share most with `wanted`.

    Stretches may reach past both ends: else a match at an end would be pushed to the border of what is shown.
    """
    inside: Counter[str] = Counter()
    shared, best, first, last = 0, -1, 0, 0
    for start in range(1 - words, len(stems)):
        if start + words <= len(stems):
            for stem in stems[start + words - 1]:
                inside[stem] += 1
                shared += inside[stem] <= wanted[stem]
        if start > 0:
            for stem in stems[start - 1]:
                shared -= inside[stem] <= wanted[stem]
                inside[stem] -= 1
        if shared > best:
            best, first, last = shared, start, start
        elif shared == best and last == start - 1:
            last = start
    return (first + last) // 2
