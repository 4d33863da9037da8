"""Dense retrieval: passages and queries as vectors of one encoder, close together where they mean the same.

    dense = Dense.build(passages, load_encoder("models/e5-base-v2"), prefixes=known_prefixes("e5-base-v2"))
    dense.search(["which town governs Norway"], k=3)  ->  [[(Passage("p0", "Oslo", ...), 0.83), ...]]

    index_dense(passages, encoder, Path("wiki.dense"), prefixes=...)    builds and saves an index, resuming where needed
    .wiki.dense.embedding/progress.json   {"encoder": "9f1c...", "prefix": "passage: ", ..., "done": 2048}
    .wiki.dense.embedding/vectors.f16     the vectors one after another; rows beyond `done` are ignored

A score is the inner product of vectors of length 1, a cosine. Vectors are float16, memory-mapped once saved; a query is
compared with all of them. A chunk counts once its rows are on disk and `done` includes it, written in this order.
Chunks begin at fixed passages, so a resumed run gives the same bytes as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from mem1.durable import is_partial, sync, write_file
from mem1.errors import UserError
from mem1.jsonl import encode_object
from mem1.records import Passage
from mem1.retrieval.base import Result, check_search, searched_text
from mem1.retrieval.corpus import StoredPassages, store_passages
from mem1.retrieval.encoders import Encoder, Prefixes, load_encoder
from mem1.retrieval.index_files import index_kind, read_folder, save_folder, understood

CHUNK = 512
"""Passages per chunk."""
_ROWS = "vectors.f16"
_PROGRESS = "progress.json"
OnProgress = Callable[[int, int], None]
"""Called with the number of passages embedded so far and in total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorOrigin:
    """The inputs of an embedding; vectors with another origin must not be mixed with it."""

    encoder: str
    """Fingerprint of the encoder."""
    prefix: str
    corpus: str
    """SHA-256 of the passages."""
    passages: int
    dimension: int

    @property
    def row_bytes(self) -> int:
        return self.dimension * np.dtype(np.float16).itemsize

    @classmethod
    def of(cls, passages: Sequence[Passage], encoder: Encoder, prefix: str) -> VectorOrigin:
        digest = hashlib.sha256()
        for passage in passages:
            digest.update(encode_object({"id": passage.id, "title": passage.title, "text": passage.text}))
        return cls(
            encoder=encoder.fingerprint,
            prefix=prefix,
            corpus=digest.hexdigest(),
            passages=len(passages),
            dimension=encoder.dimension,
        )

    def difference(self, other: VectorOrigin) -> str | None:
        """The difference in words; None: the same origin."""
        if self.encoder != other.encoder or self.dimension != other.dimension:
            return "another encoder"
        if self.prefix != other.prefix:
            return f"the passage prefix {other.prefix!r}, not {self.prefix!r}"
        return "other passages" if self.corpus != other.corpus else None


def embed(
    passages: Sequence[Passage],
    encoder: Encoder,
    origin: VectorOrigin,
    *,
    work: Path | None = None,
    on_progress: OnProgress | None = None,
) -> np.ndarray:
    """float16 [passages, dimension], rows of length 1; in memory, or memory-mapped in the folder `work`.

    Resumes after the last finished chunk in `work`. Raises UserError where the vectors there belong to another encoder,
    prefix or corpus, or where the disk is full.
    """
    if work is None:
        chunks = [rows for _, rows in _chunks(passages, encoder, origin.prefix, 0, on_progress)]
        return np.concatenate([np.zeros((0, encoder.dimension), dtype=np.float16), *chunks])
    try:
        _embed_on_disk(passages, encoder, origin, work, on_progress)
        # copy-on-write, because torch warns about read-only arrays
        return np.memmap(work / _ROWS, dtype=np.float16, mode="c", shape=(len(passages), encoder.dimension))
    except OSError as error:
        raise UserError(f"cannot write {work}: {error.strerror or error}; free some space and run it again") from error


