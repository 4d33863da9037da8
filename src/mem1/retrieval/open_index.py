"""Opens whatever `--corpus` names: a file of passages, or an index that `mem1 index` made.

open_retriever("corpus.jsonl.gz")   BM25 over the file, built once and kept under ~/.cache/mem1
open_retriever("wiki.dense")        the index in this folder, by the kind that its manifest names
open_retriever("wiki")              wiki/words and wiki/vectors, two indexes of the same passages, as one hybrid
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval.base import Retriever
from mem1.retrieval.corpus import open_bm25, read_passages
from mem1.retrieval.index_folder import file_checksum, index_kind, restore, restore_within, understood


def open_retriever(path: str | os.PathLike[str]) -> Retriever:
    """A search engine over the passages at `path`; of a folder of indexes, all of them by reciprocal rank fusion.

    Raises UserError where nothing there can be opened, or the indexes of a folder hold different passages.
    """
    restore(path)
    if not os.path.isdir(path):
        return open_bm25(path)
    folders = _indexes(path)
    if len(folders) == 1:
        return _loader(folders[0])(folders[0])
    from mem1.retrieval.combine import Hybrid
    from mem1.retrieval.corpus import PASSAGES

    if any(file_checksum(folder, PASSAGES) != file_checksum(folders[0], PASSAGES) for folder in folders):
        raise UserError(
            f"{path}: {' and '.join(f.name for f in folders)} hold different passages; index the same ones in each"
        )
    return Hybrid([_loader(folder)(folder) for folder in folders])


def open_passages(path: str | os.PathLike[str]) -> Sequence[Passage]:
    """The passages at `path` alone. Raises UserError where nothing there can be opened."""
    restore(path)
    if not os.path.isdir(path):
        return read_passages(path)
    from mem1.retrieval.corpus import StoredPassages

    folder = _indexes(path)[0]
    _loader(folder)
    with understood(folder, kind=str(index_kind(folder))):
        return StoredPassages(folder)


def read_corpus(path: str | os.PathLike[str]) -> Sequence[Passage]:
    """The passages of a file, of an index, or of a folder of documents. Raises UserError where there are none."""
    restore(path)
    if os.path.isdir(path) and not holds_index(path):
        from mem1.retrieval.documents import read_documents

        return read_documents(path).passages
    return open_passages(path)


def holds_index(path: str | os.PathLike[str]) -> bool:
    """Whether this folder is an index, or a folder in it is one."""
    folder = Path(path)
    restore_within(folder)
    return any(index_kind(inner) is not None for inner in (folder, *folder.iterdir()))


def _indexes(path: str | os.PathLike[str]) -> list[Path]:
    """The index in this folder, or those in its folders."""
    folder = Path(path)
    if index_kind(folder) is not None:
        return [folder]
    restore_within(folder)
    held = sorted(inner for inner in folder.iterdir() if inner.is_dir() and not inner.name.startswith("."))
    found = [inner for inner in held if index_kind(inner) is not None]
    if not found:
        raise UserError(f"{path} is a folder without an index; make one with: mem1 index {path} --out FOLDER")
    if found != held:
        raise UserError(f"{path} holds indexes, and {(set(held) - set(found)).pop().name}, which is none; move it away")
    return found


def _loader(path: str | os.PathLike[str]) -> Callable[[str | os.PathLike[str]], Retriever]:
    kind = index_kind(path)
    if kind == "bm25":
        from mem1.retrieval.bm25 import BM25

        return BM25.load
    if kind == "dense":
        from mem1.retrieval.dense import Dense

        return Dense.load
    raise UserError(f"{path} holds an index of kind {kind!r}; this mem1 knows bm25 and dense")
