"""`full`: append everything, as an ordinary agent does; the limit of `fold(k)` for large k."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mem1.contexts.base import Selection, keep
from mem1.records import Turn


@dataclass(frozen=True, slots=True)
class Full:
    """Keep every turn."""

    asks = None

    @property
    def name(self) -> str:
        return "full"

    def select(self, turns: Sequence[Turn]) -> Selection:
        return keep(turns)
