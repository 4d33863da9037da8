"""Opens what `--corpus` names: a file of passages, an index, or a folder of either.

open_retriever("corpus.jsonl.gz")       BM25 over the file, built once and cached under ~/.cache/mem1
open_retriever("wiki.dense")            the index in this folder, of the kind that its manifest names
open_retriever("wiki")                  wiki/words and wiki/vectors, two indexes of the same passages, as one hybrid
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from mem1 import durable
from mem1.cache import cache_folder, open_cached
from mem1.errors import UserError, printable
from mem1.interrupts import stopped_while
from mem1.records import Passage
from mem1.registry import register
from mem1.retrieval.base import Retriever
from mem1.retrieval.corpus import PASSAGES, StoredPassages, passages_in, read_passages
from mem1.retrieval.index_files import index_kind, understood

if TYPE_CHECKING:
    from mem1.retrieval.bm25 import BM25


def open_retriever(path: str | os.PathLike[str]) -> Retriever:
    """A retriever over the passages at `path`; several indexes in a folder are combined by reciprocal rank fusion.

    Raises UserError where nothing there can be opened, or the indexes of a folder hold different passages.
    """
    durable.restore(path)
    if not os.path.isdir(path):
        return open_bm25(path)
    folders = _indexes(path)
    if len(folders) == 1:
        return _loader(folders[0])(folders[0])
    from mem1.retrieval.combine import Hybrid

    if len({m.files.get(PASSAGES) for m in map(durable.read_manifest, folders) if m is not None}) > 1:
        raise UserError(
            f"{path}: {' and '.join(f.name for f in folders)} hold different passages; index the same ones in each"
        )
    return Hybrid([_loader(folder)(folder) for folder in folders])


def open_passages(path: str | os.PathLike[str]) -> Sequence[Passage]:
    """Only the passages at `path`. Raises UserError where nothing there can be opened."""
    durable.restore(path)
    if not os.path.isdir(path):
        return read_passages(path)
    folder = _indexes(path)[0]
    _loader(folder)
    with understood(folder, kind=str(index_kind(folder))):
        return StoredPassages(folder)


def content_of(path: str | os.PathLike[str]) -> str:
    """A digest of the passages at `path`: SHA-256 of the file, or of the manifests of the indexes, which have sizes and
    digests of their files. Raises UserError where nothing there can be read."""
    durable.restore(path)
    files = [folder / durable.MANIFEST for folder in _indexes(path)] if os.path.isdir(path) else [Path(path)]
    try:
        return "-".join(durable.sha256_of(file)[:32] for file in files)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def first_passages(path: str | os.PathLike[str], count: int) -> list[Passage]:
    """The first `count` of them, without reading the rest of a file."""
    return list(open_passages(path)[:count]) if os.path.isdir(path) else list(islice(passages_in(path), count))


def read_corpus(path: str | os.PathLike[str]) -> Sequence[Passage]:
    """The passages of a file, an index or a folder of documents. Raises UserError where there are none."""
    durable.restore(path)
    if os.path.isdir(path) and not holds_index(path):
        from mem1.retrieval.documents import read_documents

        return read_documents(path).passages
    return open_passages(path)


def holds_index(path: str | os.PathLike[str]) -> bool:
    """Whether this folder is an index or directly contains one."""
    folder = Path(path)
    durable.restore_within(folder)
    return any(index_kind(inner) is not None for inner in (folder, *folder.iterdir()))


def _indexes(path: str | os.PathLike[str]) -> list[Path]:
    """The index at this folder, or those in its subfolders."""
    folder = Path(path)
    if index_kind(folder) is not None:
        return [folder]
    durable.restore_within(folder)
    held = sorted(inner for inner in folder.iterdir() if inner.is_dir() and not inner.name.startswith("."))
    found = [inner for inner in held if index_kind(inner) is not None]
    if not found:
        raise UserError(f"{path} is a folder without an index; make one with: mem1 index {path} --out FOLDER")
    if found != held:
        other = (set(held) - set(found)).pop().name
        raise UserError(f"{path} holds indexes and {other}, which is not an index; move it away")
    return found


def _loader(path: str | os.PathLike[str]) -> Callable[[str | os.PathLike[str]], Retriever]:
    kind = index_kind(path)
    known = register.index.names()
    if kind not in known:  # never a dotted path, since a manifest must not choose which code to import
        raise UserError(f"{path} holds an index of the unknown kind {kind!r}; known: {', '.join(known)}")
    return register.index.get(kind).load


def open_bm25(corpus_path: str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None = None) -> BM25:
    """The BM25 index of a corpus file, from the cache where the same content was indexed before.

    The cache identifies an index by the SHA-256 of the corpus file. A damaged index is rebuilt; what is built, and
    where, is printed to stderr. Raises UserError for an invalid corpus and where the index cannot be written; a
    half-written index is never used, and processes that open it at once build it once.
    """
    from rich.console import Console

    from mem1.retrieval.bm25 import BM25

    console = Console(stderr=True, highlight=False, markup=False)
    folder = bm25_folder(corpus_path, cache_dir)

    def make() -> None:
        start = time.perf_counter()
        with stopped_while("indexing"), console.status(printable(f"Indexing {corpus_path} (once)")):
            passages = read_passages(corpus_path)
            BM25.build(passages).save(folder)
        seconds = time.perf_counter() - start
        console.print(
            printable(f"Indexed {len(passages):,} passages of {corpus_path} in {seconds:.1f} s; cached in {folder}")
        )

    return open_cached(folder, load=BM25.load, make=make)


def bm25_folder(corpus_path: str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where `open_bm25` caches the index of a corpus file. Raises UserError where the file cannot be read."""
    try:
        return cache_folder(cache_dir) / f"bm25-{durable.sha256_of(corpus_path)[:32]}"
    except FileNotFoundError as error:
        raise UserError(f"no corpus file {corpus_path}; check the path") from error
    except OSError as error:
        raise UserError(f"cannot read {corpus_path}: {error.strerror or error}") from error
