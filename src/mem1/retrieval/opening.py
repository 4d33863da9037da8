"""Opens whatever `--corpus` names: a file of passages, or an index that `mem1 index` made.

open_retriever("corpus.jsonl.gz")   BM25 over the file, built once and kept under ~/.cache/mem1
open_retriever("wiki.dense")        the index in this folder, by the kind that its manifest names
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval.base import Retriever
from mem1.retrieval.corpus import open_bm25, read_passages
from mem1.retrieval.folder import index_kind


def open_retriever(path: str | os.PathLike[str]) -> Retriever:
    """A search engine over the passages at `path`. Raises UserError where nothing there can be opened."""
    return _loader(path)(path) if os.path.isdir(path) else open_bm25(path)


def open_passages(path: str | os.PathLike[str]) -> Sequence[Passage]:
    """The passages at `path` alone. Raises UserError where nothing there can be opened."""
    if not os.path.isdir(path):
        return read_passages(path)
    from mem1.retrieval.passages import StoredPassages

    _loader(path)
    return StoredPassages(Path(path))


def _loader(path: str | os.PathLike[str]) -> Callable[[str | os.PathLike[str]], Retriever]:
    kind = index_kind(path)
    if kind == "bm25":
        from mem1.retrieval.bm25 import BM25

        return BM25.load
    if kind == "dense":
        from mem1.retrieval.dense import Dense

        return Dense.load
    if kind is None:
        raise UserError(f"{path} is a folder without an index; make one with: mem1 index {path} --out FOLDER")
    raise UserError(f"{path} holds an index of kind {kind!r}; this mem1 knows bm25 and dense")
