"""The header Retry-After, by which a server that is busy says when to come back.

retry_after("7")                                ->  7.0
retry_after("Wed, 21 Oct 2015 07:28:00 GMT")    ->  0.0, as that is past
retry_after("Wed, 21 Oct 99999999999 07:28 GMT") -> None
"""

from __future__ import annotations

from datetime import datetime, timezone
from email.utils import parsedate_to_datetime


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
