"""Notes that a writer makes of an agent's exchanges, and the lines that a budget leaves of them.

    billing proxy chosen: flintflow-3307 !        a subject, a value, and a mark where it must stay
    INV-830554 due: 20 November 2027

A later note on the same subject takes the place of an earlier one, and its mark with it; a subject without a value
removes it. Where all are too many, those without the mark leave first, and of them the oldest.

What a writer wrote and what is kept of it are two things: the writer sees again what it wrote, as in training, and the
agent sees what was checked (`kept_of`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from mem1.memory.notes import keyed, read_note
from mem1.messages.bounds import estimated
from mem1.messages.exact import Source, month_of, verified
from mem1.messages.folding import state_in
from mem1.messages.forms import form_of
from mem1.messages.thoughts import has_marks
from mem1.messages.wholes import bare, compared
from mem1.sanitize import strip_brackets

LASTING = " !"
"""How a note ends that leaves last."""
_MOST_LINES = 64
"""Lines of one reading that are looked at."""
_LONGEST = 400
"""Characters of a line that can be a note."""
_SEEN, _FAR = 2_000, 1_000
"""Characters of a line that a writer sees again, and notes that are looked at for those that stand."""
_ESCAPED = re.compile(r"\\([nrt\"\\/])")
_JOINED = re.compile(
    r"(?<=\d)T(?=\d\d:\d\d)|\b[vV](?=\d)|(?<![\w.,])(\d[\d.,]*)(?=(?:[kKMGT]i?B|ms|s|min|h|kg|km|m|EUR|USD)\b)"
)
_IN_RANGES = r"[\w.:,/$%\u20ac\xa3-]"
_RANGE = re.compile(
    rf"(?<!{_IN_RANGES})(?<!\u2013)({_IN_RANGES}{{1,30}})\u2013(?=({_IN_RANGES}{{1,30}}))(?!{_IN_RANGES}{{0,30}}\u2013)"
)
_MARKER = re.compile(r"\s*(?:[-*\u2022]|\d{1,2}[.)])\s+")
_TICKS = re.compile("`{2,}")
_UNNAMED = (
    *("assumption", "attempt", "bug", "change", "command", "constraint", "customer", "decision", "detail", "entry"),
    *("error", "example", "fact", "failed", "file", "finding", "fix", "goal", "id", "important", "info", "instruction"),
    *("invoice", "issue", "item", "limitation", "link", "note", "observation", "order", "path", "person", "preference"),
    *("problem", "question", "reminder", "request", "requirement", "result", "risk", "rule", "source", "step", "task"),
    *("ticket", "tip", "todo", "tried", "update", "url", "user", "user prefers", "user wants", "warning"),
)
"""Subjects that many notes have which say different things, also with an "s"."""

Subject = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WrittenNote:
    """A note as a writer wrote it."""

    text: str
    part: int = field(default=-1, compare=False)
    """Number of the part that it is on, from 0; -1: of none."""
    place: int = field(default=0, compare=False)
    """Among the lines on that part, from 0."""
    checked: str | None = None
    """What is kept of it, empty: nothing; None: it stands as it is."""

    @property
    def kept(self) -> str:
        return self.text if self.checked is None else self.checked


def about(text: str) -> Source:
    """What notes on a part are checked against: the part as harmless as a model reads it, so that a repair brings no
    tag back; and again with words apart that ranges, and that JSON, times, versions and units join."""
    harmless = strip_brackets(compared(text), ())
    ranges = _RANGE.sub(_ends_apart, harmless)
    unescaped = _ESCAPED.sub(lambda sign: " " if sign[1] in "nrt" else sign[1], ranges)
    apart = _JOINED.sub(lambda joined: f"{joined[1] or ''} ", unescaped)
    return Source("\n".join(dict.fromkeys((harmless, ranges, apart))))


def _ends_apart(found: re.Match[str]) -> str:
    """A range with its ends apart; numbers that fall, as of "555\u20130199", are none."""
    start, end = found[1], found[2].rstrip(".,:")
    falls = start.isdecimal() and end.isdecimal() and int(start) >= int(end)
    of_numbers = all(any(map(str.isdecimal, side)) for side in (start, end)) and start.count("-") == end.count("-")
    return f"{start} \u2013 " if of_numbers and not falls else found[0]


def kept_of(line: str, source: Source) -> str:
    """What is kept of a line about this source: repaired where it says something exact that the source does not
    (`mem1.messages.exact.verified`); empty: nothing, as where it is long, or a call or a thought."""
    if len(line) > _LONGEST:
        return ""
    line = _unmarked(line)
    lasting = line.rstrip().endswith(LASTING)
    note = verified(line.rstrip().removesuffix(LASTING), source) or ""
    note = _TICKS.sub("`", note)
    if note.count("`") % 2:  # nothing of one line may hide what stands in another
        whole = " ".join(note.replace("`", "").split())
        note = whole if verified(whole, source) == whole else ""  # one inside a word was a part of it
    plain = note.replace("`", "")
    if not plain or has_marks(plain) or state_in(plain, form_of("chat"))[0] != plain:
        return ""
    return f"{note}{LASTING if lasting else ''}"


def _unmarked(line: str) -> str:
    """The line without a list's mark; the day in "12. March" is none."""
    rest = line[found.end() :] if (found := _MARKER.match(line)) else line
    dated = found is not None and found[0].strip()[0].isdecimal() and month_of(bare(rest.partition(" ")[0]).casefold())
    return line if dated else rest


