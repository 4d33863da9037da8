"""`window(k)`: the last k turns, whatever they hold; memory by truncation, without rewriting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mem1.contexts.base import Selection, keep
from mem1.records import Turn


@dataclass(frozen=True, slots=True)
class Window:
    """Keep the last `k` turns."""

    k: int
    asks = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"window(k) needs k >= 1, not {self.k}")

    @property
    def name(self) -> str:
        return f"window({self.k})"

    def select(self, turns: Sequence[Turn]) -> Selection:
        return keep(turns[-self.k :])
