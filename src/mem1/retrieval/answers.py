"""JSON and numbers that a server wrote: read within bounds, so that no answer of any server ends a run.

read_json(b'{"score": 2.5}')                    ->  {"score": 2.5}      ValueError for whatever is no JSON
number(2.5, least=0.0, most=1e9)                ->  2.5
number(10**400, least=0.0, most=1e9)            ->  None                as for NaN, infinities, true and "2.5"
whole_number(10**400, most=1 << 40)             ->  None
"""

from __future__ import annotations

import json
from typing import Any

_SHOWN = 40


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
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
