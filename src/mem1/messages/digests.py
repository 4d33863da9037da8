"""Hashes of messages and of what is in them, in whole: equal only where they are.

    digest = sha256()
    add_message(digest, {"role": "user", "content": "Hi"})

Marks for the prompt cache are left out, which clients move from call to call, and with which a text becomes a part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from itertools import count
from json.encoder import encode_basestring_ascii
from typing import Any

_MAPPING = (dict, Mapping)
_MARK = "cache_control"
_CONTENTS = ("content", "output")
_NUMBERS = count()


def _whole(value: Any) -> Any:
    """What is no JSON, by all that it shows of itself. An address may be another object's by now, so what shows one
    equals nothing else."""
    if isinstance(value, Mapping):
        return dict(value)
    shown = repr(value)
    return [next(_NUMBERS), shown] if " at 0x" in shown else [shown]


_ENCODER = json.JSONEncoder(sort_keys=True, default=_whole)


def hashed(*values: Any) -> str:
    """The hash of values, in hexadecimal digits."""
    digest = sha256()
    for value in values:
        add(digest, value)
    return digest.hexdigest()


def add(digest: Any, value: Any) -> None:
    """Adds a value to a hash, with its length, so that no two sequences of values look alike."""
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        digest.update(b"s%d:" % len(data))
        digest.update(data)
    else:
        data = _ENCODER.encode(value).encode()
        digest.update(b"v%d:%b" % (len(data), data))


def add_texts(digest: Any, texts: Iterable[str]) -> None:
    """Adds a list of texts as `add` does, in a third of the time."""
    data = f"[{', '.join(map(encode_basestring_ascii, texts))}]".encode()
    digest.update(b"v%d:%b" % (len(data), data))


def add_message(digest: Any, message: Mapping[str, Any]) -> None:
    """Adds a message, or a part of one, without marks."""
    add(digest, {key: value for key, value in message.items() if key != _MARK and key not in _CONTENTS})
    for key in _CONTENTS:
        if key in message:
            add_content(digest, message[key])
        digest.update(b".")


def add_content(digest: Any, content: Any) -> None:
    """Adds a content; one that is a single part of text is as this text."""
    if not isinstance(content, list | tuple):
        add(digest, content)
    elif len(content) == 1 and _is_text(content[0]):
        add(digest, content[0]["text"])
    else:
        digest.update(f"c{len(content)}:".encode())
        for part in content:
            (add_message if isinstance(part, _MAPPING) else add)(digest, part)


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, _MAPPING)
        and part.keys() - {_MARK} == {"type", "text"}
        and part["type"] == "text"
        and isinstance(part["text"], str)
    )
