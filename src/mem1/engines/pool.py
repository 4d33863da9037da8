"""Threads that wait for answers, some at a time, for whoever calls."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")


class Pool:
    """Runs the calls of all its users in `size` threads. They are daemons, so that a request that hangs does not keep
    an interrupted process from ending."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._threads: list[threading.Thread] = []
        self._waiting: queue.SimpleQueue[tuple[Future[Any], Callable[[Any], Any], Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def map(self, call: Callable[[A], B], items: Sequence[A]) -> list[B]:
        """`call` of each item, in order. Raises what the first failing call raised; those not begun are given up."""
        futures: list[Future[B]] = [Future() for _ in items]
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
