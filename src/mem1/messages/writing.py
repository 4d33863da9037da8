"""A writer beside the agent, which reads each exchange once, and notes what a later step may need.

    class Ports:                            anything that has `write`, a small model as a rule
        def write(self, reading):           Reading(task="Find the port.", exchange="[assistant] I look. ...", ...)
            return [line for line in reading.exchange.splitlines() if line.startswith("port:")]

    u1  x1  x2  u2  x3        a conversation; u: message of the user, x: exchange
       [1 ][   2  ][3 ]       what is read in turn: pages, each kept by the hash of all messages up to its end

Threads read while there is something to read, so nobody waits for the writer, and a process ends without it. A page
belongs to exactly these messages, as states do (`mem1.messages.sessions`): a history that is sent anew finds its pages,
and conversations that begin alike share those of what is alike. What is kept of notes is checked against what was read
(`mem1.messages.written`). A page that fails is tried again after 2 exchanges of its conversation, then 4, and so on,
and those behind it wait. From its third failure on, the page behind it is tried as well: if the writer can write that
one and fails again at the first, a line that recalls the exchange stands for the notes that nobody could write.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Collection, Iterable, Iterator, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, takewhile
from typing import NamedTuple, Protocol

from mem1.messages.assembly import without_states
from mem1.messages.bounds import beginning, estimated, oldest
from mem1.messages.selecting import waits
from mem1.messages.sessions import Latest, Trail, keys_of, newest
from mem1.messages.transcript import Exchange, Form, Message, Part, User, said, texts
from mem1.messages.waiting import Unread, Waiting
from mem1.messages.wholes import CUT, parts_words
from mem1.messages.written import LASTING, WrittenNote, checked, sight

_BEGINS = re.compile(r"\[(?:user|assistant|result of)\b")
_SEPARATES = frozenset(",;&}])")
_LINE_ENDS = re.compile(r"\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_BEGINS_LATER = re.compile(rf"(?<=\n)(?={_BEGINS.pattern})")
PART_TOKENS, SIGHT = 400, 4
"""Estimated tokens of an exchange, and the newest notes on what was before the last part, that a writer is shown."""
PAGE = " page"
"""How the name of a page ends among kept states."""
LONGEST_PAUSE = 32
"""Exchanges after which what has often failed is tried again."""
_GIVEN_UP = 3
"""Failures after which a page may be one that cannot be read."""
_REMEMBERED = 10_000
"""Pages by their keys, and pages that wait for the writer at most."""
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
    """Writes notes. Each memory calls it in a thread of its own; where the writer has a number `concurrency`, in as
    many, each for another conversation."""

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
        self._doubtful: Latest[tuple[Unread, Page]] = Latest(_REMEMBERED)
        """What has failed often, and the page that stands for it if the writer can write what is behind it."""
        self._unread = Waiting(_REMEMBERED, _WAITING)
        self._most: int = getattr(writer, "concurrency", 1)
        self._threads: list[threading.Thread] = []
        self._reading: set[str] = set()
        """Keys of the pages that the threads are reading."""
        self._closed = False
        self._changed = threading.Condition()
        self._owners: Latest[str] = Latest(_REMEMBERED)
        """Of conversations, by their messages alone: whoever recalls a note need not know whose they are."""

    def offer(self, messages: Sequence[Message], trail: Trail, pending: Collection[str]) -> Progress:
        """Gives the writer what is complete and new of a conversation, and says how much is written. Never waits for
        the writer."""
        keys = trail.keys
        parts, state, _ = without_states(self._form.read(messages), self._form)
        plain = keys_of(messages)[-1] if trail.owner else ""
        ready = list(takewhile(lambda part: not waits(part, pending), parts))
        ends = tuple([part.end for part in ready if isinstance(part, Exchange)])
        with self._changed:
            if plain:
                self._owners[plain] = trail.owner
            page = self._newest(keys)
            until = 0 if page is None else page.until
            failure = self._give(ready, until, trail, len(ends))
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
            return "\n".join([note.kept for note in _notes(page)]) or "nothing was noted yet"
        while page is not None and wanted not in [_plain(note.kept) for note in page.notes if note.kept]:
            page = page.before
        if page is None:
            return None
        parts, _, _ = without_states(self._form.read(messages), self._form)
        read = next(_units(parts, 0 if page.before is None else page.before.until), ())
        return "\n".join(lines_of(read, self._form)) or None

    def flush(self, timeout_s: float | None) -> bool:
        """Waits until nothing waits for the writer. Returns whether all that was given to it is written; what had no
        room is given to it later."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not len(self._unread), timeout_s)
            return not len(self._unread) and not self._failed

    def close(self) -> None:
        """Keeps what was written since it was last asked for. Nothing is given to the writer any more."""
        with self._changed:
            self._closed = True
            for page in list(self._pages.values()):
                self._keep(page)
            self._changed.notify_all()

    def _give(self, parts: Sequence[Part], until: int, trail: Trail, exchanges: int) -> _Failure | None:
        """Returns the failure at the first page that is not written."""
        keys, first = trail.keys, None
        request = self._unread.request(keys[until:])
        given = max([at for at, key in enumerate(keys, 1) if key in self._unread], default=0)
        before = keys[max(given, until) - 1] if max(given, until) else ""
        for unit in _units(parts, max(given, until)):
            end = max([part.end for part in unit])
            failure = self._failed.get(keys[end - 1])
            first = failure if first is None and given <= until else first
            if self._closed or (failure is not None and exchanges < failure.again):
                break
            unread = Unread(
                key=keys[end - 1],
                owner=trail.owner,
                until=end,
                before=before,
                task=next((texts(part.message.get("content")) for part in parts if isinstance(part, User)), ""),
                lines=tuple(lines_of(unit, self._form)),
                exchanges=exchanges,
            )
            if not self._unread.add(unread, request):
                break
            before = keys[end - 1]
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if not self._threads:  # as in a process that was forked
            self._reading.clear()
        if len(self._threads) < self._most and len(self._unread) > len(self._reading):
            thread = threading.Thread(target=self._work, name="mem1-writer", daemon=True)
            with suppress(RuntimeError):  # no thread can be started: the next request tries again
                thread.start()
                self._threads.append(thread)
        return first

    def _work(self) -> None:
        """Writes pages until none is left."""
        while True:
            with self._changed:
                unread = None if self._closed else self._unread.next(self._reading)
                if unread is None:
                    self._threads.remove(threading.current_thread())
                    return
                self._reading.add(unread.key)
                before, doubtful = self._pages.get(unread.before), None
                if before is None and (doubtful := self._doubtful.get(unread.before)) is not None:
                    before = doubtful[1]
                follows = before is not None or not unread.before
                # kept after all; or not, where the page before it failed: it is given again later
                written: Page | BaseException | None = self._pages.get(unread.key)
            if follows and written is None:
                written = self._tried(unread, before)
                if doubtful is not None and isinstance(written, Page):  # unless the writer has just come back
                    again = self._tried(doubtful[0], doubtful[1].before)
                    written = again if isinstance(again, Page) else written
            with self._changed:
                self._reading.discard(unread.key)
                self._unread.take(unread.key)
                if isinstance(written, Page):
                    self._take(written)
                elif written is not None:
                    times = 1 + (found.times if (found := self._failed.get(unread.key)) else 0)
                    again = unread.exchanges + min(2**times, LONGEST_PAUSE)
                    self._failed[unread.key] = _Failure(times, again, _words(written))
                    if times >= _GIVEN_UP:
                        self._doubtful[unread.key] = unread, _unreadable(unread, before)
                self._changed.notify_all()

    def _take(self, page: Page | None) -> None:
        """A page is written, and so the writer cannot read those before it that are not."""
        while page is not None and page.key not in self._pages:
            self._pages[page.key] = page
            self._failed.pop(page.key, None)
            page = page.before

    def _tried(self, unread: Unread, before: Page | None) -> Page | BaseException:
        try:
            return self._written(unread, before)
        except BaseException as error:  # whatever a writer raises; the thread goes on with the next page
            return error

    def _written(self, unread: Unread, before: Page | None) -> Page:
        number, found = 0 if before is None else before.parts, list[WrittenNote]()
        parts = list(parts_of(unread.lines, PART_TOKENS))
        for at, part in enumerate(parts, number):
            reading = reading_of(unread.task, chain(reversed(found), _newest_first(before)), at, part)
            found += checked(self._writer.write(reading), part, at)
        return Page(unread.key, unread.until, tuple(found), number + len(parts), before)

    def _newest(self, keys: Sequence[str]) -> Page | None:
        """The last page of a conversation, kept if it was not, or as it was kept."""
        number, page = newest(self._pages, keys) or (0, None)
        if self._kept is None:
            return page
        page = self._read(keys, number) or page
        self._keep(page)
        return page

    def _keep(self, page: Page | None) -> None:
        while self._kept is not None and page is not None and (name := _name(page.key)) not in self._kept:
            before = "" if page.before is None else page.before.key
            notes = [[note.text, note.part, note.place, note.checked] for note in page.notes]
            self._kept[name] = json.dumps([before, page.until, page.parts, notes], ensure_ascii=False)
            page = page.before

    def _read(self, keys: Sequence[str], known: int) -> Page | None:
        """The last page behind so many messages that is kept, with all before it; None: one of them is not."""
        assert self._kept is not None
        end = next((at for at in range(len(keys), known, -1) if _name(keys[at - 1]) in self._kept), 0)
        key, kept = keys[end - 1] if end else "", list[tuple[str, int, int, tuple[WrittenNote, ...]]]()
        while key and key not in self._pages:
            try:
                before, until, parts, notes = json.loads(self._kept[_name(key)])
                if keys[until - 1] != key or not 0 < until <= end:
                    return None
                kept.append((key, until, int(parts), tuple([WrittenNote(*note) for note in notes])))
            except (LookupError, ValueError, TypeError):  # one that has left, or was written by something else
                return None
            key, end = str(before), until - 1
        page = self._pages.get(key)
        for key, until, parts, notes in reversed(kept):
            page = self._pages[key] = Page(key, until, notes, parts, page)
        return page


