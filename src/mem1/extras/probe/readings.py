"""What a trained writer noted of a transcript, as a compressor.

    Noted(reading).compress(Kept(), pieces, 2_000)      ->     the notes that a budget leaves, as lines

A writer reads each exchange once and does not know the budget, so one reading serves all budgets and numbers of cycles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mem1.extras.probe.compressors import Kept
from mem1.extras.probe.pieces import Piece
from mem1.messages.written import WrittenNote, within

TRAINED = "trained-writer"
"""Name of this compressor."""


@dataclass(frozen=True, slots=True)
class Noting:
    """What a writer noted of a transcript."""

    notes: tuple[tuple[int, WrittenNote], ...]
    """(index of the message behind which it was written, note)."""
    read: float
    """Tokens that it has read, over those of the transcript."""
    written: float
    """Tokens that it has written, over those of the transcript."""


class Noted:
    """Keeps what was noted by then, within the tokens."""

    def __init__(self, noting: Noting) -> None:
        self._noting = noting

    def compress(self, kept: Kept, pieces: Sequence[Piece], tokens: int) -> Kept:
        end = pieces[-1].message
        return Kept("\n".join(within([note for message, note in self._noting.notes if message <= end], tokens)))
