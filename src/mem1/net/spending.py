"""What may be spent on a model's server, in tokens and in money, kept to by many threads.

spending = Spending(SpendingLimit(tokens=1000))
spending.claim(at_most)             waits for what is under way; raises LimitReached where it cannot fit
spending.settle(at_most, used)      what the server says it used takes the place of the claim
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from pydantic import Field, model_validator

from mem1.configuration import Config


class LimitReached(Exception):
    """The next request could pass the limit."""


class SpendingLimit(Config):
    """What all requests together may use at most."""

    tokens: int | None = Field(default=None, ge=0)
    """Tokens read and written; None: any number."""
    dollars: float | None = Field(default=None, ge=0)
    """Money; None: any amount."""
    dollars_per_million_input: float = Field(default=0.0, ge=0)
    """Price of a million tokens read."""
    dollars_per_million_output: float = Field(default=0.0, ge=0)
    """Price of a million tokens written."""

    @model_validator(mode="after")
    def _priced(self) -> SpendingLimit:
        if self.dollars is not None and self.dollars_per_million_input + self.dollars_per_million_output == 0:
            raise ValueError("dollars limits nothing without prices: give dollars_per_million_input and _output")
        return self


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of requests. Usage(100, 20) + Usage(1, 2) == Usage(101, 22)"""

    input_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens)

    def __sub__(self, other: Usage) -> Usage:
        return Usage(self.input_tokens - other.input_tokens, self.output_tokens - other.output_tokens)


class Spending:
    """What one process has spent so far. Safe for threads."""

    def __init__(self, limit: SpendingLimit) -> None:
        self.limit = limit
        self._used = Usage()
        self._claimed = Usage()
        self._requests = 0
        """Claims that are not settled."""
        self._settled = threading.Condition()

    @property
    def used(self) -> Usage:
        return self._used

    @property
    def dollars(self) -> float:
        return self._dollars(self._used)

    def claim(self, at_most: Usage) -> None:
        """Set aside what a request can use at most; waits where it fits only if others use less than they may.

        Raises LimitReached where it does not fit beside what is used for good.
        """
        with self._settled:
            while (reason := self._exceeded(self._used + self._claimed + at_most)) is not None:
                if self._requests == 0:
                    raise LimitReached(reason)
                self._settled.wait()
            self._claimed += at_most
            self._requests += 1

    def settle(self, at_most: Usage, used: Usage) -> None:
        """Put what was used in the place of a claim."""
        with self._settled:
            self._claimed -= at_most
            self._requests -= 1
            self._used += used
            self._settled.notify_all()

    def _exceeded(self, total: Usage) -> str | None:
        tokens, dollars = self.limit.tokens, self.limit.dollars
        if tokens is not None and total.input_tokens + total.output_tokens > tokens:
            return f"the limit of {tokens:,} tokens is reached"
        if dollars is not None and self._dollars(total) > dollars * (1 + 1e-9):
            return f"the limit of ${dollars:g} is reached"
        return None

    def _dollars(self, usage: Usage) -> float:
        prices = self.limit.dollars_per_million_input, self.limit.dollars_per_million_output
        return (usage.input_tokens * prices[0] + usage.output_tokens * prices[1]) / 1e6