def reading_of(task: str, newest_first: Iterable[WrittenNote], number: int, part: str) -> Reading:
    """What a writer is shown of the part of this number, after these notes on those before it."""
    older, latest = sight(newest_first, number, SIGHT)
    shown = [*older, *latest]
    return Reading(
        task=task,
        notes=tuple([note.text for note in shown]),
        latest=len(latest),
        begins=tuple([note.place == 0 for note in shown]),
        exchange=part,
    )


def lines_of(parts: Iterable[Part], form: Form) -> Iterator[str]:
    """The texts of parts as a writer reads them: "[assistant] I look. search({...})", "[result of search] ...". A
    line in them that would begin such a text is moved in by a space."""
    for part in parts:
        if isinstance(part, User):
            yield f"[user] {one_text(texts(part.message.get('content')))}"
            continue
        calls = [f"{call.name}({call.arguments})" for call in part.calls]
        yield f"[assistant] {one_text(' '.join([text for text in (said(part), *calls) if text]))}"
        for result in part.results:
            yield f"[result of {result.call.name}] {one_text(texts(form.content_of(result)))}"


def one_text(text: str) -> str:
    """The text with no line, whatever ends lines, that begins another one, as "[user] From now on ..." in a result
    would."""
    return _BEGINS_LATER.sub(" ", _LINE_ENDS.sub("\n", text))


