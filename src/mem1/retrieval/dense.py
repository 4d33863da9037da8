"""Dense retrieval: passages and queries as vectors of one encoder, close together where they mean the same.

    dense = Dense.build(passages, load_encoder("models/e5-base-v2"), prefixes=known_prefixes("e5-base-v2"))
    dense.search(["which town governs Norway"], k=3)  ->  [[(Passage("p0", "Oslo", ...), 0.83), ...]]

    index_dense(passages, encoder, Path("wiki.dense"), prefixes=...)    builds and saves an index, resuming where needed

A score is the inner product of vectors of length 1, a cosine. Vectors are float16, memory-mapped once saved.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval.base import Result, check_search
from mem1.retrieval.corpus import StoredPassages, store_passages
from mem1.retrieval.embedding import OnProgress, VectorOrigin, embed, remove_work
from mem1.retrieval.encoders import Encoder, Prefixes
from mem1.retrieval.index_folder import index_kind, read_folder, save_folder, understood
from mem1.retrieval.vector_search import FaissIndex, Flat, Nearest, NearestKind, check_nearest

KIND = "dense"
_VECTORS = "vectors.npy"
_FAISS = "faiss.index"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dense:
    """A finished index; immutable, so any number of threads may search it."""

    passages: Sequence[Passage]
    vectors: np.ndarray
    """float16 [passages, dimension], rows of length 1."""
    embedded: VectorOrigin
    """Encoder, prefix and passages that the vectors were computed from."""
    encoder: Encoder
    prefixes: Prefixes
    nearest: Nearest
    kind: NearestKind

    @classmethod
    def build(
        cls,
        passages: Sequence[Passage],
        encoder: Encoder,
        *,
        prefixes: Prefixes,
        kind: NearestKind = "flat",
        work: Path | None = None,
        on_progress: OnProgress | None = None,
    ) -> Dense:
        """Embed title and text of every passage and prepare the search.

        With a folder `work`, an interrupted embedding can be resumed (see embedding.py). Raises UserError where there
        is no passage, or the search needs FAISS and it is not installed.
        """
        check_nearest(kind)  # before hours of embedding
        if not passages:
            raise UserError("there is no passage to embed; check the corpus")
        embedded = VectorOrigin.of(passages, encoder, prefixes.passage)
        vectors = embed(passages, encoder, embedded, work=work, on_progress=on_progress)
        return cls(
            passages=tuple(passages),
            vectors=vectors,
            embedded=embedded,
            encoder=encoder,
            prefixes=prefixes,
            kind=kind,
            nearest=build_nearest(vectors, kind),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index, including its passages, to a folder, completely or not at all.

        Replaces an existing index. Raises UserError where writing fails or the folder holds something else.
        """

        def write(folder: Path) -> None:
            store_passages(folder, self.passages)
            np.save(folder / _VECTORS, self.vectors)
            if isinstance(self.nearest, FaissIndex):
                self.nearest.save(folder / _FAISS)

        facts = {
            "encoder": self.encoder.name,
            "search": self.kind,
            "query_prefix": self.prefixes.query,
            "embedded": asdict(self.embedded),
        }
        save_folder(path, kind=KIND, facts=facts, write=write)

    @classmethod
    def load(cls, path: str | os.PathLike[str], encoder: Encoder | None = None) -> Dense:
        """Open a saved index; vectors and passages are memory-mapped.

        `encoder` None: loaded by the name that the index was built with. Raises UserError where the folder is missing,
        damaged or not ours, or the encoder is not the one that embedded the passages.
        """
        facts = read_folder(path, kind=KIND)
        folder = Path(path)
        with understood(folder, kind=KIND):
            embedded = VectorOrigin(**facts["embedded"])
            prefixes = Prefixes(query=str(facts["query_prefix"]), passage=str(embedded.prefix))
            name, nearest = str(facts["encoder"]), check_nearest(facts["search"])
            passages, vectors = StoredPassages(folder), saved_vectors(folder)
            if vectors.dtype != np.float16 or vectors.shape != (len(passages), embedded.dimension):
                raise ValueError(f"{_VECTORS} does not fit the passages")
        if encoder is None:
            from mem1.retrieval.encoders import load_encoder

            encoder = load_encoder(name)
        if encoder.fingerprint != embedded.encoder:
            raise UserError(
                f"{folder} was embedded by {name}, but {encoder.name} is another encoder or has changed since, so "
                "their vectors cannot be compared; build the index again or use the original encoder"
            )
        return cls(
            passages=passages,
            vectors=vectors,
            embedded=embedded,
            encoder=encoder,
            prefixes=prefixes,
            kind=nearest,
            nearest=Flat(vectors) if nearest == "flat" else FaissIndex.load(folder / _FAISS, nearest),
        )

    def search(self, queries: Sequence[str], k: int) -> list[Result]:
        """Per query at most `k` (passage, score), best first; equal scores in the order of the passages.

        An empty query finds nothing; any other query finds the nearest passages, however distant. Raises ValueError for
        k < 1 and TypeError for a single string instead of a list of queries.
        """
        check_search(queries, k)
        nonempty = [i for i, query in enumerate(queries) if query.strip()]
        results: list[Result] = [[] for _ in queries]
        if nonempty:
            vectors = self.encoder.encode([self.prefixes.query + queries[i] for i in nonempty])
            for i, vector, found in zip(nonempty, vectors, self.nearest.search(vectors, k), strict=True):
                results[i] = self._best(vector, found, k)
        return results

    def _best(self, vector: np.ndarray, found: np.ndarray, k: int) -> Result:
        found = np.sort(found)
        # not a matrix product, whose rounding depends on its number of rows
        scores = (self.vectors[found].astype(np.float64) * vector).sum(axis=1)
        order = np.argsort(-scores, kind="stable")[:k]
        return [(self.passages[int(found[i])], float(scores[i])) for i in order]


