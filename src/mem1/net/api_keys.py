"""API keys: each is read from one named environment variable, and never shown.

BRAVE_API_KEY=" abc123\n"    read_key("BRAVE_API_KEY")  ->  "abc123"      as `export KEY="$(cat file)"` may leave it
redact("bad key abc123", "abc123")          ->  "bad key ***"
redact("see /?key=%61bc123", "abc123")      ->  "***"          escaped: nothing of the text is kept
"""

from __future__ import annotations

import base64
import html
import os
import re
from urllib.parse import unquote_plus

from mem1.errors import UserError


def read_key(variable: str) -> str:
    """The key in an environment variable; empty where it is not set.

    Raises UserError, without showing the value, where it cannot be a key.
    """
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise UserError(
            f"the environment variable {variable} is not an API key: it contains blanks or characters that no key has; "
            "set it again"
        )
    return key


_ESCAPE = re.compile(r"\\u\{?([0-9a-f]{4})\}?|\\x([0-9a-f]{2})|=([0-9a-f]{2})", re.IGNORECASE)
_PUNCTUATION = re.compile(r"[^0-9a-z]+")
_DECODINGS = 6
"""Levels of nested escapes that are decoded."""
_SECRET = 12
"""Fewest letters and digits of a secret key; a shorter one, such as EMPTY, is a word."""


def redact(text: str, key: str | None) -> str:
    """A server's text without the key that was sent to it.

    Three stars replace the key. They replace the whole text where it contains the key in another form: escaped for an
    address, JSON or HTML, in base 64 or 16, in other capitals, or with blanks in between.
    """
    if not key:
        return text
    text = text.replace(key, "***")
    return text if _holds(text, key) is False else "***"


def repeats(text: str, key: str | None) -> bool:
    """Whether the text contains the key, in any of these forms."""
    return bool(key) and len(_bare(key)) >= _SECRET and (key in text or _holds(text, key) is True)


def _holds(text: str, key: str) -> bool | None:
    """None: unknown, as the text is escaped too many times."""
    if len(_bare(key)) < _SECRET:
        return False
    forms = _forms(key)
    for _ in range(_DECODINGS):
        if any(form in text for form in forms) or _bare(key) in _bare(text):
            return True
        decoded = _ESCAPE.sub(lambda m: chr(int(m[1] or m[2] or m[3], 16)), html.unescape(unquote_plus(text)))
        if decoded == text:
            return False
        text = decoded
    return None


def _forms(key: str) -> list[str]:
    """The middle of the key in base 64, after none, one or two other bytes, and the key in base 16."""
    found = [key.encode().hex(), key.encode().hex().upper()]
    for before in range(3):
        whole = b"\0" * before + key.encode()
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            encoded = encode(whole).decode().rstrip("=")
            # at both ends, a character depends on the bytes beside the key
            found.append(encoded[(before * 8 + 5) // 6 : len(whole) * 8 // 6])
    return [form for form in found if len(form) > 3]


def _bare(text: str) -> str:
    return _PUNCTUATION.sub("", text.casefold())
