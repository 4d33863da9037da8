"""Notes of whole histories, read part by part: what was read before is not read again, and a reply that comes back is
notes.

    summaries = Summaries(NoteWriter.load("runs/writer/policy"))
    summaries.read(of_chat(messages, summaries.replies), 1_000, Event()).text    ->   "INV-482130 due: 3 May 2027\\n..."
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from threading import Event
from typing import NamedTuple, Protocol

from mem1.extras.writer.histories import History, readable, task_in
from mem1.extras.writer.note_writer import WrittenPart
from mem1.messages.sessions import Latest
from mem1.messages.writing import PART_TOKENS, Reading, reading_of
from mem1.messages.written import WrittenNote, checked, within

NOTHING = "nothing to note"
"""The reply where the writer notes nothing: products take an empty one for a failure."""
_PARTS, _REPLIES = 20_000, 64
"""Parts whose notes are remembered, and replies that are known again."""
_SHORTEST = 40
"""Letters of a reply that is known again; a shorter one may stand in a text by chance."""


class CountingWriter(Protocol):
    """A writer that counts the tokens that it reads and writes, as `note_writer.NoteWriter` does."""

    @property
    def concurrency(self) -> int: ...

    def noted(self, reading: Reading, /) -> WrittenPart: ...


@dataclass(frozen=True, slots=True)
class Noted:
    """The notes of a history."""

    text: str
    """Lines; empty: none of the notes fits."""
    read: int
    """Tokens that the writer has read for it."""
    written: int


class _Part(NamedTuple):
    notes: tuple[WrittenNote, ...]
    """Checked."""
    read: int
    """Tokens, now."""
    written: int


class Stopped(Exception):
    """The server stops, or nobody waits for the notes."""


class Summaries:
    """Notes of histories. Thread-safe."""

    def __init__(self, writer: CountingWriter) -> None:
        self._writer = writer
        self._lock = threading.Lock()
        self._parts: Latest[tuple[WrittenNote, ...]] = Latest(_PARTS)
        self._replies: Latest[None] = Latest(_REPLIES)
        self.stopping: Callable[[], bool] = lambda: False
        """Whether the server stops."""

    @property
    def at_a_time(self) -> int:
        """Most histories that are worth reading at a time."""
        return self._writer.concurrency

    @property
    def replies(self) -> tuple[str, ...]:
        """The last replies, oldest first."""
        with self._lock:
            return tuple(self._replies)

    def read(self, history: History, tokens: int, gone: Event) -> Noted:
        """The notes that fit into so many tokens. Raises Stopped once `gone` is set or the server stops."""
        task, notes, read, written = task_in(history), list[WrittenNote](), 0, 0
        for number, (text, ours) in enumerate(readable(history, PART_TOKENS)):
            if ours:
                notes += [WrittenNote(line) for line in text.splitlines()]
            else:
                if gone.is_set() or self.stopping():
                    raise Stopped
                found = self._noted(reading_of(task, reversed(notes), number, text))
                notes += [replace(note, part=number) for note in found.notes]
                read, written = read + found.read, written + found.written
        reply = "\n".join(within(notes, tokens)) if any(note.kept for note in notes) else NOTHING
        with self._lock:
            if len(reply) >= _SHORTEST:
                self._replies[reply] = None
        return Noted(reply, read, written)

    def _noted(self, reading: Reading) -> _Part:
        """The checked notes of a part, which is read once with the same task and the same notes in sight."""
        key = sha256(json.dumps(asdict(reading)).encode()).hexdigest()
        with self._lock:
            known = self._parts.get(key)
        new = WrittenPart((), 0, 0) if known is not None else self._writer.noted(reading)
        notes = known if known is not None else tuple(checked(new.notes, reading.exchange))
        with self._lock:
            self._parts[key] = notes
        return _Part(notes, new.read, new.written)
