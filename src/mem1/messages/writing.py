"""A writer beside the agent, which reads each exchange once, and notes what a later step may need.

    class Ports:                            anything that has `write`, a small model as a rule
        def write(self, reading):           Reading(task="Find the port.", exchange="[assistant] I look. ...", ...)
            return [line for line in reading.exchange.splitlines() if line.startswith("port:")]

    u1  x1  x2  u2  x3        a conversation; u: message of the user, x: exchange
       [1 ][   2  ][3 ]       what is read in turn: pages, each kept by the hash of all messages up to its end

One thread reads while there is something to read, so nobody waits for the writer, and a process ends without it. A page
belongs to exactly these messages, as states do (`mem1.messages.sessions`): a history that is sent anew finds its pages,
and conversations that begin alike share those of what is alike. Notes are checked against what was read
(`mem1.messages.exact`). A page that fails is tried again after 2 exchanges of its conversation, then 4, and so on, and
those behind it wait.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import NamedTuple, Protocol

from mem1.messages.assembly import without_states
from mem1.messages.bounds import beginning, estimated, oldest
from mem1.messages.folding import state_in
from mem1.messages.selecting import waits
from mem1.messages.sessions import Latest, Trail, keys_of, newest
from mem1.messages.transcript import Exchange, Form, Message, Part, User, said, texts
from mem1.messages.written import LASTING, WrittenNote, checked, standing

PART_TOKENS, SIGHT = 400, 4
"""Estimated tokens of an exchange, and the newest notes on what was before the last part, that a writer is shown."""
LONGEST_PAUSE = 32
"""Exchanges after which what has often failed is tried again."""
_LONGEST = 400
"""Characters of a line that can be a note."""
MOST_LINES = 64
"""Lines of one reading that are looked at."""
_REMEMBERED = 10_000
"""Pages by their keys, and pages that wait for the writer at most; the others are given to it later."""
_WAITING = 64 << 20
"""Characters that wait for the writer at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a writer is shown."""

    task: str
    """Text of the user's first message."""
    notes: tuple[str, ...]
    """The newest notes that stand, oldest first: at most 4 on what was before the last part, and those on that."""
    latest: int
    """How many of them, the last ones, are on the last part."""
    begins: tuple[bool, ...]
    """Whether each is the first of those on its part."""
    exchange: str
    """What the model said, its calls, their results and what the user said behind them, a line for each; of a long one
    a part of at most 400 estimated tokens."""


class Writer(Protocol):
    """Writes notes. Each memory calls it in a thread of its own, one call at a time."""

    def write(self, reading: Reading, /) -> Sequence[str]:
        """Notes, a line each, such as "port: 8080", or with " !" at its end where it should leave last. May raise
        anything, and take as long as it needs."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """Notes of an exchange, with all pages before it."""

    key: str
    """Of the conversation up to its end."""
    until: int
    """Messages up to its end."""
    notes: tuple[WrittenNote, ...]
    parts: int
    """Of the conversation up to its end."""
    before: Page | None = field(default=None, repr=False)


class Progress(NamedTuple):
    """How much of a conversation is written."""

    notes: tuple[WrittenNote, ...]
    """All of them, oldest first, behind the lines of a state that is among the messages."""
    ends: tuple[int, ...]
    """Messages up to the end of each exchange that waits for no result."""
    written: int
    """Exchanges from the first on whose notes are there."""
    failures: int
    """Of the writer, at the first one that is not written."""
    why: str
    """What it last failed with there; empty: it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unread:
    """A page that is yet to be written."""

    key: str
    until: int
    before: str
    """Key of the page before; empty: it is the first."""
    task: str
    lines: tuple[str, ...]
    exchanges: int
    """Of the conversation, when it was given to the writer."""

    @property
    def characters(self) -> int:
        return sum(map(len, self.lines))


class _Failure(NamedTuple):
    times: int
    again: int
    """Exchanges of the conversation from which on it is tried again."""
    why: str


