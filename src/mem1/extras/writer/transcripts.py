"""Whole transcripts read by a writer, for the examination of `mem1 probe`.

read_all(writer, transcripts)[0].notes     ->   ((11, WrittenNote("INV-482130 due: 3 May 2027")), ...)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mem1.extras.probe.readings import Noting
from mem1.extras.probe.transcripts import Transcript
from mem1.extras.probe.writers import exchanges, parts
from mem1.extras.writer.note_writer import NoteWriter
from mem1.messages.transcript import texts
from mem1.messages.writing import PART_TOKENS, SIGHT, Reading
from mem1.messages.written import WrittenNote, checked, standing


def number_of_parts(transcripts: Sequence[Transcript]) -> int:
    """How often a writer is asked about them."""
    return sum(len(_parts(transcript)) for transcript in transcripts)


def read_all(
    writer: NoteWriter, transcripts: Sequence[Transcript], on_parts: Callable[[int], None] = lambda number: None
) -> list[Noting]:
    """What it notes of each transcript. The next parts of all are read together; `on_parts` gets their number."""
    left = [_parts(transcript)[::-1] for transcript in transcripts]
    found: list[list[tuple[int, WrittenNote]]] = [[] for _ in transcripts]
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
        on_parts(len(now))
    read, written = writer.read / max(1, writer.given), writer.written / max(1, writer.given)
    return [Noting(tuple(notes), read, written) for notes in found]


def _parts(transcript: Transcript) -> list[tuple[str, int]]:
    """(text, index of the last message of its exchange) of what is read at a time."""
    return [(text, one[-1].message) for one in exchanges(transcript.pieces) for text in parts(one, PART_TOKENS)]
