"""`full`: append everything, as an ordinary agent does; the limit of `fold(k)` for large k."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Full:
    """Keep every turn."""

    @property
    def name(self) -> str:
        return "full"

    def kept(self, turns: int) -> int:
        return turns
