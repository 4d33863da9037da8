"""Retrievers made of other retrievers: several as one, shortened texts.

    Hybrid([bm25, dense]).search(["capital of Norway"], k=3)     a passage ranked 1st and 4th scores 1/61 + 1/64

    Snippets(bm25, words=5).search(["capital of Norway"], k=1)   the words around the best match
    Passage("p0", "Oslo", "a long way north, Oslo is the capital of Norway. It has ...")
    ->  Passage("p0", "Oslo", "is the capital of Norway.")

A hybrid uses reciprocal rank fusion (Cormack, Clarke & Büttcher, SIGIR 2009, with their constant of 60): only ranks
count, so scores need not be comparable.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval.base import Result, Retriever, check_search
from mem1.retrieval.bm25 import stemmer
from mem1.words import COUNTED, words_of


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Searches the same passages with each of `retrievers` and adds up 1 / (constant + rank) per passage id."""

    retrievers: Sequence[Retriever]
    depth: int = 100
    """Least number of results requested from each retriever."""
    constant: float = 60
    """The larger it is, the less the first ranks outweigh later ones."""

    def __post_init__(self) -> None:
        if not self.retrievers or self.depth < 1 or self.constant < 0:
            raise UserError("a hybrid needs at least one retriever, depth >= 1 and constant >= 0")

    def search(self, queries: Sequence[str], k: int) -> list[Result]:
        """Per query at most `k` (passage, fused score), best first; equal scores in the first retriever's order."""
        check_search(queries, k)
        each = [retriever.search(queries, max(k, self.depth)) for retriever in self.retrievers]
        return [self._fused([results[i] for results in each], k) for i in range(len(queries))]

    def _fused(self, rankings: Sequence[Result], k: int) -> Result:
        passages: dict[str, Passage] = {}
        scores: dict[str, float] = defaultdict(float)
        for ranking in rankings:
            for rank, (passage, _) in enumerate(ranking, start=1):
                passages.setdefault(passage.id, passage)
                scores[passage.id] += 1 / (self.constant + rank)
        best = sorted(scores.items(), key=lambda item: -item[1])[:k]
        return [(passages[identifier], score) for identifier, score in best]


@dataclass(frozen=True, slots=True)
class Snippets:
    """The results of `retriever`, each shortened to at most `words` words of its text."""

    retriever: Retriever
    words: int = 24

    def __post_init__(self) -> None:
        if self.words < 1:
            raise UserError(f"snippets need at least 1 word, not {self.words}")

    def search(self, queries: Sequence[str], k: int) -> list[Result]:
        """Per query at most `k` (passage with a shortened text, score), in the retriever's order."""
        check_search(queries, k)
        return [
            [(replace(passage, text=snippet(passage.text, query, words=self.words)), score) for passage, score in found]
            for query, found in zip(queries, self.retriever.search(queries, k), strict=True)
        ]


def snippet(text: str, query: str, *, words: int) -> str:
    """The stretch of `text` that matches `query` best, white space folded, in time linear in the text.

    The best stretch of `words` words shares most words with the query, each counted at most as often as the query has
    it; among equally good ones we take the middle one, so as to show as much on both sides. Words are compared in
    lower case and stemmed, including stop words, which help to find a copied sentence. Scripts without spaces are cut
    into characters, or several letters, that count as words.
    """
    shown = [*COUNTED.finditer(text)]
    if len(shown) <= words:
        return " ".join(text.split())
    stem = stemmer()
    wanted = Counter(map(stem, words_of(query)))
    stems = [[s for s in map(stem, words_of(word[0])) if s in wanted] for word in shown]
    start = min(max(0, _best_start(stems, wanted, words)), len(shown) - words)
    return " ".join(text[shown[start].start() : shown[start + words - 1].end()].split())


def _best_start(stems: Sequence[Sequence[str]], wanted: Counter[str], words: int) -> int:
    """The middle of the first run of starts whose stretches share most words with `wanted`.

    Stretches may extend beyond both ends of the text; otherwise a match near an end would be pushed to the border.
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
