"""The port of every search engine: texts in, scored passages out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that a search can return. Raises ValueError where the text is empty."""

    id: str
    title: str
    text: str

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise ValueError(f"passage {self.id!r} has no text")


class Retriever(Protocol):
    """Anything that can be searched."""

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        """Per query at most `k` (passage, score), best first. Raises RetrievalFailed when it cannot answer."""
        ...


class RetrievalFailed(RuntimeError):
    """The search engine did not answer; the rollout records it as `Ended.TOOL_FAILED`."""
