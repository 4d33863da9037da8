"""Joins the calls that wait at the same time into one: searches, or completions that a server samples.

    three threads    submit(["a"], 3)    submit(["b"], 3)    submit(["c", "d"], 3)
    one call         search(["a", "b", "c", "d"], 3), whose four results go back to where they came from

Only calls that ask for the same (here 3 passages a query) are joined. While a call runs, others gather behind it, so
the joint calls grow with the load and nobody waits for company.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mem1.records import Passage

Result = list[tuple[Passage, float]]
"""What one query found."""
Item = TypeVar("Item")
Same = TypeVar("Same")
Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Call(Generic[Item, Same, Found]):
    items: Sequence[Item]
    same: Same
    results: Future[list[Found]] = field(default_factory=Future)


class Batcher(Generic[Item, Same, Found]):
    """Runs `work` in `threads` threads of its own, on at most `size` items that ask for the same at a time.

    A call is never divided: one of more than `size` items is worked on alone.
    """

    def __init__(self, work: Callable[[Sequence[Item], Same], list[Found]], *, threads: int, size: int) -> None:
        self._work_on, self._size = work, size
        self._waiting: deque[_Call[Item, Same, Found]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        for number in range(threads):
            # daemons: a call that hangs must not keep the process from ending
            threading.Thread(target=self._work, name=f"mem1-batch-{number}", daemon=True).start()

    def submit(self, items: Sequence[Item], same: Same) -> Future[list[Found]]:
        """One result an item, in order, once the call that they are part of is done; or what it raised.

        One that is cancelled before it is worked on is never worked on.
        """
        call: _Call[Item, Same, Found] = _Call(items=items, same=same)
        with self._changed:
            if self._closed:
                raise RuntimeError("this batcher is closed")
            self._waiting.append(call)
            self._changed.notify()
        call.results.add_done_callback(lambda _: self._forget(call))
        return call.results

    def _forget(self, call: _Call[Item, Same, Found]) -> None:
        """Those that were cancelled must not gather behind a call that takes long."""
        if call.results.cancelled():
            with self._changed, contextlib.suppress(ValueError):
                self._waiting.remove(call)

    def close(self) -> None:
        """Take no more; what waits is still answered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        while calls := self._next():
            self._answer([call for call in calls if call.results.set_running_or_notify_cancel()])

    def _next(self) -> list[_Call[Item, Same, Found]]:
        """The oldest call and those that can be worked on with it; waits for one, and is empty after the last."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                return []
            taken = [self._waiting.popleft()]
            room = self._size - len(taken[0].items)
            passed: list[_Call[Item, Same, Found]] = []
            while self._waiting and room > 0:
                call = self._waiting.popleft()
                if call.same == taken[0].same and len(call.items) <= room:
                    taken.append(call)
                    room -= len(call.items)
                else:
                    passed.append(call)
            self._waiting.extendleft(reversed(passed))
            return taken

    def _answer(self, calls: Sequence[_Call[Item, Same, Found]]) -> None:
        if not calls:
            return
        try:
            results = self._work_on([item for call in calls for item in call.items], calls[0].same)
        except BaseException as error:  # whatever it is, it belongs to those who wait
            for call in calls:
                call.results.set_exception(error)
            return
        start = 0
        for call in calls:
            stop = start + len(call.items)
            call.results.set_result(results[start:stop])
            start = stop
