"""Whole transcripts read by a writer, for the examination of `mem1 probe`.

read_all(writer, transcripts)[0].notes     ->   ((11, WrittenNote("INV-482130 due: 3 May 2027")), ...)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mem1.extras.probe.readings import Noting
from mem1.extras.probe.transcripts import Transcript
from mem1.extras.probe.writers import parts
from mem1.extras.writer.note_writer import NoteWriter
from mem1.messages.writing import PART_TOKENS, Reading, reading_of
from mem1.messages.written import WrittenNote, checked


def number_of_parts(transcripts: Sequence[Transcript]) -> int:
    """How often a writer is asked about them."""
    return sum(len(parts_of_transcript(transcript)) for transcript in transcripts)


def read_all(
    writer: NoteWriter, transcripts: Sequence[Transcript], on_part: Callable[[], None] = lambda: None
) -> list[Noting]:
    """What it notes of each transcript, all of which are read at a time; `on_part` is called after each part."""
    left = [parts_of_transcript(transcript)[::-1] for transcript in transcripts]
    found: list[list[tuple[int, WrittenNote]]] = [[] for _ in transcripts]
    read = [0] * len(transcripts)  # parts
    tasks = [transcript.task for transcript in transcripts]

    def reading(at: int) -> Reading:
        return reading_of(tasks[at], (note for _, note in reversed(found[at])), read[at], left[at][-1][0])

    def then(at: int, lines: Sequence[str]) -> Reading | None:
        text, message = left[at].pop()
        found[at] += [(message, note) for note in checked(lines, text, read[at])]
        read[at] += 1
        on_part()
        return reading(at) if left[at] else None

    writer.write_along([reading(at) for at in range(len(transcripts))], then)
    taken, written = writer.read / max(1, writer.given), writer.written / max(1, writer.given)
    return [Noting(tuple(notes), taken, written) for notes in found]


def parts_of_transcript(transcript: Transcript) -> list[tuple[str, int]]:
    """(text, index of the last message of its exchange) of what is read at a time."""
    return [(text, one[-1].message) for one in transcript.exchanges for text in parts(one, PART_TOKENS)]