class Desk:
    """What waits for the writer, and what it wrote.

    `kept`: where pages outlive the process; it is used in the threads that call, never in the writer's.
    """

    def __init__(self, writer: Writer, form: Form, kept: MutableMapping[str, str] | None) -> None:
        self._writer, self._form, self._kept = writer, form, kept
        self._pages: Latest[Page] = Latest(_REMEMBERED)
        self._failed: Latest[_Failure] = Latest(_REMEMBERED)
        self._unread: dict[str, _Unread] = {}
        self._characters = 0
        """Of what is unread."""
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._owners: Latest[str] = Latest(_REMEMBERED)
        """Of conversations, by their messages alone: whoever recalls a note need not know whose they are."""

    def offer(self, messages: Sequence[Message], trail: Trail, pending: Collection[str]) -> Progress:
        """Gives the writer what is complete and new of a conversation, and says how much is written. Never waits for
        the writer."""
        keys = trail.keys
        parts, state, _ = without_states(self._form.read(messages), self._form)
        if trail.owner:
            self._owners[keys_of(messages)[-1]] = trail.owner
        ready = list(takewhile(lambda part: not waits(part, pending), parts))
        ends = tuple([part.end for part in ready if isinstance(part, Exchange)])
        with self._changed:
            page = self._newest(keys)
            until = 0 if page is None else page.until
            failure = self._give(ready, until, keys, len(ends))
        given = [line for line in (state or "").splitlines() if line.strip()]
        return Progress(
            notes=(*map(WrittenNote, given), *_notes(page)),
            ends=ends,
            written=sum(1 for _ in takewhile(lambda end: end <= until, ends)),
            failures=0 if failure is None else failure.times,
            why="" if failure is None else failure.why,
        )

    def recalled(self, name: str, messages: Sequence[Message], trail: Trail | None) -> str | None:
        """All notes of a conversation, replaced ones too, by the name "notes"; by the text of a note, what it was
        written about. None: neither. `trail`: None, where it is not known whose the conversation is."""
        keys = keys_of(messages) if trail is None else trail.keys
        if trail is None and (owned := newest(self._owners, keys)) is not None:
            keys = keys_of(messages, owned[1])
        with self._changed:
            page = self._newest(keys)
        wanted = _plain(name)
        if wanted == "notes":
            return "\n".join([note.text for note in _notes(page)]) or "nothing was noted yet"
        while page is not None and wanted not in [_plain(note.text) for note in page.notes]:
            page = page.before
        if page is None:
            return None
        parts, _, _ = without_states(self._form.read(messages), self._form)
        read = next(_units(parts, 0 if page.before is None else page.before.until), ())
        return "\n".join(lines_of(read, self._form)) or None

    def flush(self, timeout_s: float | None) -> bool:
        """Waits until nothing waits for the writer. Returns whether all that was given to it is written."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._unread, timeout_s) and not self._failed

    def _give(self, parts: Sequence[Part], until: int, keys: Sequence[str], exchanges: int) -> _Failure | None:
        """Returns the failure at the first page that is not written."""
        given, _ = newest(self._unread, keys) or (0, None)
        first = None
        before = keys[max(given, until) - 1] if max(given, until) else ""
        for unit in _units(parts, max(given, until)):
            end = max([part.end for part in unit])
            failure = self._failed.get(keys[end - 1])
            first = failure if first is None and given <= until else first
            if self._is_full or (failure is not None and exchanges < failure.again):
                break
            unread = self._unread[keys[end - 1]] = _Unread(
                key=keys[end - 1],
                until=end,
                before=before,
                task=next((texts(part.message.get("content")) for part in parts if isinstance(part, User)), ""),
                lines=tuple(lines_of(unit, self._form)),
                exchanges=exchanges,
            )
            self._characters += unread.characters
            before = keys[end - 1]
        if self._unread and (self._thread is None or not self._thread.is_alive()):  # as in a process that was forked
            self._thread = threading.Thread(target=self._work, name="mem1-writer", daemon=True)
            self._thread.start()
        return first

    @property
    def _is_full(self) -> bool:
        return len(self._unread) >= _REMEMBERED or self._characters >= _WAITING

    def _work(self) -> None:
        """Writes pages until none is left."""
        while True:
            with self._changed:
                unread = next(iter(self._unread.values()), None)
                if unread is None:
                    self._thread = None
                    return
                before = self._pages.get(unread.before)
                follows = before is not None or not unread.before
            written: Page | BaseException | None = None  # not where the page before it failed: it is given again later
            if follows:
                try:
                    written = self._written(unread, before)
                except BaseException as error:  # whatever a writer raises; the thread goes on with the next page
                    written = error
            with self._changed:
                del self._unread[unread.key]
                self._characters -= unread.characters
                if isinstance(written, Page):
                    self._pages[unread.key] = written
                    self._failed.pop(unread.key, None)
                elif written is not None:
                    times = 1 + (found.times if (found := self._failed.get(unread.key)) else 0)
                    again = unread.exchanges + min(2**times, LONGEST_PAUSE)
                    self._failed[unread.key] = _Failure(times, again, f"{type(written).__name__}: {written}")
                self._changed.notify_all()

    def _written(self, unread: _Unread, before: Page | None) -> Page:
        notes, number = _notes(before), 0 if before is None else before.parts
        since, parts = len(notes), list(parts_of(unread.lines, PART_TOKENS))
        for at, part in enumerate(parts, number):
            lines = self._writer.write(reading_of(unread.task, notes, at, part))
            if isinstance(lines, str):
                raise TypeError("a writer returns a list of lines; this one returned a text")
            found = checked([line for line in islice(lines, MOST_LINES) if len(line) <= _LONGEST], part, at)
            # no calls, no thoughts
            notes += [note for note in found if state_in(note.text, self._form)[0] == note.text]
        return Page(unread.key, unread.until, tuple(notes[since:]), number + len(parts), before)

    def _newest(self, keys: Sequence[str]) -> Page | None:
        """The last page of a conversation, kept if it was not, or as it was kept."""
        found = newest(self._pages, keys)
        if self._kept is None:
            return None if found is None else found[1]
        page = self._read(keys) if found is None else found[1]
        each = page
        while each is not None and (name := _name(each.key)) not in self._kept:
            before = "" if each.before is None else each.before.key
            notes = [[note.text, note.part, note.place] for note in each.notes]
            self._kept[name] = json.dumps([before, each.until, each.parts, notes], ensure_ascii=False)
            each = each.before
        return page

    def _read(self, keys: Sequence[str]) -> Page | None:
        """The last page that is kept with all before it."""
        assert self._kept is not None
        key = next((key for key in reversed(keys) if _name(key) in self._kept), "")
        kept: list[tuple[str, int, int, tuple[WrittenNote, ...]]] = []
        while key:
            text = self._kept.get(_name(key))
            if text is None:
                return None
            before, until, parts, notes = json.loads(text)
            kept.append((key, until, parts, tuple([WrittenNote(*note) for note in notes])))
            key = before
        page = None
        for key, until, parts, notes in reversed(kept):
            page = self._pages[key] = Page(key, until, notes, parts, page)
        return page


def reading_of(task: str, notes: Sequence[WrittenNote], number: int, part: str) -> Reading:
    """What a writer is shown of the part of this number, after these notes on those before it."""
    at = len(notes)
    while at and notes[at - 1].part == number - 1 >= 0:
        at -= 1
    replaced = {note.subject for note in notes[at:]}
    older = [note for note in standing(notes[:at]) if note.subject not in replaced]
    shown = [*older[-SIGHT:], *notes[at:]]
    return Reading(
        task=task,
        notes=tuple([note.text for note in shown]),
        latest=len(notes) - at,
        begins=tuple([note.place == 0 for note in shown]),
        exchange=part,
    )


def lines_of(parts: Iterable[Part], form: Form) -> Iterator[str]:
    """The texts of parts as a writer reads them: "[assistant] I look. search({...})", "[result of search] ..."."""
    for part in parts:
        if isinstance(part, User):
            yield f"[user] {texts(part.message.get('content'))}"
            continue
        calls = [f"{call.name}({call.arguments})" for call in part.calls]
        yield f"[assistant] {' '.join([text for text in (said(part), *calls) if text])}"
        for result in part.results:
            yield f"[result of {result.call.name}] {texts(form.content_of(result))}"


def parts_of(lines: Iterable[str], tokens: int) -> Iterator[str]:
    """All lines, in order, in parts of at most so many estimated tokens; a longer line is cut, between words where it
    has some."""
    part, size = list[str](), 0
    for rest in lines:
        while rest:
            one = oldest(rest, tokens) or beginning(rest, tokens) or rest[0]
            rest = rest[len(one) :].lstrip()
            if part and size + estimated(f"{one}\n") > tokens:
                yield "\n".join(part)
                part, size = [], 0
            part.append(one)
            size += estimated(f"{one}\n")
    if part:
        yield "\n".join(part)


def _units(parts: Sequence[Part], since: int) -> Iterator[list[Part]]:
    """What is read in turn of a conversation whose first messages were read: each exchange, with what the user said
    behind it. The task is in none. Exchanges that end with a later one, by a late result, are read with it."""
    task = next((part for part in parts if isinstance(part, User)), None)
    found, end = list[Part](), since
    for part in parts:
        if part is task or part.end <= since:
            continue
        if isinstance(part, Exchange) and part.end > end and any([isinstance(each, Exchange) for each in found]):
            yield found
            found = []
        found.append(part)
        end = max(end, part.end)
    if any([isinstance(each, Exchange) for each in found]):
        yield found


def _notes(page: Page | None) -> list[WrittenNote]:
    """Notes of a page and all before it, oldest first."""
    found = list[WrittenNote]()
    while page is not None:
        found += reversed(page.notes)
        page = page.before
    return found[::-1]


def _plain(note: str) -> str:
    """A note, or a line with it, as it is looked for."""
    return " ".join(note.split()).removeprefix("- ").removesuffix(LASTING.strip()).strip().casefold()


def _name(key: str) -> str:
    """Name of a page among kept states."""
    return f"{key} notes"
