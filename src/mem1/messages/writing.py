"""The port of a writer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a writer is shown."""

    task: str
    notes: tuple[str, ...] = ()
    exchange: str


class Writer(Protocol):
    """Writes notes about exchanges."""

    def write(self, reading: Reading, /) -> Sequence[str]: ...
