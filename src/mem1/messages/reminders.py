"""Reminders that a framework adds turn by turn, as messages or beside results: only the newest of a kind counts.

    u1  x1 r1  x2 r2  x3 r3       r: "<system-reminder>Turn 1: the list of tasks was not used lately ..."
    u1  x3 r3                     where x1 and x2 leave, r1 and r2 leave with them

An earlier one leaves with the exchange before it and never else, so a prompt that only grows keeps its prefix. What a
user or an application wrote is no reminder: one came in a tag that names it so and does not pass on a message of the
user, or it is long, stands three times to the letter, and is never an answer to what the model said by itself. A late
system message is in a tag of another name, as its rules hold until they are taken back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mem1.messages.transcript import MAPPING, Content, Exchange, Message, Part, User, texts

_TAG = "system-message"
"""Of a late system message."""
_LONGEST_TAG = 40
_LEAST = 40
"""Characters of a text without a tag that may be a reminder."""
_LOOKED_AT = 8
"""Kinds, the latest seen, with which a text is compared; and reminders of any kind in a tag that stay."""
_ALIKE = 0.5
"""Share of words, but for digits, that two reminders of a kind have in common in a tag; without, all is the same."""
_FEWEST = 15
"""Words of both together below which they are of a kind only where all are in common."""
_REPEATS = {True: 2, False: 3}
"""Texts that make a kind."""
_DIGITS = {ord(digit): None for digit in "0123456789"}
_PASSED_ON = re.compile(
    r"\b(?:user|human)(?:['\u2019]s)?\s+(?:\w+\s+){0,3}?(?:sent|said|says|wrote|asked|message|request|instruction)",
    re.I,
)
"""In a reminder that brings what the user wrote meanwhile, as coding agents do."""


@dataclass(slots=True)
class _Kind:
    tagged: bool
    words: frozenset[str] | str
    """Without a tag, the whole text."""
    places: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])


def as_reminder(message: Message) -> Message | None:
    """A system message from the middle of a conversation as a text of the user's side, which every server takes there;
    None: it is empty."""
    text = texts(message.get("content"))
    if not text.strip():
        return None
    shown = text if _tagged(text) else f"<{_TAG}>\n{text}\n</{_TAG}>"
    kind = {"type": message["type"]} if "type" in message else {}
    return {**kind, "role": "user", "content": shown}


def outdated(parts: Sequence[Part]) -> Mapping[int, frozenset[int]]:
    """Index of a message of the user -> positions, among the parts of its content, of reminders that a newer one
    replaces."""
    kinds: list[_Kind] = []
    tagged: list[tuple[int, int]] = []
    every: list[_Kind] = []
    begun = False
    for at, part in enumerate(parts):
        if isinstance(part, Exchange):
            begun = True
            continue
        if not begun:
            continue
        blocks = _texts(part.message.get("content"))
        beside = _beside(parts, at)
        for position, text in blocks:
            in_tag = _tagged(text)
            if _PASSED_ON.search(text) if in_tag else (not beside or len(text) < _LEAST):
                continue
            if in_tag:
                tagged.append((at, position))
            words = frozenset(text.translate(_DIGITS).casefold().split()) if in_tag else text
            kind = next((kind for kind in kinds if _alike(kind.words, words)), None)
            if kind is None:
                every.append(kind := _Kind(in_tag, words))
            else:
                kinds.remove(kind)
                kind.words = words
            kind.places.append((at, position))
            kinds = [kind, *kinds[: _LOOKED_AT - 1]]
    old = [place for kind in every if len(kind.places) >= _REPEATS[kind.tagged] for place in kind.places[:-1]]
    found: dict[int, set[int]] = {}
    for at, position in (*old, *tagged[:-_LOOKED_AT]):
        found.setdefault(at, set()).add(position)
    return {at: frozenset(positions) for at, positions in found.items()}


def without(part: User, positions: frozenset[int]) -> User | None:
    """The message without the parts of its content at these positions; None: nothing is left."""
    content = part.message.get("content")
    if isinstance(content, str):
        return None
    left = [each for position, each in enumerate(content or ()) if position not in positions]
    return part._replace(message={**part.message, "content": left}) if left else None


def _texts(content: Content) -> list[tuple[int, str]]:
    """(position, text) of the parts of a content that are texts."""
    if isinstance(content, str):
        return [(0, content)]
    found = [(at, part.get("text")) for at, part in enumerate(content or ()) if isinstance(part, MAPPING)]
    return [(at, text) for at, text in found if isinstance(text, str)]


def _beside(parts: Sequence[Part], at: int) -> bool:
    """Whether a message of the user stands behind results or beside another one."""
    before = parts[at - 1]
    if isinstance(before, User) or before.calls:
        return True
    return at + 1 < len(parts) and isinstance(parts[at + 1], User)


def _tagged(text: str) -> bool:
    """Whether the whole text stands in a tag such as <system-reminder>."""
    text = text.strip()
    tag = text[1 : text.find(">", 0, _LONGEST_TAG)] if text.startswith("<") else ""
    return "reminder" in tag.lower() and text.endswith(f"</{tag}>")


def _alike(one: frozenset[str] | str, other: frozenset[str] | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    every = len(one | other)
    return len(one & other) >= (_ALIKE if every >= _FEWEST else 1) * every
