"""`fold(k)`: append for k turns, then rewrite. `constant`, MEM1's own policy, is `fold(1)`.

    fold(2) after 1, 2, 3, 4, 5 turns keeps 1, 2, 1, 2, 1 of them; fold(1) always keeps the last one.

Source: MEM1 (arXiv 2506.15841), section 3; folding every k turns spares rewriting and prefix caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mem1.contexts.base import Selection, keep
from mem1.records import Turn


@dataclass(frozen=True, slots=True)
class Fold:
    """Keep the turns since the last rewrite, which happens every `k` turns."""

    k: int
    asks = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"fold(k) needs k >= 1, not {self.k}")

    @property
    def name(self) -> str:
        return "constant" if self.k == 1 else f"fold({self.k})"

    def select(self, turns: Sequence[Turn]) -> Selection:
        return keep(turns[(len(turns) - 1) // self.k * self.k :])
