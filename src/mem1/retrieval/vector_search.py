"""Finding the passages whose vectors are nearest to a query's: exactly, or approximately with FAISS.

    Flat(vectors).search(queries, k=2)                        ->  [array([7, 3]), array([0, 12, 5])]
    FaissIndex.build(vectors, "hnsw").search(queries, k=2)    ->  [array([7, 3]), ...]

Searches return at least k positions where there are that many, in any order. `Dense` computes the scores of these
candidates itself, so a score depends neither on the kind of search nor on the other queries. FAISS's clusters (IVF)
and graph of neighbours (HNSW), with float16 vectors, are for millions of passages; below that the exact search is fast
enough and misses nothing.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mem1.errors import UserError

NearestKind = Literal["flat", "ivf", "hnsw"]
NEAREST_KINDS: tuple[NearestKind, ...] = ("flat", "ivf", "hnsw")
"""flat compares with all vectors, ivf with those of the nearest clusters; hnsw walks a graph of neighbours."""
_BLOCK = 4096
"""Vectors converted to float32 at a time; a block fits into the processor's cache."""
_SCORES = 1 << 26
"""Scores held in memory at a time (256 MB)."""
_ROUNDING = 1e-4
"""Tolerance, well above the error of a float32 product of vectors of length 1."""


class Flat:
    """Compares with every vector, block by block, directly from the memory map."""

    def __init__(self, vectors: np.ndarray, *, block: int = _BLOCK, scores: int = _SCORES) -> None:
        """`block` and `scores` limit the memory used besides `vectors`; results do not depend on them."""
        self._vectors, self._block, self._most_scores = vectors, block, scores

    def search(self, queries: np.ndarray, k: int) -> list[np.ndarray]:
        """Per row of `queries` (float32, length 1) the positions of at least `k` vectors, or of all there are."""
        together = max(1, self._most_scores // max(1, len(self._vectors)))
        found: list[np.ndarray] = []
        for start in range(0, len(queries), together):
            found += [_best(scores, k) for scores in self._scores(queries[start : start + together])]
        return found

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        """[queries, vectors]"""
        # torch converts float16 to float32 several times faster than numpy
        import torch

        vectors, columns = torch.from_numpy(self._vectors), torch.from_numpy(queries).T
        scores = torch.empty((len(vectors), len(queries)))
        for start in range(0, len(vectors), self._block):
            block = vectors[start : start + self._block].float()
            torch.matmul(block, columns, out=scores[start : start + self._block])
        return scores.T.contiguous().numpy()


def _best(scores: np.ndarray, k: int) -> np.ndarray:
    """Positions of the k highest scores, and of all that may rank below them only because of rounding."""
    if len(scores) <= k:
        return np.arange(len(scores))
    kth = np.partition(scores, -k)[-k]
    return np.flatnonzero(scores >= kth - _ROUNDING)


def check_nearest(kind: str) -> NearestKind:
    """Returns `kind`. Raises UserError where it is unknown or needs a library that is not installed."""
    if kind not in NEAREST_KINDS:
        raise UserError(f"unknown search {kind!r}; known: {', '.join(NEAREST_KINDS)}")
    if kind != "flat":
        try:
            import faiss  # noqa: F401
        except ImportError as error:
            raise UserError(f"{kind} needs FAISS ({error}): pip install 'mem1-agents[dense]', or use flat") from error
    return kind


_VECTORS_OF_A_CLUSTER = 39
"""Least number of vectors per cluster for which FAISS does not warn."""
_PROBED_SHARE = 1 / 8
"""Share of the clusters that a search visits."""
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
            # FAISS uses at most 256 vectors per cluster, drawn from those it receives
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


Nearest = Flat | FaissIndex


def _faiss(kind: Literal["ivf", "hnsw"]) -> Any:
    """The library as Any, since its type hints lack most of its interface."""
    check_nearest(kind)
    import faiss

    return faiss
