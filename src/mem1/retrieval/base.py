"""The port that every search engine has, and what all of them share.

retriever.search(["capital of Norway"], k=3)  ->  [[(Passage("p0", "Oslo", "Oslo is ..."), 1.93), ...]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from mem1.records import Passage

Result = list[tuple[Passage, float]]
"""Passages found by one query, best first."""


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


def checked_results(found: Any, queries: int, k: int) -> list[Result]:
    """What a retriever returned: the first `k` of each query. Raises RetrievalFailed unless it is one list of
    (passage, score) per query."""
    try:
        results = [[(passage, score) for passage, score in result[:k]] for result in found]
    except (TypeError, ValueError) as error:
        raise RetrievalFailed(f"the retriever must return lists of (passage, score): {error}") from error
    if wrong := [passage for result in results for passage, _ in result if not isinstance(passage, Passage)]:
        raise RetrievalFailed(f"the retriever must return passages, not {wrong[0]!r:.80}")
    if len(results) != queries:
        raise RetrievalFailed(f"the retriever returned {len(results)} lists of results for {queries} queries")
    return results


def searched_text(passage: Passage) -> str:
    """The text of a passage that every index searches: its title, then its text."""
    return f"{passage.title} {passage.text}"
