"""Which passages' vectors lie nearest to a query's: the port, and the exact search that needs no library.

    Flat(vectors).search(queries, k=2)  ->  [array([7, 3]), array([0, 12, 5])]     at least k, if there are so many

Positions only, in any order: `Dense` scores what it is given by the exact product, so that a score never depends on
how it was found, nor on what else was asked at the same time.

FAISS's approximate searches: clusters (IVF) and a graph of neighbours (HNSW), vectors kept as float16.

    index = FaissIndex.build(vectors, "hnsw")
    index.search(queries, k=3)  ->  [array([7, 3, 12]), ...]

For millions of passages; below, the exact search is quick enough and misses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

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


_VECTORS_OF_A_CLUSTER = 39
"""FAISS warns of fewer while it trains."""
_PROBED_SHARE = 1 / 8
"""Of the clusters that a search looks into."""
_NEIGHBOURS = 32
_BUILD_WIDTH = 200
_SEARCH_WIDTH = 128
_FAISS_BLOCK = 16384


class FaissIndex:
    """A finished FAISS index; any number of threads may search it."""

    def __init__(self, index: Any, kind: Literal["ivf", "hnsw"]) -> None:
        self._index = index
        self._kind: Literal["ivf", "hnsw"] = kind

    @classmethod
    def build(cls, vectors: np.ndarray, kind: Literal["ivf", "hnsw"]) -> FaissIndex:
        """Index float16 `vectors`. Raises UserError where FAISS is not installed."""
        faiss = _faiss(kind)
        count, dimension = vectors.shape
        if kind == "ivf":
            clusters = max(1, min(round(4 * math.sqrt(count)), count // _VECTORS_OF_A_CLUSTER))
            index = faiss.index_factory(dimension, f"IVF{clusters},SQfp16", faiss.METRIC_INNER_PRODUCT)
            # FAISS takes 256 vectors a cluster at most, drawn from those that it is given
            sample = np.random.default_rng(0).permutation(count)[: 256 * clusters]
            index.train(vectors[np.sort(sample)].astype(np.float32))
        else:
            index = faiss.index_factory(dimension, f"HNSW{_NEIGHBOURS}_SQfp16", faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = _BUILD_WIDTH
            index.train(vectors[:1].astype(np.float32))
        for start in range(0, count, _FAISS_BLOCK):
            index.add(vectors[start : start + _FAISS_BLOCK].astype(np.float32))
        return cls(index, kind)

    @classmethod
    def load(cls, path: Path, kind: Literal["ivf", "hnsw"]) -> FaissIndex:
        faiss = _faiss(kind)
        try:
            return cls(faiss.read_index(str(path)), kind)
        except RuntimeError as error:
            raise UserError(f"FAISS cannot read {path}; build the index again") from error

    def save(self, path: Path) -> None:
        faiss = _faiss(self._kind)
        try:
            faiss.write_index(self._index, str(path))
        except RuntimeError as error:
            raise OSError(0, f"FAISS could not write it ({error})", str(path)) from error

    def search(self, queries: np.ndarray, k: int) -> list[np.ndarray]:
        faiss = _faiss(self._kind)
        if self._kind == "ivf":
            probed = max(1, math.ceil(self._index.nlist * _PROBED_SHARE))
            how = faiss.SearchParametersIVF(nprobe=probed)
        else:
            how = faiss.SearchParametersHNSW(efSearch=max(_SEARCH_WIDTH, 2 * k))
        _, positions = self._index.search(queries, min(k, self._index.ntotal), params=how)
        return [row[row >= 0] for row in positions]


def _faiss(kind: Literal["ivf", "hnsw"]) -> Any:
    """The library, whose own types do not say what it has."""
    check_nearest(kind)
    import faiss

    return faiss
