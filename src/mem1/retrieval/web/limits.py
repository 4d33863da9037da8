"""How much may be asked: so often of one host, and so much in a run.

HostLimit(seconds_between=1.0).wait("en.wikipedia.org")      waits until a second after the last request
Spending(WebBudget(searches=100)).search()                   the 101st: BudgetSpent
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import Field, model_validator

from mem1.configuration import Config
from mem1.retrieval.base import RetrievalFailed


class BudgetSpent(RetrievalFailed):
    """The run's budget is used up; what came from the cache goes on."""


class WebBudget(Config):
    """What a run may ask for at most. Answers from the cache are free; a repeated request counts again."""

    searches: int | None = Field(default=None, ge=0)
    """Requests to the search API; None: any number."""
    pages: int | None = Field(default=None, ge=0)
    """Pages fetched; None: any number."""
    dollars: float | None = Field(default=None, ge=0)
    """Money for searches; None: any amount."""
    dollars_per_search: float = Field(default=0.0, ge=0)
    """Price of one request to the search API."""

    @model_validator(mode="after")
    def _priced(self) -> WebBudget:
        if self.dollars is not None and self.dollars_per_search == 0:
            raise ValueError("dollars limits nothing without dollars_per_search: give the price of one search")
        return self


@dataclass(slots=True)
class Spending:
    """What one process has asked for so far. Safe for threads."""

    budget: WebBudget = field(default_factory=WebBudget)
    searches: int = 0
    pages: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def dollars(self) -> float:
        return self.searches * self.budget.dollars_per_search

    def search(self) -> None:
        """Count one more request to the search API. Raises BudgetSpent, counting nothing, where that is too many."""
        with self._lock:
            if self.budget.searches is not None and self.searches >= self.budget.searches:
                raise BudgetSpent(f"the budget of {self.budget.searches} searches is spent (budget.searches)")
            cost = (self.searches + 1) * self.budget.dollars_per_search
            if self.budget.dollars is not None and cost > self.budget.dollars * (1 + 1e-9):
                raise BudgetSpent(
                    f"the budget of ${self.budget.dollars:g} is spent after {self.searches} searches (budget.dollars)"
                )
            self.searches += 1

    def page(self) -> None:
        """Count one more page. Raises BudgetSpent, counting nothing, where that is too many."""
        with self._lock:
            if self.budget.pages is not None and self.pages >= self.budget.pages:
                raise BudgetSpent(f"the budget of {self.budget.pages} pages is spent (budget.pages)")
            self.pages += 1


@dataclass(slots=True)
class HostLimit:
    """Requests to one host start at least so many seconds apart, whichever threads make them."""

    seconds_between: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _next: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float), repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def wait(self, host: str) -> None:
        """Take the host's next free moment and wait for it."""
        with self._lock:
            now = self.clock()
            moment = max(now, self._next[host])
            self._next[host] = moment + self.seconds_between
        if moment > now:
            self.sleep(moment - now)
