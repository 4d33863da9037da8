"""Texts that mem1 has put into conversations itself: known by digests of what was shown, never by how a text looks.

A folded conversation may come back: folded once more, or as the history of an agent that keeps only what was shown.
What mem1 added to it is then taken out again, and what it left out keeps its name. The latest digests are kept, in this
process; in another one, and wherever somebody merely repeats such a text, it is a text like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from mem1.messages.digests import add_message, add_texts, hashed
from mem1.messages.sessions import Latest
from mem1.messages.transcript import PLACE, Content, Form, Message, Result, Transcript, User, digest_of, texts


class Place(NamedTuple):
    """What stands for a result."""

    handle: str
    """Of the whole result."""
    gone: bool
    """Whether nothing of it is shown."""


class Added(NamedTuple):
    """What stands behind a message of the user."""

    user: int
    """Number of the message among the user's."""
    characters: int
    """Of all that was added, behind the user's own text."""
    state: int | None
    """Characters of the state; None: there is none."""


_PLACES: Latest[Place] = Latest(1 << 16)
_ADDED: Latest[Added] = Latest(1 << 14)
_LEFT_OUT: Latest[int] = Latest(1 << 14)
_HOLDERS: Latest[bool] = Latest(1 << 14)
"""Texts behind which something stands: few conversations have one, and the others need not be looked through."""


def put_in_place(result: Result, content: Content, handle: str, *, gone: bool) -> None:
    """Remember that this content is shown for a result."""
    _PLACES[digest_of(result, content)] = Place(handle, gone)


def place_of(result: Result, form: Form) -> Place:
    """The result behind a shortened one, or itself."""
    digest = digest_of(result, form.content_of(result))
    return _PLACES.get(digest) or Place(f"r{digest[:8]}", False)


def line_for(number: int, task: Message) -> Message:
    """The line for so many messages of the user that were left out behind the task; it is remembered."""
    line = f"[{number:,} earlier messages of the user were left out]"
    _LEFT_OUT[hashed(line, texts(task.get("content")))] = number
    return {"role": "user", "content": line}


def number_in(message: Message, task: Message) -> int:
    """Messages of the user for which a message stands: itself, or those that were left out."""
    content = message.get("content")
    if not isinstance(content, str) or not content.startswith("["):
        return 1
    return _LEFT_OUT.get(hashed(content, texts(task.get("content")))) or 1


def put_behind(shown: Transcript, added: Added, form: Form) -> None:
    """Remember what these messages hold beside the conversation."""
    _HOLDERS[hashed(_users(shown)[added.user])] = True
    _ADDED[_names(form.write(shown), form)[-1]] = added


def found_in(transcript: Transcript, form: Form) -> Added | None:
    """The messages added to those that were shown."""
    if not any(_HOLDERS.get(hashed(text)) for text in _users(transcript)):
        return None
    found = (_ADDED.get(name) for name in reversed(_names(form.write(transcript), form)))
    return next((added for added in found if added is not None), None)


def _users(transcript: Transcript) -> list[str]:
    return [texts(part.message.get("content")) for part in transcript.parts if isinstance(part, User)]


def _names(messages: Sequence[Message], form: Form) -> list[str]:
    """Digest of all up to and including each message: of what mem1 may have changed, role and texts, as frameworks
    change the rest on the way."""
    digest, names = sha256(), list[str]()
    for message in messages:
        role = str(message.get("role") or message.get("type"))
        if role in ("system", "user"):
            add_texts(digest, (role, texts(message.get("content"))))
        elif role in ("tool", "function") or role.endswith("_output"):
            add_texts(digest, (role, texts(form.content(message))))
        else:
            add_message(digest, {key: value for key, value in message.items() if key != PLACE})
        names.append(digest.hexdigest())
    return names
