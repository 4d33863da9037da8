"""What a product sends for a summary, as pieces to read, and as notes where an earlier reply stands in it.

    [system] Summarise ...   [user] <messages><message type="human">Book the dock.</message> ...      one text
    [user] Book the dock.   [assistant] book(...)   [tool] dock 14 is yours   [user] Summarise this.      messages

Of a text, lines that begin with a speaker ("Human:", "[TOOL RESULT c1]:", '<message type="ai">') begin a piece. Of
messages, the last is left out where it asks for the summary and no system message does. A reply of ours is known by
itself: it has to stand there whole, letter for letter, and to be one of the last that this server gave. So no text that
merely looks like notes is taken for them. What stands around it ("Here is a summary:") is read with the next turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mem1.extras.probe.pieces import Piece, Role, exchanges, pieces_of
from mem1.extras.probe.writers import parts
from mem1.messages.forms import form_of
from mem1.messages.transcript import Exchange, texts
from mem1.messages.writing import lines_of

Message = Mapping[str, Any]
History = Sequence[Piece | str]
"""What was said, in order; a text is a reply of ours."""
_SYSTEM = ("system", "developer")
_ASKS = re.compile(
    r"\b(?:summar(?:y|ies|i[sz]\w+)|condens\w+|compaction)\b"
    r"|\b(?:compact\w*|compress\w*|checkpoint|hand-?off)\b.{0,60}\b(?:conversation|history|context|chat|session|transcript)\b"
    r"|\A\W*(?:please\W+)?(?:compact|compress)\b",
    re.IGNORECASE | re.DOTALL,
)
"""What a request for a summary has in it."""
_TASK = 2_000
"""Letters of a task that are looked at: more than a writer is shown."""
_WHO = "user|human|assistant|ai|tool|function|result"
_SPEAKER = re.compile(
    rf'\[({_WHO})\b[^\]\n]{{0,80}}\]:? ?|({_WHO}): ?|<message type="({_WHO})"[^>\n]{{0,80}}> ?', re.IGNORECASE
)
_ROLES: Mapping[str, Role] = {"user": "user", "human": "user", "assistant": "said", "ai": "said"}
_LABELS: Mapping[Role, str] = {"user": "[user]", "said": "[assistant]", "result": "[result of a tool]"}


def of_chat(messages: Sequence[Message], replies: Iterable[str]) -> History:
    """The history in a request for a chat completion. `replies`: those that count as ours."""
    system = [texts(message.get("content")) for message in messages if message["role"] in _SYSTEM]
    spoken = [message for message in messages if message["role"] not in _SYSTEM]
    found: list[Piece | str] = [part for text in system for part, ours in _split(text, replies) if ours]
    if all(message["role"] == "user" for message in spoken):
        text = "\n\n".join(texts(message.get("content")) for message in spoken)
        for part, ours in _split(text, replies):
            before = found.pop() if ours and found and isinstance(found[-1], Piece) else None
            found += [part] if ours else _spoken(part)
            found += [replace(before, role="result")] if isinstance(before, Piece) else []
        return found
    last = texts(spoken[-1].get("content")) if spoken[-1]["role"] == "user" else ""
    if _asks(last) and not any(map(_asks, system)) and not any(reply in last for reply in replies):
        spoken = spoken[:-1]
    return [*found, *_cut(pieces_of(spoken, start=0), replies)]


def of_responses(items: Sequence[Message], replies: Iterable[str]) -> History:
    """The history in items of the Responses API. Raises UserError for one that its provider would refuse."""
    form = form_of("responses")
    pieces: list[Piece] = []
    for at, part in enumerate(form.read(items).parts):
        first, *results = lines_of([part], form)
        pieces.append(Piece("said" if isinstance(part, Exchange) else "user", first, at))
        pieces += [Piece("result", text, at) for text in results]
    return list(_cut(pieces, replies))


def task_in(history: History) -> str:
    """What the user asked first; empty: the history does not say."""
    asked = (each.text for each in history if isinstance(each, Piece) and each.role == "user")
    return next(asked, "")[:_TASK].removeprefix(_LABELS["user"]).strip()


def readable(history: History, tokens: int) -> Iterator[tuple[str, bool]]:
    """(a text of at most so many tokens to read, False) and (a reply of ours, True), in order."""
    group: list[Piece] = []
    for each in (*history, ""):
        if isinstance(each, Piece):
            group.append(each)
            continue
        yield from ((text, False) for exchange in _exchanges(group) for text in parts(exchange, tokens))
        group = []
        if each:
            yield each, True


def _exchanges(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """What stands before the first turn of the model goes with it: a writer has learned to read turns."""
    first, *others = list(exchanges(pieces)) or [[]]
    if others and first[0].role != "said":
        return [[*first, *others[0]], *others[1:]]
    return [first, *others]


def _asks(text: str) -> bool:
    return _ASKS.search(text) is not None


def _split(text: str, replies: Iterable[str]) -> list[tuple[str, bool]]:
    """(part of the text, whether it is one of the replies), in order; parts without a word are left out."""
    found = [(text, False)]
    for reply in sorted((reply for reply in replies if reply in text), key=len, reverse=True):
        found = [each for part, ours in found for each in ([(part, True)] if ours else _around(part, reply))]
    return [(part, ours) for part, ours in found if part.strip()]


def _around(text: str, reply: str) -> Iterator[tuple[str, bool]]:
    first, *others = text.split(reply)
    yield first, False
    for other in others:
        yield reply, True
        yield other, False


def _cut(pieces: Iterable[Piece], replies: Iterable[str]) -> Iterator[Piece | str]:
    """The pieces, with the replies in them by themselves, before what else stands there."""
    for piece in pieces:
        found = _split(piece.text, replies if piece.role != "result" else ())
        yield from (part for part, ours in found if ours)
        for part in (part.strip() for part, ours in found if not ours):
            if part not in _LABELS.values():
                yield piece if len(found) == 1 else replace(piece, role="result", text=part)


def _spoken(text: str) -> list[Piece]:
    """The text as pieces; what stands before the first speaker belongs to nobody."""
    role: Role = "result"
    held: list[str] = []
    found: list[Piece] = []
    for line in (*text.splitlines(), None):
        speaker = None if line is None else _SPEAKER.match(line)
        if line is None or speaker:
            if any(map(str.strip, held)):
                found.append(Piece(role, "\n".join(held), len(found)))
            held = []
        if line is not None and speaker:
            name = next(filter(None, speaker.groups())).lower()
            role = _ROLES.get(name, "result")
            line = f"{_LABELS[role]} {line[speaker.end() :]}"
        if line is not None:
            held.append(line.removesuffix("</message>"))
    return found
