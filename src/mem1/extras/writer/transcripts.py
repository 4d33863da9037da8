"""Whole transcripts read by a writer, for the examination of `mem1 probe`.

    read = read_all(writer, transcripts)
    read[0]    ->   [(11, WrittenNote("INV-482130 due: 3 May 2027")), ...]      the message that it was written about
    Noted(read[0]).compress(Kept(), pieces, 2_000)      ->     the notes that a budget leaves

A writer reads each exchange once and does not know the budget, so one reading serves all budgets and numbers of cycles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mem1.extras.probe.compressors import Kept
from mem1.extras.probe.pieces import Piece
from mem1.extras.probe.transcripts import Transcript
from mem1.extras.probe.writers import exchanges, parts
from mem1.extras.writer.note_writer import NoteWriter
from mem1.extras.writer.reading import PART_TOKENS, SIGHT
from mem1.messages.transcript import texts
from mem1.messages.writing import Reading
from mem1.messages.written import WrittenNote, checked, standing, within

Notes = list[tuple[int, WrittenNote]]
"""(message, note) in order."""


def read_all(
    writer: NoteWriter, transcripts: Sequence[Transcript], on_part: Callable[[int], None] = lambda parts: None
) -> list[Notes]:
    """The notes of each transcript; the next parts of all are read together. `on_part` gets their number."""
    left = [
        [(text, one[-1].message) for one in exchanges(transcript.pieces) for text in parts(one, PART_TOKENS)][::-1]
        for transcript in transcripts
    ]
    found: list[Notes] = [[] for _ in transcripts]
    tasks = [texts(transcript.messages[1].get("content")) for transcript in transcripts]
    while any(left):
        now = [at for at, rest in enumerate(left) if rest]
        shown = [left[at].pop() for at in now]
        in_sight = [standing([note for _, note in found[at]])[-SIGHT:] for at in now]
        readings = [
            Reading(task=tasks[at], notes=tuple(note.text for note in notes), exchange=text)
            for at, notes, (text, _) in zip(now, in_sight, shown, strict=True)
        ]
        for at, (text, message), lines in zip(now, shown, writer.write_all(readings), strict=True):
            found[at] += [(message, note) for note in checked(lines, text)]
        on_part(len(now))
    return found


class Noted:
    """A compressor that keeps the notes of a transcript that was read."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def compress(self, kept: Kept, pieces: Sequence[Piece], tokens: int) -> Kept:
        end = pieces[-1].message
        notes = within([note for message, note in self._notes if message <= end], tokens)
        return Kept("\n".join(note.text for note in notes))