def _chunks(
    passages: Sequence[Passage], encoder: Encoder, prefix: str, done: int, on_progress: OnProgress | None
) -> Iterator[tuple[int, np.ndarray]]:
    """(Passages embedded so far, rows) of each chunk after the first `done` passages."""
    report = on_progress or (lambda done, total: None)
    report(done, len(passages))
    for start in range(done, len(passages), CHUNK):
        texts = [prefix + searched_text(passage) for passage in passages[start : start + CHUNK]]
        rows = encoder.encode(texts).astype(np.float16)
        if not np.isfinite(rows).all():
            raise UserError(f"the encoder {encoder.name} returns NaN or infinity; check that its weights are intact")
        yield start + len(texts), rows
        report(start + len(texts), len(passages))


def _embed_on_disk(
    passages: Sequence[Passage], encoder: Encoder, origin: VectorOrigin, work: Path, on_progress: OnProgress | None
) -> None:
    work.mkdir(parents=True, exist_ok=True)
    done = _finished(work, origin)
    with open(work / _ROWS, "r+b" if done else "wb") as file:
        file.truncate(done * origin.row_bytes)
        file.seek(0, os.SEEK_END)
        for now_done, rows in _chunks(passages, encoder, origin.prefix, done, on_progress):
            file.write(rows.tobytes())
            file.flush()
            sync(work / _ROWS)
            write_file(work / _PROGRESS, encode_object({**asdict(origin), "done": now_done}))


def remove_work(work: Path) -> None:
    """Remove the files that `embed` wrote, and the folder if it is then empty."""
    if work.is_dir():
        for file in work.iterdir():
            if file.name in (_ROWS, _PROGRESS) or is_partial(file):
                file.unlink()
        with suppress(OSError):
            work.rmdir()


def _finished(work: Path, origin: VectorOrigin) -> int:
    """Number of valid vectors in `work`. Raises UserError where they are damaged or of another origin."""
    if not (work / _PROGRESS).exists():
        return 0
    try:
        stored = json.loads((work / _PROGRESS).read_text(encoding="utf-8"))
        done = int(stored.pop("done"))
        earlier = VectorOrigin(**stored)
        whole = (work / _ROWS).stat().st_size >= done * earlier.row_bytes
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise UserError(f"{work}, a half-finished embedding, is damaged ({error}); delete it to start over") from error
    if different := origin.difference(earlier):
        raise UserError(
            f"{work} holds a half-finished embedding with {different}; delete it to start over, or choose another "
            "folder for the index"
        )
    if not whole:
        raise UserError(f"{work}, a half-finished embedding, is damaged; delete it to start over")
    return done


KIND = "dense"
_VECTORS = "vectors.npy"
_BLOCK = 4096
"""Vectors converted to float32 at a time; a block fits into the processor's cache."""
_SCORES = 1 << 26
"""Scores held in memory at a time (256 MB)."""
_ROUNDING = 1e-4
"""Tolerance, well above the error of a float32 product of vectors of length 1."""


