"""One request to one address: the body of a 200, or TryFailed, which shows whether another try makes sense.

503, no connection, a cut or slow answer    try again
429 with "Retry-After: 7"                   try again, in 7 seconds
302, 404                                    for good: redirections are never followed

JSON and numbers that a server wrote are read within bounds, so that no answer of any server ends a run. An API key is
read from one named environment variable, and never shown.

read_json(b'{"score": 2.5}')                    {"score": 2.5}      ValueError for anything but JSON
number(10**400, least=0.0, most=1e9)            None                also for NaN, infinities, true and "2.5"
retry_after("Wed, 21 Oct 2015 07:28:00 GMT")    0.0                 that time is past
redact("bad key abc123", "abc123")              "bad key ***"
redact("see /?key=%61bc123", "abc123")          "***"               escaped: nothing of the text is kept
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus

from mem1.errors import UserError

if TYPE_CHECKING:
    import httpx

    from mem1.net.transport import Answer, Client


def read_key(variable: str, *, needed_by: str | None = None) -> str:
    """The key in an environment variable; empty where it is not set.

    Raises UserError, without showing the value, where it cannot be a key, or is not set and `needed_by` somebody.
    """
    key = os.environ.get(variable, "").strip()
    if needed_by and not key:
        raise UserError(f"{needed_by} needs a key: set the environment variable {variable}")
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


_LARGEST_ANSWER = 64 << 20
"""Bytes."""
_LONGEST_REFUSAL = 2000
"""Bytes of a refusal's body that are kept."""
_SHOWN = 300
"""Most characters of a message."""
_USUAL = frozenset(("accept", "accept-encoding", "authorization", "connection", "content-type", "host", "user-agent"))
"""Headers that are no secrets, and the one that is read by itself."""
_PASSING = (408, 429)
"""Statuses after which another try makes sense; any other 3xx or 4xx is for good."""


