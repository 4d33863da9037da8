"""Search engines behind one port, `Retriever`: texts in, scored passages out. `BM25` is imported on first use.

retriever.search(["capital of Norway"], k=3)  ->  [[(Passage("p0", "Oslo", "Oslo is ..."), 1.93), ...]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mem1.records import Passage

if TYPE_CHECKING:
    from mem1.retrieval.bm25 import BM25

__all__ = ["BM25", "Passage", "RetrievalFailed", "Retriever"]

Result = list[tuple[Passage, float]]
"""Passages found by one query, best first."""


def __getattr__(name: str) -> Any:
    # bm25s and numpy take a third of a second to import, which a Passage does not need
    if name == "BM25":
        from mem1.retrieval.bm25 import BM25

        return BM25
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Retriever(Protocol):
    """Anything that finds passages for queries."""

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        """Per query at most `k` (passage, score), best first.

        Raises RetrievalFailed where it cannot answer; ValueError for k < 1 and TypeError for a single string.
        """
        ...


class RetrievalFailed(RuntimeError):
    """The search engine did not answer; the rollout records it as `Ended.TOOL_FAILED`."""


def check_search(queries: Sequence[str], k: int) -> None:
    """Raises ValueError for k < 1 and TypeError for a single string instead of a list of queries."""
    if isinstance(queries, str):
        raise TypeError("search takes a list of queries, not one string")
    if k < 1:
        raise ValueError(f"search needs k >= 1, not {k}")


def sound_text(text: str) -> str:
    """The text with a question mark for each lone surrogate, which tokenizers and JSON parsers reject."""
    return text.encode("utf-8", "replace").decode("utf-8")


def searched_text(passage: Passage) -> str:
    """The text of a passage that every index searches: its title, then its text."""
    return f"{passage.title} {passage.text}"
