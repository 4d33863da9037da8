"""Several search engines as one, by reciprocal rank fusion: only the ranks count, so scores need not be comparable.

    hybrid = Hybrid([bm25, dense])
    hybrid.search(["capital of Norway"], k=3)     a passage that is 1st and 4th scores 1/61 + 1/64

Cormack, Clarke & Büttcher (SIGIR 2009), with their constant of 60.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval.base import Retriever, check_search


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Asks each of `retrievers`, over the same passages, and adds up 1 / (constant + rank) by the passages' ids."""

    retrievers: Sequence[Retriever]
    depth: int = 100
    """Results asked of each, where fewer are wanted."""
    constant: float = 60
    """The larger, the less the first ranks outweigh the later ones."""

    def __post_init__(self) -> None:
        if not self.retrievers or self.depth < 1 or self.constant < 0:
            raise UserError("a hybrid needs at least one retriever, depth >= 1 and constant >= 0")

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        """Per query at most `k` (passage, fused score), best first; equal scores as the first retriever has them."""
        check_search(queries, k)
        each = [retriever.search(queries, max(k, self.depth)) for retriever in self.retrievers]
        return [self._fused([results[i] for results in each], k) for i in range(len(queries))]

    def _fused(self, rankings: Sequence[Sequence[tuple[Passage, float]]], k: int) -> list[tuple[Passage, float]]:
        passages: dict[str, Passage] = {}
        scores: dict[str, float] = defaultdict(float)
        for ranking in rankings:
            for rank, (passage, _) in enumerate(ranking, start=1):
                passages.setdefault(passage.id, passage)
                scores[passage.id] += 1 / (self.constant + rank)
        best = sorted(scores.items(), key=lambda item: -item[1])[:k]
        return [(passages[identifier], score) for identifier, score in best]
