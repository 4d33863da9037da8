"""A second look at the first results: any function of a query and passages orders them anew.

    def score(query, passages):                       one number a passage, higher is better
        return [passage.text.count(query) for passage in passages]

    Reranked(bm25, score).search(["Oslo"], k=3)       the best 3 of BM25's first 50, by `score`

A cross-encoder is such a function: see cross_encoder.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval.base import Retriever, check_search

Scorer = Callable[[str, Sequence[Passage]], Sequence[float]]
"""(query, passages) -> a score for each."""


@dataclass(frozen=True, slots=True)
class Reranked:
    """The first results of `retriever`, ordered by `scorer`."""

    retriever: Retriever
    scorer: Scorer
    depth: int = 50
    """Results that are looked at again, where fewer are wanted."""

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise UserError(f"reranking needs depth >= 1, not {self.depth}")

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        """Per query at most `k` (passage, the scorer's score), best first; equal scores as the retriever has them.

        Raises ValueError where the scorer does not give one number for each passage.
        """
        check_search(queries, k)
        found = self.retriever.search(queries, max(k, self.depth))
        return [
            self._reordered(query, [passage for passage, _ in results])[:k]
            for query, results in zip(queries, found, strict=True)
        ]

    def _reordered(self, query: str, passages: Sequence[Passage]) -> list[tuple[Passage, float]]:
        if not passages:
            return []
        scores = [float(score) for score in self.scorer(query, passages)]
        if len(scores) != len(passages) or any(math.isnan(score) for score in scores):
            raise ValueError(f"the scorer must give {len(passages)} numbers, one a passage; it gave {scores}")
        return sorted(zip(passages, scores, strict=True), key=lambda result: -result[1])
