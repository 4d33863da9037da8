"""Search engines behind one port, `Retriever`: texts in, scored passages out. `BM25` is imported on first use.

retriever.search(["capital of Norway"], k=3)  ->  [[(Passage("p0", "Oslo", "Oslo is ..."), 1.93), ...]]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mem1.records import Passage
from mem1.retrieval.base import RetrievalFailed, Retriever

if TYPE_CHECKING:
    from mem1.retrieval.bm25 import BM25

__all__ = ["BM25", "Passage", "RetrievalFailed", "Retriever"]


def __getattr__(name: str) -> Any:
    # bm25s and numpy take a third of a second to import, which a Passage does not need
    if name == "BM25":
        from mem1.retrieval.bm25 import BM25

        return BM25
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
