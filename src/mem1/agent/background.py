"""An event loop in a thread, for coroutines of an agent that is called from anywhere: scripts, threads, notebooks.

background = Background()
background.wait(fetch("http://..."))        what the coroutine returns, or raises
client, leave = background.enter(Client(...), 60)   an asynchronous context, entered now, left by leave() or close()
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, TimeoutError
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, TypeVar

T = TypeVar("T")
_CLOSING_S = 10.0
"""Longest wait for contexts to be left."""


class Background:
    """Runs coroutines in a thread of its own, which begins with the first one. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._contexts: list[tuple[asyncio.Event, Future[None]]] = []
        self._close: Callable[[], Any] = lambda: None

    def wait(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """The result of a coroutine, or what it raised; concurrent.futures.TimeoutError where it takes longer."""
        working = self._begin(work)
        try:
            return working.result(timeout_s)
        except TimeoutError:
            working.cancel()
            raise

    def enter(self, context: AbstractAsyncContextManager[T], timeout_s: float) -> tuple[T, Callable[[], None]]:
        """Returns what the context yields, and a function that leaves it, without waiting.

        It is entered and left in one task, as the libraries of MCP need it.

        Raises what entering it raises, and concurrent.futures.TimeoutError; the context has been left then.
        """
        entered: Future[T] = Future()
        leave, left = asyncio.Event(), threading.Event()

        async def hold() -> None:
            try:
                async with context as value:
                    entered.set_result(value)
                    await leave.wait()
            except BaseException as error:
                if entered.done():
                    raise
                entered.set_exception(error)
            finally:
                left.set()

        held = self._begin(hold())
        try:
            value = entered.result(timeout_s)
        except BaseException:
            held.cancel()
            left.wait(_CLOSING_S)
            raise
        pair = (leave, held)
        contexts = self._contexts
        contexts.append(pair)
        loop = self._loop

        def go() -> None:
            if pair in contexts:
                contexts.remove(pair)
            if loop is not None and not loop.is_closed():
                with suppress(RuntimeError):  # closed meanwhile
                    loop.call_soon_threadsafe(leave.set)

        held.add_done_callback(lambda _: go())
        return value, go

    def close(self) -> None:
        """Leave all contexts, the newest first, and end the thread. What comes later begins another one."""
        with self._lock:
            self._loop, self._contexts = None, []
        self._close()

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_run, args=(self._loop,), name="mem1-agent", daemon=True)
                thread.start()
                # at the end of the process, too: servers that it has started must not outlive it
                self._close = weakref.finalize(self, _close, self._loop, thread, self._contexts)
            return asyncio.run_coroutine_threadsafe(work, self._loop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    async def cancel() -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    loop.run_forever()
    loop.run_until_complete(cancel())
    loop.close()


def _close(
    loop: asyncio.AbstractEventLoop, thread: threading.Thread, contexts: list[tuple[asyncio.Event, Future[None]]]
) -> None:
    for leave, left in reversed(contexts):
        loop.call_soon_threadsafe(leave.set)
        with suppress(TimeoutError, CancelledError):  # one that hangs is cancelled with all else
            left.exception(_CLOSING_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(_CLOSING_S)
