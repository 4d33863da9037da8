"""Which passages' vectors lie nearest to a query's: the port, and the exact search that needs no library.

    Flat(vectors).search(queries, k=2)  ->  [array([7, 3]), array([0, 12, 5])]     at least k, if there are so many

Positions only, in any order: `Dense` scores what it is given by the exact product, so that a score never depends on
how it was found, nor on what else was asked at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np

from mem1.errors import UserError

NearestKind = Literal["flat", "ivf", "hnsw"]
NEAREST_KINDS: tuple[NearestKind, ...] = ("flat", "ivf", "hnsw")
"""flat compares with every vector; ivf with those of the nearest clusters; hnsw walks a graph of neighbours."""
_BLOCK = 4096
"""Vectors turned into float32 at a time: a block stays in the processor's cache."""
_SCORES = 1 << 26
"""Scores held at a time, 256 MB."""
_ROUNDING = 1e-4
"""Well above the error of a float32 product of vectors of length 1."""


class Nearest(Protocol):
    """Anything that finds candidates among vectors."""

    def search(self, queries: np.ndarray, k: int) -> Sequence[np.ndarray]:
        """Per row of `queries` (float32, length 1) positions of at least `k` vectors, or of all that it found."""
        ...


class Flat:
    """Compares with every vector, block by block, straight from the memory map."""

    def __init__(self, vectors: np.ndarray, *, block: int = _BLOCK, scores: int = _SCORES) -> None:
        """`block` and `scores` bound what is held beside `vectors`, and change nothing else."""
        self._vectors, self._block, self._most_scores = vectors, block, scores

    def search(self, queries: np.ndarray, k: int) -> list[np.ndarray]:
        together = max(1, self._most_scores // max(1, len(self._vectors)))
        found: list[np.ndarray] = []
        for start in range(0, len(queries), together):
            found += [_best(scores, k) for scores in self._scores(queries[start : start + together])]
        return found

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        """[queries, vectors]"""
        # torch turns float16 into float32 several times as fast as numpy
        import torch

        vectors, columns = torch.from_numpy(self._vectors), torch.from_numpy(queries).T
        scores = torch.empty((len(vectors), len(queries)))
        for start in range(0, len(vectors), self._block):
            block = vectors[start : start + self._block].float()
            torch.matmul(block, columns, out=scores[start : start + self._block])
        return scores.T.contiguous().numpy()


def _best(scores: np.ndarray, k: int) -> np.ndarray:
    """Positions of the k highest, and of all that rounding may have put behind them."""
    if len(scores) <= k:
        return np.arange(len(scores))
    kth = np.partition(scores, -k)[-k]
    return np.flatnonzero(scores >= kth - _ROUNDING)


def check_nearest(kind: str) -> NearestKind:
    """The same kind. Raises UserError where there is none of that name, or the library that it needs is missing."""
    if kind not in NEAREST_KINDS:
        raise UserError(f"unknown search {kind!r}; known: {', '.join(NEAREST_KINDS)}")
    if kind != "flat":
        try:
            import faiss  # noqa: F401
        except ImportError as error:
            raise UserError(f"{kind} needs FAISS ({error}): pip install 'mem1[dense]', or take flat") from error
    return kind
