"""The same question to many, some at a time.

in_parallel(ask, ["a", "b", "a"], threads=2)  ->  [ask("a"), ask("b"), ask("a")]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


def in_parallel(call: Callable[[A], B], items: Sequence[A], threads: int) -> list[B]:
    """`call` of each item, in order. Raises what the first failing call raised, after the others have ended."""
    if len(items) < 2 or threads < 2:
        return [call(item) for item in items]
    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        return list(pool.map(call, items))
