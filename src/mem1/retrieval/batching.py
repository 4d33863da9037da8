"""Joins the searches that wait at the same time into one.

    three threads    submit(["a"], 3)    submit(["b"], 3)    submit(["c", "d"], 3)
    one call         search(["a", "b", "c", "d"], 3), whose four results go back to where they came from

While a call runs, others gather behind it, so the joint calls grow with the load and nobody waits for company.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from mem1.records import Passage

Result = list[tuple[Passage, float]]
"""What one query found."""
Search = Callable[[Sequence[str], int], list[Result]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Call:
    queries: Sequence[str]
    k: int
    results: Future[list[Result]] = field(default_factory=Future)


class Batcher:
    """Runs `search` in `threads` threads of its own, on at most `size` queries of one k at a time.

    A call is never divided: one of more than `size` queries is searched alone.
    """

    def __init__(self, search: Search, *, threads: int, size: int) -> None:
        self._search, self._size = search, size
        self._waiting: deque[_Call] = deque()
        self._changed = threading.Condition()
        self._closed = False
        for number in range(threads):
            # daemons: a call that hangs must not keep the process from ending
            threading.Thread(target=self._work, name=f"mem1-search-{number}", daemon=True).start()

    def submit(self, queries: Sequence[str], k: int) -> Future[list[Result]]:
        """One result a query, in order, once the call that they are part of is done; or what it raised."""
        call = _Call(queries=queries, k=k)
        with self._changed:
            if self._closed:
                raise RuntimeError("this search engine is closed")
            self._waiting.append(call)
            self._changed.notify()
        return call.results

    def close(self) -> None:
        """Take no more; what waits is still answered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        while calls := self._next():
            self._answer([call for call in calls if call.results.set_running_or_notify_cancel()])

    def _next(self) -> list[_Call]:
        """The oldest call and those that can be searched with it; waits for one, and is empty after the last."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                return []
            taken = [self._waiting.popleft()]
            room = self._size - len(taken[0].queries)
            passed: list[_Call] = []
            while self._waiting and room > 0:
                call = self._waiting.popleft()
                if call.k == taken[0].k and len(call.queries) <= room:
                    taken.append(call)
                    room -= len(call.queries)
                else:
                    passed.append(call)
            self._waiting.extendleft(reversed(passed))
            return taken

    def _answer(self, calls: Sequence[_Call]) -> None:
        if not calls:
            return
        try:
            results = self._search([query for call in calls for query in call.queries], calls[0].k)
        except BaseException as error:  # whatever it is, it belongs to those who wait
            for call in calls:
                call.results.set_exception(error)
            return
        start = 0
        for call in calls:
            stop = start + len(call.queries)
            call.results.set_result(results[start:stop])
            start = stop
