"""Embeds passages chunk by chunk, float16 on disk, so that an interrupted run can resume.

    origin = VectorOrigin.of(passages, encoder, "passage: ")
    embed(passages, encoder, origin, work=Path("wiki.embedding"))  ->  float16 [passages, dimension]

    wiki.embedding/progress.json   {"encoder": "9f1c...", "prefix": "passage: ", "corpus": "77ab...", ..., "done": 2048}
    wiki.embedding/vectors.f16     the vectors one after another; rows beyond `done` are ignored

A chunk counts once its rows are on disk and `done` includes it, written in this order. Chunks begin at fixed passages,
so a resumed run gives the same bytes as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from mem1.durable import is_partial, sync, write_file
from mem1.errors import UserError
from mem1.jsonl import encode_object
from mem1.records import Passage
from mem1.retrieval.base import searched_text
from mem1.retrieval.encoders import Encoder

CHUNK = 512
"""Passages per chunk."""
_VECTORS = "vectors.f16"
_PROGRESS = "progress.json"
OnProgress = Callable[[int, int], None]
"""Called with the number of passages embedded so far and in total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorOrigin:
    """What vectors were computed from; vectors with another origin must not be mixed with them."""

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
        return np.memmap(work / _VECTORS, dtype=np.float16, mode="c", shape=(len(passages), encoder.dimension))
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
    passages: Sequence[Passage],
    encoder: Encoder,
    origin: VectorOrigin,
    work: Path,
    on_progress: OnProgress | None,
) -> None:
    work.mkdir(parents=True, exist_ok=True)
    done = _finished(work, origin)
    with open(work / _VECTORS, "r+b" if done else "wb") as file:
        file.truncate(done * origin.row_bytes)
        file.seek(0, os.SEEK_END)
        for now_done, rows in _chunks(passages, encoder, origin.prefix, done, on_progress):
            file.write(rows.tobytes())
            file.flush()
            sync(work / _VECTORS)
            write_file(work / _PROGRESS, encode_object({**asdict(origin), "done": now_done}))


def remove_work(work: Path) -> None:
    """Remove the files that `embed` wrote, and the folder if it is then empty."""
    if work.is_dir():
        for file in work.iterdir():
            if file.name in (_VECTORS, _PROGRESS) or is_partial(file):
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
        whole = (work / _VECTORS).stat().st_size >= done * earlier.row_bytes
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
