"""The port of every search engine: texts in, scored passages out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mem1.records import Passage

Result = list[tuple[Passage, float]]
"""What one query found, best first."""


class Retriever(Protocol):
    """Anything that can be searched."""

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        """Per query at most `k` (passage, score), best first. Raises RetrievalFailed when it cannot answer."""
        ...


class RetrievalFailed(RuntimeError):
    """The search engine did not answer; the rollout records it as `Ended.TOOL_FAILED`."""


def check_search(queries: Sequence[str], k: int) -> None:
    """Raises ValueError for k < 1 and TypeError for a lone string instead of a list of queries."""
    if isinstance(queries, str):
        raise TypeError("search takes a list of queries, not one string")
    if k < 1:
        raise ValueError(f"search needs k >= 1, not {k}")


def sound_text(text: str) -> str:
    """With a question mark for each half of a surrogate pair, which tokenizers and readers of JSON refuse."""
    return text.encode("utf-8", "replace").decode("utf-8")


def searched_text(passage: Passage) -> str:
    """What every index sees of a passage: its title, then its text."""
    return f"{passage.title} {passage.text}"
