"""Notes that a writer makes of an agent's exchanges, and those that a budget leaves of them.

    billing proxy chosen: flintflow-3307 !        a subject, a value, and a mark where it must stay
    INV-830554 due: 20 November 2027

A later note on the same subject takes the place of an earlier one (`mem1.memory.notes`). Where all are too many, those
without the mark leave first, and of them the oldest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from mem1.memory.notes import read_note
from mem1.messages.bounds import estimated
from mem1.messages.exact import Source, verified

LASTING = " !"
"""How a note ends that leaves last."""


@dataclass(frozen=True, slots=True)
class WrittenNote:
    """A note, read for what a budget and later notes do with it."""

    text: str
    part: int = field(default=-1, compare=False)
    """Number of the part that it is on, from 0; -1: of none."""
    place: int = field(default=0, compare=False)
    """Among the lines on that part, from 0."""

    @property
    def lasting(self) -> bool:
        return self.text.endswith(LASTING)

    @property
    def subject(self) -> str:
        """What a later note has to be about to take its place; its whole text where it names no subject."""
        entry = read_note(self.text)
        return entry.key or entry.text


def checked(lines: Iterable[str], source: str, part: int = -1) -> Iterator[WrittenNote]:
    """The lines as notes about this text, each repaired or left out where it says something exact that the text does
    not (`mem1.messages.exact.verified`). `part`: the number of the text."""
    about = Source(source)
    for place, line in enumerate(lines):
        lasting = line.rstrip().endswith(LASTING)
        note = verified(line.rstrip().removesuffix(LASTING), about)
        if note:
            yield WrittenNote(f"{note}{LASTING if lasting else ''}", part, place)


def standing(notes: Sequence[WrittenNote]) -> list[WrittenNote]:
    """Those that no later note replaces or repeats, in their order."""
    newest = {note.subject: at for at, note in enumerate(notes)}
    return [notes[at] for at in sorted(newest.values())]


def within(notes: Sequence[WrittenNote], tokens: int, count: Callable[[str], int] = estimated) -> list[WrittenNote]:
    """Those of the standing notes that fit into so many tokens as lines, in their order."""
    left, taken = tokens, set[int]()
    kept = standing(notes)
    best_first = sorted(range(len(kept)), key=lambda at: (not kept[at].lasting, -at))
    for at in best_first:
        size = count(f"{kept[at].text}\n")
        if size > left:
            break
        left -= size
        taken.add(at)
    return [note for at, note in enumerate(kept) if at in taken]
