"""Limits on what a run spends at paid servers, in tokens, requests and money; kept by any number of threads.

spending = Spending(SpendingLimit(tokens=1000))
spending.claim(at_most)             waits for requests under way; raises LimitReached where it cannot fit
spending.settle(at_most, used)      replaces the claim by what the server reports

Spending(WebBudget(searches=100)).spend(Usage(searches=1))      the 101st call raises LimitReached
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from pydantic import Field, model_validator

from mem1.configuration import Config


class LimitReached(Exception):
    """The next request could exceed the limit."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, searches and pages that requests use. Usage(100, 20) + Usage(1, 2) == Usage(101, 22)"""

    input_tokens: int = 0
    output_tokens: int = 0
    searches: int = 0
    """Requests to a search API."""
    pages: int = 0
    """Pages fetched."""
    money: float = 0.0
    """Where the caller knows the price, such as that of cached tokens; in the unit of its prices."""

    # written out: dataclasses.astuple copies deeply, and every request adds and subtracts several times
    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.searches + other.searches,
            self.pages + other.pages,
            self.money + other.money,
        )

    def __sub__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens - other.input_tokens,
            self.output_tokens - other.output_tokens,
            self.searches - other.searches,
            self.pages - other.pages,
            self.money - other.money,
        )


class SpendingLimit(Config):
    """Most tokens or money that all requests to a model's servers may use together."""

    tokens: int | None = Field(default=None, ge=0)
    """Tokens read and written; None: no limit."""
    dollars: float | None = Field(default=None, ge=0)
    """Money; None: no limit."""
    dollars_per_million_input: float = Field(default=0.0, ge=0)
    """Price of a million tokens read."""
    dollars_per_million_output: float = Field(default=0.0, ge=0)
    """Price of a million tokens written."""

    @model_validator(mode="after")
    def _priced(self) -> SpendingLimit:
        if self.dollars is not None and self.dollars_per_million_input + self.dollars_per_million_output == 0:
            raise ValueError("dollars limits nothing without prices: set dollars_per_million_input and _output")
        return self

    def cost(self, usage: Usage) -> float:
        """Dollars."""
        read, written = self.dollars_per_million_input, self.dollars_per_million_output
        return (usage.input_tokens * read + usage.output_tokens * written) / 1e6

    def exceeded(self, total: Usage) -> str | None:
        """Why `total` is too much; None: it is within the limit."""
        if self.tokens is not None and total.input_tokens + total.output_tokens > self.tokens:
            return f"the limit of {self.tokens:,} tokens is reached"
        if _more(self.cost(total), self.dollars):
            return f"the limit of ${self.dollars:g} is reached"
        return None


class WebBudget(Config):
    """Most requests and money that a run may spend on the web. Cached answers are free; a retry counts again."""

    searches: int | None = Field(default=None, ge=0)
    """Requests to the search API; None: no limit."""
    pages: int | None = Field(default=None, ge=0)
    """Pages fetched; None: no limit."""
    dollars: float | None = Field(default=None, ge=0)
    """Money for searches; None: no limit."""
    dollars_per_search: float = Field(default=0.0, ge=0)
    """Price of one request to the search API."""

    @model_validator(mode="after")
    def _priced(self) -> WebBudget:
        if self.dollars is not None and self.dollars_per_search == 0:
            raise ValueError("dollars limits nothing without dollars_per_search: set the price of one search")
        return self

    def cost(self, usage: Usage) -> float:
        """Dollars."""
        return usage.searches * self.dollars_per_search

    def exceeded(self, total: Usage) -> str | None:
        """Why `total` is too much; None: it is within the budget."""
        if self.searches is not None and total.searches > self.searches:
            return f"the budget of {self.searches} searches is spent (budget.searches)"
        if _more(self.cost(total), self.dollars):
            return f"the budget of ${self.dollars:g} is spent after {total.searches - 1} searches (budget.dollars)"
        if self.pages is not None and total.pages > self.pages:
            return f"the budget of {self.pages} pages is spent (budget.pages)"
        return None


@dataclass(frozen=True, slots=True)
class MoneyLimit:
    """Most money that requests may cost whose price the caller knows."""

    most: float
    unit: str = "USD"

    def cost(self, usage: Usage) -> float:
        """Money."""
        return usage.money

    def exceeded(self, total: Usage) -> str | None:
        """Why `total` is too much; None: it is within the limit."""
        return f"the limit of {self.most:g} {self.unit} is reached" if _more(total.money, self.most) else None


def _more(cost: float, dollars: float | None) -> bool:
    return dollars is not None and cost > dollars * (1 + 1e-9)


class Spending:
    """Spending so far, of one process and whatever was `used` before it. Thread-safe."""

    def __init__(self, limit: SpendingLimit | WebBudget | MoneyLimit, used: Usage | None = None) -> None:
        self.limit = limit
        self._used = used or Usage()
        self._claimed = Usage()
        self._requests = 0
        """Claims that are not settled yet."""
        self._settled = threading.Condition()

    @property
    def used(self) -> Usage:
        return self._used

    @property
    def dollars(self) -> float:
        return self.limit.cost(self._used)

    def claim(self, at_most: Usage) -> None:
        """Reserve the most that a request can use. Waits while it would fit if requests under way use less than theirs.

        Raises LimitReached where it does not fit beside what has been used already.
        """
        with self._settled:
            while (reason := self.limit.exceeded(self._used + self._claimed + at_most)) is not None:
                if self._requests == 0:
                    raise LimitReached(reason)
                self._settled.wait()
            self._claimed += at_most
            self._requests += 1

    def settle(self, at_most: Usage, used: Usage) -> None:
        """Replace a claim by what was used."""
        with self._settled:
            self._claimed -= at_most
            self._requests -= 1
            self._used += used
            self._settled.notify_all()

    def spend(self, usage: Usage) -> None:
        """Count a request whose use is known in advance. Raises LimitReached, counting nothing, if it is too much."""
        self.claim(usage)
        self.settle(usage, usage)