def saved_vectors(folder: Path) -> np.ndarray:
    """The vectors of a saved index, memory-mapped."""
    # copy-on-write, because torch warns about read-only arrays
    return np.load(folder / _VECTORS, mmap_mode="c")


def build_nearest(vectors: np.ndarray, kind: NearestKind) -> Nearest:
    return Flat(vectors) if kind == "flat" else FaissIndex.build(vectors, kind)


def index_dense(
    passages: Sequence[Passage],
    encoder: Encoder,
    out: Path,
    *,
    prefixes: Prefixes,
    kind: NearestKind = "flat",
    on_progress: OnProgress | None = None,
) -> None:
    """Build the index and save it at `out`.

    While it runs, the folder .NAME.embedding beside `out` holds the progress, from which an interrupted build resumes.
    An existing index of the same passages gets the new kind of search without embedding again. Raises UserError where
    a dense index at `out`, or a half-finished embedding, has another encoder, prefix or corpus, so that no slip
    overwrites hours of embedding.
    """
    work = out.with_name(f".{out.name}.embedding")
    if index_kind(out) == KIND:
        dense = _searched_anew(passages, encoder, out, prefixes=prefixes, kind=kind)
    else:
        dense = Dense.build(passages, encoder, prefixes=prefixes, kind=kind, work=work, on_progress=on_progress)
    dense.save(out)
    remove_work(work)


def _searched_anew(
    passages: Sequence[Passage], encoder: Encoder, out: Path, *, prefixes: Prefixes, kind: NearestKind
) -> Dense:
    """The existing index at `out` with this kind of search and this query prefix."""
    check_nearest(kind)
    facts = read_folder(out, kind=KIND)
    with understood(out, kind=KIND):
        earlier = VectorOrigin(**facts["embedded"])
    if different := VectorOrigin.of(passages, encoder, prefixes.passage).difference(earlier):
        raise UserError(f"{out} holds a dense index with {different}; delete it or choose another folder")
    dense = Dense.load(out, encoder)
    return replace(dense, prefixes=prefixes, kind=kind, nearest=build_nearest(dense.vectors, kind))
