"""Notes: what a policy wrote to keep, as edits of a notebook that the harness keeps for it.

    <note> Q3 Oslo </note>                  the answer to a question, under its label
    <note> harbour: built in 1901 </note>   anything else, under a key of its own
    <note> built of oak </note>             without a key

    a later note with the same key replaces the earlier one; a key without a value removes it:  <note> harbour: </note>

An answer may stand for the notes instead of copying them:

    <answer> notes </answer>                ->  Q3 Oslo; Q4 1901             the notes that have labels, or else all
    <answer> notes; Q5 Bergen </answer>     ->  Q3 Oslo; Q4 1901; Q5 Bergen
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mem1.memory.selection import Exchange
from mem1.protocol import NOTE, SUMMARY
from mem1.records import Span, Turn, note_role

NOTES = "notes"
"""Answer that stands for the notes."""
_LABELLED = re.compile(r"Q(\d{1,4})(?![\w])[\s:.)]*(.*)", re.DOTALL)
_KEYED = re.compile(r"([^:;\n]{1,64}):(?!\S)\s*(.*)", re.DOTALL)
_SEPARATOR = re.compile(r"[;\n]")

_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True)
class Note:
    """One entry of the notebook."""

    text: str
    key: str
    """Label of a question, such as "Q3", or a key in lower case; empty: it has none."""
    value: str
    """What it says under its key."""

    @property
    def labelled(self) -> bool:
        return _LABELLED.match(self.text) is not None


def read_note(text: str, *, labelled: bool = True) -> Note:
    """The text of a note as an entry.

    read_note("Q3 Oslo")                  ->  Note("Q3 Oslo", key="Q3", value="Oslo")
    read_note("Q3 Oslo", labelled=False)  ->  Note("Q3 Oslo", key="", value="Q3 Oslo")
    """
    text = text.strip()
    if labelled and (match := _LABELLED.match(text)):
        return Note(text, f"Q{int(match[1])}", match[2].strip())
    return Note(text, *(keyed(text) or ("", text)))


def keyed(text: str) -> tuple[str, str] | None:
    """(key in lower case, value) of "Harbour: built in 1901"; None: it has no key."""
    match = _KEYED.match(text)
    return None if match is None else (match[1].strip().lower(), match[2].strip())


def standing(turns: Sequence[Exchange], first: int = 0) -> dict[int, tuple[int, ...]]:
    """Which notes stand after these turns: number of a turn, from `first`, -> positions among the notes of that turn.

    Notes that were replaced or removed, and those that remove others, do not. Turns without any are left out.
    """
    places: dict[object, tuple[int, int]] = {}
    for number, turn in enumerate(turns, first):
        for position, text in enumerate(turn.notes):
            _edit(places, read_note(text, labelled=turn.labelled), (number, position))
    return by_turn(sorted(places.values()))


def by_turn(notes: Iterable[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    """Notes, each (turn, position in it), as turn -> positions, in the order given."""
    found: dict[int, tuple[int, ...]] = {}
    for number, position in notes:
        found[number] = (*found.get(number, ()), position)
    return found


def notebook(turns: Sequence[Turn]) -> list[Note]:
    """All entries that stand after these turns, in the order in which they were written.

    A rewrite (a summary) takes the place of all before it; its entries are separated by semicolons or lines.
    """
    entries: dict[object, Note] = {}
    for turn in turns:
        rewritten = turn.action == SUMMARY
        if rewritten:
            entries.clear()
        for text in _SEPARATOR.split(turn.content) if rewritten else turn.notes:
            note = read_note(text)
            _edit(entries, note, note)
    return list(entries.values())


def answer_from(content: str, turns: Sequence[Turn]) -> str:
    """The answer that `content` gives after these turns, with the notes in the place of the word "notes".

    Entries after that word take the place of notes with the same key.
    """
    first, *more = content.split(";")
    if first.strip().lower() != NOTES:
        return content
    entries: dict[object, Note] = {}
    for note in [*notebook(turns), *map(read_note, more)]:
        _edit(entries, note, note)
    labelled = [note for note in entries.values() if note.labelled]
    return "; ".join(note.text for note in labelled or entries.values())


def note_spans(turn: Turn, positions: Sequence[int]) -> list[Span]:
    """Ranges of these notes, tags included, in the completion of their turn."""
    return [turn.completion_spans[note_role(position)] for position in positions]


def memory_spans(turn: Turn) -> list[Span]:
    """Ranges of the state and the notes in the completion of a turn, tags included."""
    return [span for role, span in turn.completion_spans.items() if role == "state" or role.startswith(NOTE)]


def _edit(entries: dict[object, _Entry], note: Note, entry: _Entry) -> None:
    """Put the note into the notebook, as its newest entry."""
    key = note.key or object()
    entries.pop(key, None)
    if note.value:
        entries[key] = entry
