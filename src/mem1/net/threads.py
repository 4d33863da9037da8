"""Joins the calls that wait at the same time into one: searches, or completions that a server samples.

    three threads    submit(["a"], 3)    submit(["b"], 3)    submit(["c", "d"], 3)
    one call         search(["a", "b", "c", "d"], 3), whose four results go back to where they came from

Only calls that ask for the same (here 3 passages a query) are joined. While a call runs, others gather behind it, so
the joint calls grow with the load and nobody waits for company.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

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


class Pool:
    """Runs the calls of all its users in `size` threads. They are daemons, so that a request that hangs does not keep
    an interrupted process from ending."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._threads: list[threading.Thread] = []
        self._waiting: queue.SimpleQueue[tuple[Future[Any], Callable[[Any], Any], Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def map(self, call: Callable[[Item], Found], items: Sequence[Item]) -> list[Found]:
        """`call` of each item, in order. Raises what the first failing call raised; those not begun are given up."""
        futures: list[Future[Found]] = [Future() for _ in items]
        for future, item in zip(futures, items, strict=True):
            self._waiting.put((future, call, item))
        self._start(len(items))
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """End the threads, once what waits is done."""
        with self._lock:
            for _ in self._threads:
                self._waiting.put(None)
            self._threads.clear()

    def _start(self, more: int) -> None:
        with self._lock:
            for _ in range(min(more, self._size - len(self._threads))):
                thread = threading.Thread(target=self._work, name="mem1-engine", daemon=True)
                thread.start()
                self._threads.append(thread)

    def _work(self) -> None:
        while (work := self._waiting.get()) is not None:
            future, call, item = work
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call(item))
            except BaseException as error:  # whatever it is, it belongs to those who wait
                future.set_exception(error)


def in_parallel(call: Callable[[Item], Found], items: Sequence[Item], threads: int) -> list[Found]:
    """`call` of each item, in order. Raises what the first failing call raised, after the others have ended."""
    if len(items) < 2 or threads < 2:
        return [call(item) for item in items]
    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        return list(pool.map(call, items))


def run_jobs(
    jobs: Sequence[Item], work: Callable[[Item], Found], *, at_a_time: int, stopped: Callable[[], bool]
) -> Iterator[tuple[Item, Found]]:
    """(job, what it gave) as the jobs are done, in any order.

    Once `stopped()`, or after a job that raised, no other job begins; those in work are finished and given, then
    the error is raised.
    """
    if at_a_time == 1:
        for job in jobs:
            if stopped():
                return
            yield job, work(job)
        return
    waiting = deque(jobs)
    done: SimpleQueue[tuple[Item, Found] | Exception | None] = SimpleQueue()

    def serve() -> None:
        while waiting and not stopped():
            try:
                job = waiting.popleft()
            except IndexError:  # another thread took the last one
                break
            try:
                done.put((job, work(job)))
            except Exception as error:
                waiting.clear()
                done.put(error)
        done.put(None)

    working = min(at_a_time, len(jobs))
    for number in range(working):
        # daemons: a second Ctrl-C does not wait for a server's answers
        threading.Thread(target=serve, name=f"mem1-evaluation-{number}", daemon=True).start()
    errors: list[Exception] = []
    try:
        while working:
            outcome = done.get()
            if outcome is None:
                working -= 1
            elif isinstance(outcome, Exception):
                errors.append(outcome)
            else:
                yield outcome
    finally:
        waiting.clear()
    if errors:
        raise errors[0]
