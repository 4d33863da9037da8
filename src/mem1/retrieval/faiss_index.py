"""FAISS's approximate searches: clusters (IVF) and a graph of neighbours (HNSW), vectors kept as float16.

    index = FaissIndex.build(vectors, "hnsw")
    index.search(queries, k=3)  ->  [array([7, 3, 12]), ...]

For millions of passages; below, the exact search is quick enough and misses nothing.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mem1.errors import UserError
from mem1.retrieval.nearest import check_nearest

_VECTORS_OF_A_CLUSTER = 39
"""FAISS warns of fewer while it trains."""
_PROBED_SHARE = 1 / 8
"""Of the clusters that a search looks into."""
_NEIGHBOURS = 32
_BUILD_WIDTH = 200
_SEARCH_WIDTH = 128
_BLOCK = 16384


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
        for start in range(0, count, _BLOCK):
            index.add(vectors[start : start + _BLOCK].astype(np.float32))
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