def checked(lines: Iterable[str], text: str, part: int = -1) -> Iterator[WrittenNote]:
    """The lines as notes about this text, which is the part of this number. Raises TypeError for what is no list of
    lines."""
    if isinstance(lines, str):
        raise TypeError("a writer returns a list of lines; this one returned a text")
    source = about(text)
    for place, line in enumerate(islice(lines, _MOST_LINES)):
        yield WrittenNote(" ".join(line[:_SEEN].split()), part, place, kept_of(line, source))


def standing(notes: Iterable[WrittenNote]) -> list[str]:
    """What is kept of those that no later note replaces, repeats or removes, oldest first."""
    entries = dict[Subject, str]()
    for note in notes:
        if not (text := note.kept):
            continue
        subject, value = _read(text)
        before = entries.get(subject, "")
        lasting = text.endswith(LASTING)
        if not value and before.endswith(LASTING) and not lasting:
            continue
        entries.pop(subject, None)
        if value:
            entries[subject] = text if lasting or not before.endswith(LASTING) else f"{text}{LASTING}"
    return list(entries.values())


def within(notes: Iterable[WrittenNote], tokens: int, count: Callable[[str], int] = estimated) -> list[str]:
    """Those of the standing notes that fit into so many tokens as lines, in their order."""
    left, taken = tokens, set[int]()
    kept = standing(notes)
    for at in sorted(range(len(kept)), key=lambda at: (not kept[at].endswith(LASTING), -at)):
        size = count(f"{kept[at]}\n")
        if size <= left:
            left -= size
            taken.add(at)
    return [note for at, note in enumerate(kept) if at in taken]


def _read(text: str) -> tuple[Subject, str]:
    """What a later note has to be about to take its place, and what it says; its whole text where it names no
    subject."""
    bare = text.removesuffix(LASTING).strip()
    key, value = keyed(bare) or ("", bare)
    named = key and key not in _UNNAMED and key.removesuffix("s") not in _UNNAMED
    return (("of", key), value) if named else ((bare,), bare)


def sight(newest_first: Iterable[WrittenNote], number: int, most: int) -> tuple[list[WrittenNote], list[WrittenNote]]:
    """(the newest `most` notes that stand on what was before the last part, all on the last part), as a policy that was
    trained under `notebook` sees them before the part of this number. `newest_first` is read as far as needed."""
    older, latest, later = list[WrittenNote](), list[WrittenNote](), set[str]()
    for note in islice(newest_first, _FAR):
        entry = read_note(note.text)
        if note.part == number - 1 >= 0:
            latest.append(note)
        elif len(older) == most:
            break
        elif entry.value and not (entry.key and entry.key in later):
            older.append(note)
        later.add(entry.key)
    return older[::-1], latest[::-1]
