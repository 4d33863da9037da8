"""Trying again: after what passes by itself, waiting twice as long each time, or as long as the server asks.

Retry()(call)    call raises TryAgain("it answered 429", wait_s=2)  ->  waits 2 s and calls again
                 the fourth TryAgain                                ->  RetrievalFailed: it answered 429; tried 4 times
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from mem1.retrieval.base import RetrievalFailed

T = TypeVar("T")


class TryAgain(Exception):
    """A failure that may pass by itself."""

    def __init__(self, message: str, *, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s
        """How long the server asks us to wait; None: it does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often, and how long in between."""

    tries: int = 4
    first_wait_s: float = 1.0
    longest_wait_s: float = 60.0
    """A server that asks for a longer wait is given up at once."""
    sleep: Callable[[float], None] = time.sleep

    def __call__(self, call: Callable[[], T]) -> T:
        """What `call` returns. Raises RetrievalFailed with its last failure."""
        for attempt in range(1, self.tries + 1):
            try:
                return call()
            except TryAgain as error:
                wait = error.wait_s
                if wait is not None and wait > self.longest_wait_s:
                    raise RetrievalFailed(f"{error}, and asks for a wait of {wait:.0f} seconds") from None
                if attempt == self.tries:
                    raise RetrievalFailed(f"{error}; tried {attempt} times") from None
                # the random part keeps many clients from coming back at the same moment
                doubled = min(self.first_wait_s * 2 ** (attempt - 1), self.longest_wait_s)
                self.sleep(wait if wait is not None else doubled * random.uniform(0.75, 1.25))
        raise ValueError(f"tries must be at least 1, not {self.tries}")
