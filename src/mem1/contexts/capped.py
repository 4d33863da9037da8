"""`capped(n)`: as `constant`, but of a state no more than its first n tokens stay: memory that cannot grow.

capped(2), state <IS> a b c d </IS>   ->   <IS> a b </IS> in the next context
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mem1.contexts.base import Kept, Selection
from mem1.records import Turn


@dataclass(frozen=True, slots=True)
class Capped:
    """Keep the last turn, with at most `tokens` tokens of its state's text; the tags are not counted."""

    tokens: int
    asks = None

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"capped(n) needs n >= 1, not {self.tokens}; a state of nothing is none")

    @property
    def name(self) -> str:
        return f"capped({self.tokens})"

    def select(self, turns: Sequence[Turn]) -> Selection:
        return Selection(kept=(Kept(turn=turns[-1], state_tokens=self.tokens),))