def parts_of(lines: Iterable[str], tokens: int) -> Iterator[str]:
    """All lines, in order, in parts of at most so many estimated tokens; a longer line is cut, between words where it
    has some. A word that is longer than a part is cut too, with `CUT` at both ends: no piece of it is whole."""
    part, size = list[str](), 0
    for rest in lines:
        while rest:
            one = oldest(rest, tokens) or _beginning(rest, tokens)
            cut = len(one) < len(rest) and not (rest[len(one)].isspace() or parts_words(rest, len(one)))
            rest = f"{CUT if cut else ''}{rest[len(one) :].lstrip()}"
            one = f"{one}{CUT}" if cut else one
            rest = f" {rest}" if _BEGINS.match(rest) else rest
            if part and size + estimated(f"{one}\n") > tokens:
                yield "\n".join(part)
                part, size = [], 0
            part.append(one)
            size += estimated(f"{one}\n")
    if part:
        yield "\n".join(part)


def _beginning(line: str, tokens: int) -> str:
    """The beginning of a line without spaces: up to a place between two words, behind a sign that separates if there is
    one; else as much as fits with `CUT`."""
    most = beginning(line, tokens)
    if most == line:
        return line
    places = range(len(most), 1, -1)
    behind_a_sign = next((at for at in places if line[at - 1] in _SEPARATES and parts_words(line, at)), 0)
    at = behind_a_sign or next((at for at in places if parts_words(line, at)), 0)
    return most[:at] or beginning(line, tokens - 2)[:-1] or line[: 1 + line.startswith(CUT)]


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


def _unreadable(unread: Unread, before: Page | None) -> Page:
    """A page without notes, but for a line by which the agent can recall what it was about."""
    first, number = (0, 0) if before is None else (before.until, before.parts)
    line = f"messages {first + 1} to {unread.until} could not be noted; recall this line to read them"
    return Page(unread.key, unread.until, (WrittenNote("", checked=line),), number, before)


def _newest_first(page: Page | None) -> Iterator[WrittenNote]:
    """Notes of a page and all before it."""
    while page is not None:
        yield from reversed(page.notes)
        page = page.before


def _notes(page: Page | None) -> list[WrittenNote]:
    """What is kept of the notes of a page and all before it, oldest first."""
    return [note for note in _newest_first(page) if note.kept][::-1]


def _words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # one that cannot say itself
        return type(error).__name__


def _plain(note: str) -> str:
    """A note, or a line with it, as it is looked for."""
    return " ".join(note.split()).removeprefix("- ").removesuffix(LASTING.strip()).strip().casefold()


def _name(key: str) -> str:
    """Name of a page among kept states."""
    return f"{key}{PAGE}"
