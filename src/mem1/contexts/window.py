"""`window(k)`: the last k turns, whatever they hold; memory by truncation, without rewriting."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """Keep the last `k` turns."""

    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"window(k) needs k >= 1, not {self.k}")

    @property
    def name(self) -> str:
        return f"window({self.k})"

    def kept(self, turns: int) -> int:
        return min(turns, self.k)
