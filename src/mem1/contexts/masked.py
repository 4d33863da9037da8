"""`masked`: everything that the model wrote, but only the newest result; old results are masked out.

Known as observation masking (Lindenbauer et al., arXiv 2508.21433): results are most of an agent's tokens, and what
mattered in them has usually been written down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mem1.contexts.base import Kept, Selection
from mem1.records import Turn


@dataclass(frozen=True, slots=True)
class Masked:
    """Keep every completion, and the last result."""

    asks = None

    @property
    def name(self) -> str:
        return "masked"

    def select(self, turns: Sequence[Turn]) -> Selection:
        *older, newest = turns
        return Selection(kept=(*(Kept(turn=turn, result=False) for turn in older), Kept(turn=newest)))
