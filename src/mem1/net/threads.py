"""Threads for requests: a pool, jobs whose results come as they are done, and calls that are joined into one.

    in_parallel(ask, ["a", "b", "a"], threads=2)                  [ask("a"), ask("b"), ask("a")]
    run_jobs([3, 1, 2], slow_square, at_a_time=3, stopped=...)    yields (1, 1), (2, 4), (3, 9): the slow ones last

    three threads   batcher.submit(["a"], 3)    batcher.submit(["b"], 3)    batcher.submit(["c", "d"], 3)
    one call        search(["a", "b", "c", "d"], 3), whose four results go back to where they came from

All threads are daemons, so that a request that hangs does not keep the process from ending; those of
concurrent.futures are waited for at exit.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Options = TypeVar("Options")
Found = TypeVar("Found")
AnyCall = TypeVar("AnyCall", bound="Call[Any, Any, Any]")


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool:
    """Runs the calls of all its users in at most `size` threads, which are started when they are needed."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._threads: list[threading.Thread] = []
        self._waiting: SimpleQueue[tuple[Future[Any], Callable[..., Any], Any] | None] = SimpleQueue()
        self._lock = threading.Lock()

    def submit(self, call: Callable[[Item], Found], item: Item) -> Future[Found]:
        """Call `call` on the item in one of the threads."""
        future: Future[Found] = Future()
        self._waiting.put((future, call, item))
        with self._lock:
            # none is alive in a process that was forked
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            if len(self._threads) < self._size:
                thread = threading.Thread(target=self._work, name="mem1-request", daemon=True)
                thread.start()
                self._threads.append(thread)
        return future

    def map(self, call: Callable[[Item], Found], items: Sequence[Item]) -> list[Found]:
        """`call` of each item, in order. Raises what the first failing call raised; calls not begun are cancelled."""
        futures = [self.submit(call, item) for item in items]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """End the threads once everything submitted is done."""
        with self._lock:
            for _ in self._threads:
                self._waiting.put(None)
            self._threads.clear()

    def _work(self) -> None:
        while (work := self._waiting.get()) is not None:
            future, call, item = work
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call(item))
            except BaseException as error:  # of any kind: it belongs to whoever waits for the result
                future.set_exception(error)


def in_parallel(call: Callable[[Item], Found], items: Sequence[Item], threads: int) -> list[Found]:
    """`call` of each item, in order. Raises what the first failing call raised; calls not begun are cancelled."""
    if len(items) < 2 or threads < 2:
        return [call(item) for item in items]
    pool = Pool(min(threads, len(items)))
    try:
        return pool.map(call, items)
    finally:
        pool.close()


def run_jobs(
    jobs: Sequence[Item], work: Callable[[Item], Found], *, at_a_time: int, stopped: Callable[[], bool]
) -> Iterator[tuple[Item, Found]]:
    """(job, result) as the jobs are done, in any order.

    Once `stopped()`, or after a job that raised, no other job begins; those under way are finished and yielded, then
    the error is raised.
    """
    if at_a_time == 1:
        for job in jobs:
            if stopped():
                return
            yield job, work(job)
        return
    errors: list[Exception] = []

    def run(job: Item) -> tuple[Item, Found] | None:
        try:
            return None if errors or stopped() else (job, work(job))
        except Exception as error:
            errors.append(error)
            return None

    pool = Pool(at_a_time)
    futures = [pool.submit(run, job) for job in jobs]
    try:
        for future in as_completed(futures):
            if (outcome := future.result()) is not None:
                yield outcome
    finally:
        for future in futures:
            future.cancel()
        pool.close()
    if errors:
        raise errors[0]


@dataclass(kw_only=True, eq=False)
class Call(Generic[Item, Options, Found]):
    """Items that are worked on together, and may be so with those of other calls of equal options."""

    items: Sequence[Item]
    options: Options
    results: Future[list[Found]] = field(default_factory=Future)
    """One per item, in order."""


class WaitingCalls(Generic[AnyCall]):
    """Calls in the order in which they came; thread-safe. One that is taken can no longer be cancelled."""

    def __init__(self) -> None:
        self._calls: deque[AnyCall] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: AnyCall) -> None:
        """Let a call wait until it is taken, or its results are cancelled."""
        with self._lock:
            self._calls.append(call)
        call.results.add_done_callback(lambda _: self._forget(call))

    def _forget(self, call: AnyCall) -> None:
        """Drop a cancelled call at once, or many could pile up while another takes long."""
        if call.results.cancelled():
            with self._lock, contextlib.suppress(ValueError):
                self._calls.remove(call)

    def oldest(self, size: int) -> list[AnyCall]:
        """The oldest call and those that can be worked on with it, at most `size` items unless it alone has more;
        whatever waits between them is passed over. Empty where none waits."""
        taken: list[AnyCall] = []
        passed: list[AnyCall] = []
        with self._lock:
            while self._calls and (size > 0 or not taken):
                call = self._calls.popleft()
                if taken and (call.options != taken[0].options or len(call.items) > size):
                    passed.append(call)
                elif call.results.set_running_or_notify_cancel():
                    taken.append(call)
                    size -= len(call.items)
            self._calls.extendleft(reversed(passed))
        return taken

    def next(self, options: Any, size: int) -> list[AnyCall]:
        """The oldest calls of these options, at most `size` items: up to the first that has others, or too many."""
        taken: list[AnyCall] = []
        with self._lock:
            while self._calls and self._calls[0].options == options and len(self._calls[0].items) <= size:
                call = self._calls.popleft()
                if call.results.set_running_or_notify_cancel():
                    taken.append(call)
                    size -= len(call.items)
        return taken


class Batcher(Generic[Item, Options, Found]):
    """Joins calls that wait at the same time and have the same options, such as 3 passages per query, into one.

    While a call runs, others queue up: joined calls grow with the load, and no call waits for others to arrive. `work`
    runs in `threads` threads, on at most `size` items at a time. A call is never divided: one of more than `size` items
    is worked on alone.
    """

    def __init__(self, work: Callable[[Sequence[Item], Options], list[Found]], *, threads: int, size: int) -> None:
        self._work, self._size = work, size
        self._pool = Pool(threads)
        self._waiting: WaitingCalls[Call[Item, Options, Found]] = WaitingCalls()
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, items: Sequence[Item], options: Options) -> Future[list[Found]]:
        """One result per item, in order, or what `work` raised. A call cancelled before it begins is not worked on."""
        call: Call[Item, Options, Found] = Call(items=items, options=options)
        with self._lock:
            if self._closed:
                raise RuntimeError("this batcher is closed")
            self._waiting.add(call)
        # as many turns as calls, and each takes at least one while there are any
        self._pool.submit(lambda _: self._take_turn(), None)
        return call.results

    def close(self) -> None:
        """Accept no more calls; those waiting are still answered."""
        with self._lock:
            self._closed = True
        self._pool.close()

    def _take_turn(self) -> None:
        calls = self._waiting.oldest(self._size)
        if not calls:
            return
        try:
            items = [item for call in calls for item in call.items]
            results = self._work(items, calls[0].options)
            if len(results) != len(items):  # nobody may get what is another's
                raise ValueError(f"{len(results)} results for {len(items)} items")
        except BaseException as error:  # of any kind: it belongs to whoever waits for the results
            for call in calls:
                call.results.set_exception(error)
            return
        start = 0
        for call in calls:
            stop = start + len(call.items)
            call.results.set_result(results[start:stop])
            start = stop
