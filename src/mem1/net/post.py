"""One POST at one address: the body of a 200, or `TryFailed` that says whether trying again makes sense.

503, no connection, a cut or slow answer    try again
429 with "Retry-After: 7"                   try again, in 7 seconds
302, 404                                    for good: a redirection is never followed
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from mem1.net.api_keys import redact

if TYPE_CHECKING:
    import httpx


_LARGEST_ANSWER = 64 << 20
"""Bytes."""
_LONGEST_REFUSAL = 2000
"""Bytes of a refusal that are kept."""
_SHOWN = 300
"""Characters of a refusal, and of its text, that are shown."""
_PASSING = (408, 429)
"""Refusals that pass; any other 3xx or 4xx is for good."""


class TryFailed(Exception):
    """A try that was not answered."""

    def __init__(
        self, why: str, *, wait_s: float = 0.0, for_good: bool = False, worked: bool = True, said: str = ""
    ) -> None:
        super().__init__(why)
        self.wait_s = wait_s
        """The server asks to wait so long."""
        self.for_good = for_good
        """Another try would end the same."""
        self.worked = worked
        """The server may have done the work (and charge for it): it was reached, and did not refuse."""
        self.said = said
        """The beginning of what came with a refusal, on one line; not to be trusted."""


def post(
    client: httpx.Client,
    url: str,
    body: bytes,
    *,
    timeout_s: float,
    now: Callable[[], float],
    largest: int | None = None,
) -> bytes:
    """The answer's body. Raises TryFailed for everything else than a whole 200 within the time and `largest` bytes.

    What it says of a failure does not hold the bearer token that `client` sends, in whatever form a server repeats it.
    """
    import httpx

    key = client.headers.get("authorization", "").removeprefix("Bearer ")
    ends, largest = now() + timeout_s, _LARGEST_ANSWER if largest is None else largest
    answer = bytearray()
    try:
        with client.stream("POST", url, content=body) as response:
            if response.status_code != 200:
                raise _refusal(response, _beginning(response), key)
            for piece in response.iter_bytes():
                answer += piece
                # the timeouts of httpx are of each piece: a server that sends byte by byte would never end
                if now() > ends:
                    raise TryFailed(f"the answer took longer than {timeout_s:g} s")
                if len(answer) > largest:
                    raise TryFailed(f"the answer is larger than {largest:,} bytes")
    except httpx.HTTPError as error:
        unreached = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
        raise TryFailed(redact(str(error), key) or type(error).__name__, worked=not unreached) from error
    return bytes(answer)


def _beginning(response: httpx.Response) -> bytes:
    # the first piece alone: the rest may come byte by byte
    return next(response.iter_bytes(), b"")[:_LONGEST_REFUSAL]


def _refusal(response: httpx.Response, said: bytes, key: str) -> TryFailed:
    status = response.status_code
    passing = status >= 500 or status in _PASSING
    where = f" to {redact(response.headers['location'], key)}" if "location" in response.headers else ""
    asked = retry_after(response.headers.get("retry-after")) if passing else None
    why = one_line(f"status {status} {redact(response.reason_phrase, key)}{where}")
    said_of_it = one_line(redact(said.decode("utf-8", "replace"), key))
    return TryFailed(why, wait_s=asked or 0.0, for_good=not passing, worked=False, said=said_of_it)


def one_line(text: str) -> str:
    """On one line of at most _SHOWN characters, without control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_SHOWN]


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
    """What the JSON says. Raises ValueError where it is none, or is nested too deeply to be read."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the answer is not JSON ({type(error).__name__})") from error


def number(value: Any, *, least: float, most: float) -> float | None:
    """The number as a float; None for one that is not between the bounds, which are finite, or is no number."""
    if type(value) not in (int, float) or not least <= value <= most:  # int and float compare exactly; NaN is in none
        return None
    return float(value)


def whole_number(value: Any, *, most: int) -> int | None:
    """The number, 0 to `most`; None for another, and for what is no whole number."""
    return value if type(value) is int and 0 <= value <= most else None


def shown(value: Any) -> str:
    """The beginning of a value of a server, for a message. Never raises."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits, or of brackets
        return f"a {type(value).__name__} too long to be shown"
    return text if len(text) <= _SHOWN_VALUE else f"{text[:_SHOWN_VALUE]}..."
