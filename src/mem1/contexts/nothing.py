"""`none`: no memory at all, the floor of every comparison: the last query and its result, without the state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mem1.contexts.base import Kept, Selection
from mem1.records import Turn


@dataclass(frozen=True, slots=True)
class Nothing:
    """Keep the last turn's action and result; what it wrote into its state is dropped."""

    asks = None

    @property
    def name(self) -> str:
        return "none"

    def select(self, turns: Sequence[Turn]) -> Selection:
        return Selection(kept=(Kept(turn=turns[-1], state_tokens=0),))