class TryFailed(Exception):
    """A try without a usable answer."""

    def __init__(
        self,
        why: str,
        *,
        wait_s: float = 0.0,
        for_good: bool = False,
        worked: bool = True,
        status: int | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(why)
        self.wait_s = wait_s
        """Wait that the server asks for, in seconds."""
        self.for_good = for_good
        """Another try would fail alike."""
        self.worked = worked
        """The server may have done the work, and charge for it: it was reached and did not refuse."""
        self.status = status
        """HTTP status of a refusal; None: there was no complete answer."""
        self.detail = detail
        """Beginning of a refusal's body, on one line of at most 2,000 characters; untrusted."""

    @property
    def quoted(self) -> str:
        """The message, followed by the server's own words where it sent any."""
        return f"{self} ({one_line(self.detail)})" if self.detail else str(self)

    def named(self, why: str) -> TryFailed:
        """The same failure with another message."""
        return TryFailed(
            why,
            wait_s=self.wait_s,
            for_good=self.for_good,
            worked=self.worked,
            status=self.status,
            detail=self.detail,
        )


def exchange(
    client: httpx.Client | Client,
    url: str,
    body: bytes,
    *,
    timeout_s: float,
    now: Callable[[], float] = time.monotonic,
    largest: int | None = None,
    method: str = "POST",
    connect_s: float = 10.0,
) -> bytes:
    """The answer's body. Raises TryFailed for anything but a complete 200 within the time and `largest` bytes.

    `connect_s` limits the wait for a connection: a machine that is switched off does not refuse, it stays silent. The
    message never contains the bearer token that `client` sends, nor a header of its own, in whatever form a server
    repeats them.
    """
    received = pieces(
        client, url, body, timeout_s=timeout_s, now=now, largest=largest, method=method, connect_s=connect_s
    )
    return b"".join(received)


def pieces(
    client: httpx.Client | Client,
    url: str,
    body: bytes,
    *,
    timeout_s: float,
    now: Callable[[], float] = time.monotonic,
    largest: int | None = None,
    method: str = "POST",
    connect_s: float = 10.0,
) -> Iterator[bytes]:
    """The answer's body as it comes. Raises TryFailed as `exchange` does, at the latest at its end."""
    import httpx

    keys = _sent_keys(client.headers)
    ends, largest = now() + timeout_s, _LARGEST_ANSWER if largest is None else largest
    size, patience = 0, httpx.Timeout(timeout_s, connect=min(connect_s, timeout_s))
    try:
        with client.stream(method, url, content=body or None, timeout=patience) as response:
            if response.status_code != 200:
                # only the first piece of its body: the rest may come byte by byte
                raise _refusal(response, next(response.iter_bytes(), b"")[:_LONGEST_REFUSAL], keys)
            for piece in response.iter_bytes():
                size += len(piece)
                # httpx limits the time of each piece: a server that sends byte by byte would never end
                if now() > ends:
                    raise TryFailed(f"the answer took longer than {timeout_s:g} s")
                if size > largest:
                    raise TryFailed(f"the answer is larger than {largest:,} bytes")
                yield piece
    except httpx.HTTPError as error:
        unreached = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
        raise TryFailed(_redacted(str(error), keys) or type(error).__name__, worked=not unreached) from error


def _sent_keys(headers: httpx.Headers) -> list[str]:
    """What the headers hold that may be secret: a key, and values of a user's own that are long enough for one."""
    own = [value for name, value in headers.items() if name not in _USUAL and len(_bare(value)) >= _SECRET]
    return [headers.get("authorization", "").removeprefix("Bearer "), *own]


def _redacted(text: str, keys: Sequence[str]) -> str:
    for key in keys:
        text = redact(text, key)
    return text


def _refusal(response: httpx.Response | Answer, beginning: bytes, keys: Sequence[str]) -> TryFailed:
    status = response.status_code
    passing = status >= 500 or status in _PASSING
    where = f" to {_redacted(response.headers['location'], keys)}" if "location" in response.headers else ""
    wait_s = retry_after(response.headers.get("retry-after")) if passing else None
    why = one_line(f"status {status} {_redacted(response.reason_phrase, keys)}{where}")
    detail = one_line(_redacted(beginning.decode("utf-8", "replace"), keys), most=_LONGEST_REFUSAL)
    return TryFailed(why, wait_s=wait_s or 0.0, for_good=not passing, worked=False, status=status, detail=detail)


def one_line(text: str, *, most: int = _SHOWN) -> str:
    """The text on one line of at most `most` characters, without control characters."""
    beginning = text[: 8 * most]  # the rest of a long text is not looked at
    return " ".join("".join(c if c.isprintable() else " " for c in beginning).split())[:most]


def retry_after(value: str | None) -> float | None:
    """Seconds that a Retry-After header asks for, a number or a date; None where it is missing or unreadable."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        moment = parsedate_to_datetime(value)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
        return max((moment - datetime.now(timezone.utc)).total_seconds(), 0.0)
    except (TypeError, ValueError, OverflowError):  # a year, or an offset from UTC, that no date has
        return None


_SHOWN_VALUE = 40


def read_json(body: bytes | str) -> Any:
    """The JSON's value. Raises ValueError where it is not JSON, or nested too deeply."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the answer is not JSON ({type(error).__name__})") from error


def number(value: Any, *, least: float, most: float) -> float | None:
    """The number as a float; None outside the finite bounds, and for anything but a number."""
    if type(value) not in (int, float) or not least <= value <= most:  # int and float compare exactly; NaN is in none
        return None
    return float(value)


def whole_number(value: Any, *, most: int) -> int | None:
    """The number, 0 to `most`; None for anything else."""
    return value if type(value) is int and 0 <= value <= most else None


def shown(value: Any) -> str:
    """Beginning of a server's value, for a message. Never raises."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits, or of brackets
        return f"a {type(value).__name__} too long to be shown"
    return text if len(text) <= _SHOWN_VALUE else f"{text[:_SHOWN_VALUE]}..."
