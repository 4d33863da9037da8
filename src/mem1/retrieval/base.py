"""The port of every search engine: texts in, scored passages out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mem1.records import Passage


class Retriever(Protocol):
    """Anything that can be searched."""

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        """Per query at most `k` (passage, score), best first. Raises RetrievalFailed when it cannot answer."""
        ...


class RetrievalFailed(RuntimeError):
    """The search engine did not answer; the rollout records it as `Ended.TOOL_FAILED`."""