def nearest(
    vectors: np.ndarray, queries: np.ndarray, k: int, *, block: int = _BLOCK, scores: int = _SCORES
) -> list[np.ndarray]:
    """Per row of `queries` (float32, length 1) the positions of at least `k` of the `vectors`, or of all there are.

        nearest(vectors, queries, k=2)      ->  [array([7, 3]), array([0, 12, 5])]

    Positions are in any order; some are added that may rank below `k` only because of rounding. `block` and `scores`
    limit the memory used besides `vectors`; results do not depend on them.
    """
    together = max(1, scores // max(1, len(vectors)))
    found: list[np.ndarray] = []
    for start in range(0, len(queries), together):
        found += [_best(row, k) for row in _scores(vectors, queries[start : start + together], block)]
    return found


def _scores(vectors: np.ndarray, queries: np.ndarray, block: int) -> np.ndarray:
    """[queries, vectors]"""
    # torch converts float16 to float32 several times faster than numpy
    import torch

    rows, columns = torch.from_numpy(vectors), torch.from_numpy(queries).T
    scores = torch.empty((len(rows), len(queries)))
    for start in range(0, len(rows), block):
        torch.matmul(rows[start : start + block].float(), columns, out=scores[start : start + block])
    return scores.T.contiguous().numpy()


def _best(scores: np.ndarray, k: int) -> np.ndarray:
    """Positions of the k highest scores, and of all that may rank below them only because of rounding."""
    if len(scores) <= k:
        return np.arange(len(scores))
    kth = np.partition(scores, -k)[-k]
    return np.flatnonzero(scores >= kth - _ROUNDING)


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

    @classmethod
    def build(
        cls,
        passages: Sequence[Passage],
        encoder: Encoder,
        *,
        prefixes: Prefixes,
        work: Path | None = None,
        on_progress: OnProgress | None = None,
    ) -> Dense:
        """Embed title and text of every passage and prepare the search.

        With a folder `work`, an interrupted embedding can be resumed. Raises UserError where there is no passage.
        """
        if not passages:
            raise UserError("there is no passage to embed; check the corpus")
        embedded = VectorOrigin.of(passages, encoder, prefixes.passage)
        vectors = embed(passages, encoder, embedded, work=work, on_progress=on_progress)
        return cls(passages=tuple(passages), vectors=vectors, embedded=embedded, encoder=encoder, prefixes=prefixes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index, including its passages, to a folder, completely or not at all.

        Replaces an existing index. Raises UserError where writing fails or the folder holds something else.
        """

        def write(folder: Path) -> None:
            store_passages(folder, self.passages)
            np.save(folder / _VECTORS, self.vectors)

        facts = {
            "encoder": self.encoder.name,
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
            name = str(facts["encoder"])
            # copy-on-write, because torch warns about read-only arrays
            passages, vectors = StoredPassages(folder), np.load(folder / _VECTORS, mmap_mode="c")
            if vectors.dtype != np.float16 or vectors.shape != (len(passages), embedded.dimension):
                raise ValueError(f"{_VECTORS} does not fit the passages")
        encoder = encoder or load_encoder(name)
        if encoder.fingerprint != embedded.encoder:
            raise UserError(
                f"{folder} was embedded by {name}, but {encoder.name} is another encoder or has changed since, so "
                "their vectors cannot be compared; build the index again or use the original encoder"
            )
        return cls(passages=passages, vectors=vectors, embedded=embedded, encoder=encoder, prefixes=prefixes)

    def search(self, queries: Sequence[str], k: int) -> list[Result]:
        """Per query the `k` nearest (passage, score), however distant; equal scores in the passages' order.

        An empty query finds nothing.
        """
        check_search(queries, k)
        nonempty = [i for i, query in enumerate(queries) if query.strip()]
        results: list[Result] = [[] for _ in queries]
        if nonempty:
            vectors = self.encoder.encode([self.prefixes.query + queries[i] for i in nonempty])
            for i, vector, found in zip(nonempty, vectors, nearest(self.vectors, vectors, k), strict=True):
                results[i] = self._best(vector, found, k)
        return results

    def _best(self, vector: np.ndarray, found: np.ndarray, k: int) -> Result:
        found = np.sort(found)
        # not a matrix product, whose rounding depends on its number of rows
        scores = (self.vectors[found].astype(np.float64) * vector).sum(axis=1)
        order = np.argsort(-scores, kind="stable")[:k]
        return [(self.passages[int(found[i])], float(scores[i])) for i in order]


def index_dense(
    passages: Sequence[Passage],
    encoder: Encoder,
    out: Path,
    *,
    prefixes: Prefixes,
    on_progress: OnProgress | None = None,
) -> None:
    """Build the index and save it at `out`.

    While it runs, the folder .NAME.embedding beside `out` holds the progress, from which an interrupted build resumes.
    An existing index of the same passages gets the new query prefix without embedding again. Raises UserError where
    a dense index at `out`, or a half-finished embedding, has another encoder, prefix or corpus, so that no slip
    overwrites hours of embedding.
    """
    work = out.with_name(f".{out.name}.embedding")
    if index_kind(out) == KIND:
        dense = _searched_anew(passages, encoder, out, prefixes=prefixes)
    else:
        dense = Dense.build(passages, encoder, prefixes=prefixes, work=work, on_progress=on_progress)
    dense.save(out)
    remove_work(work)


def _searched_anew(passages: Sequence[Passage], encoder: Encoder, out: Path, *, prefixes: Prefixes) -> Dense:
    """The existing index at `out` with this query prefix."""
    facts = read_folder(out, kind=KIND)
    with understood(out, kind=KIND):
        earlier = VectorOrigin(**facts["embedded"])
    if different := VectorOrigin.of(passages, encoder, prefixes.passage).difference(earlier):
        raise UserError(f"{out} holds a dense index with {different}; delete it or choose another folder")
    return replace(Dense.load(out, encoder), prefixes=prefixes)
