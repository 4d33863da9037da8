"""A connection to an MCP server that is made again when it is lost, as servers are started again and crash.

    link = Link(background, open, limit_s=300, starts=False)
    link.connect(60)
    link.call("search", {"query": "Oslo"}, repeatable=True)

A call is made again where the server certainly did not get it, or where the tool may be called twice; else its result
says that the connection was lost, and the next call connects again. All of it is done within the time of the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NotDone
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from mem1.agent.background import Background
from mem1.agent.mcp_answers import made_sound
from mem1.agent.mcp_http import fault_of
from mem1.agent.mcp_program import Complaint
from mem1.agent.tools import ToolFailed
from mem1.net.exchange import one_line

_TRIES = 3
"""Most times that one call is made."""
_STARTS = 3
"""Most times that a program is started for one call."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 5.0
_IN_A_ROW, _REST_S = 5, 30.0
"""Lost connections without a result between them, after which a server is left alone, and for how long."""
_SIGN_S = 5.0
"""For a program that was late to show that it still answers."""
_OWN_FAULTS = ("Connection closed", "SSE stream ", "Session terminated")
"""How the official client's own errors of connections begin."""


@dataclass
class _Held:
    """One connection."""

    client: Any
    leave: Callable[[], None]
    complaint: Complaint
    running: int = 0
    gone: bool = False
    late: bool = False
    """A call was not answered in time, and nothing since."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def alive(self) -> bool:
        return not self.gone and not self.complaint.over

    def begin(self) -> None:
        with self.lock:
            self.running += 1

    def end(self) -> None:
        with self.lock:
            self.running -= 1
        self._left()

    def drop(self) -> None:
        """Use it for no other call; it is left when those that run have ended."""
        self.gone = True
        self._left()

    def _left(self) -> None:
        with self.lock:
            done, leave = self.gone and not self.running, self.leave
            if done:
                self.leave = lambda: None
        if done:
            leave()


class Link:
    """Thread-safe.

    open        a new client of the server as a context, which calls the function when the list of tools has changed
    limit_s     longest time of a call
    starts      the server is a program, which each connection starts
    """

    def __init__(
        self,
        background: Background,
        open: Callable[[Complaint, Callable[[], None]], AbstractAsyncContextManager[Any]],
        *,
        limit_s: float,
        starts: bool,
    ) -> None:
        self._background, self._open, self._limit_s, self._starts = background, open, limit_s, starts
        self._lock = threading.Lock()
        self._held: _Held | None = None
        self._closed = False
        self._lost, self._rests_until = 0, 0.0
        self.last_words = ""
        """What a server wrote that did not connect; empty: nothing."""
        self.changed = False
        """The server's list of tools may be another one now."""

    @property
    def alive(self) -> bool:
        """Whether it is connected, as far as is known."""
        return self._held is not None and self._held.alive

    def connect(self, limit_s: float) -> None:
        """Raises NotDone, and whatever the client raises."""
        complaint = Complaint()
        try:
            client, leave = self._background.enter(self._open(complaint, self._list_changed), limit_s)
        except Exception:
            self.last_words = complaint.ended or complaint.last_line
            raise
        finally:
            complaint.file.close()
        self._held = _Held(client, leave, complaint)
        if self._closed:
            self._held.drop()

    def ask(self, question: Callable[[Any], Coroutine[Any, Any, Any]], limit_s: float) -> Any:
        """What the client of this connection answers. Raises what it raises, and NotDone."""
        assert self._held is not None
        return self._background.wait(question(self._held.client), limit_s)

    def why(self, error: Exception) -> str:
        """The cause of an error, on one line."""
        ended = self._held.complaint.ended if self._held is not None else ""
        return ended or cause(error)

    def call(self, name: str, arguments: dict[str, Any], *, repeatable: bool) -> Any:
        """The result of a call. Raises ToolFailed where the server gives none, which says whether it was made."""
        ends = time.monotonic() + self._limit_s
        for number in range(1, _TRIES + 1):
            held = self._ready(ends)
            held.begin()
            try:
                left = max(0.001, ends - time.monotonic())
                calling = held.client.call_tool(name, arguments, read_timeout_seconds=left)
                result = self._background.wait(calling, left + 1.0)
                self._lost, held.late = 0, False
                return result
            except Exception as error:  # of any of the libraries below it
                why = held.complaint.ended or cause(error)
                if isinstance(error, NotDone) or time.monotonic() >= ends - 0.01:
                    held.late = True
                    raise ToolFailed(f"the MCP server gives no result: no answer within {self._limit_s:g} s") from error
                fault = fault_of(error)
                unsent = fault is not None and fault.unsent and fault.method == "tools/call"
                if not unsent and not _is_lost(error, held):
                    self._lost = 0
                    raise ToolFailed(f"the MCP server gives no result: {why}") from error
                self._count(held, dropped=unsent or fault is None)
                if not unsent and not repeatable:
                    told = "whether it was done is not known; the next call connects again"
                    raise ToolFailed(
                        f"the connection to the MCP server was lost in this call: {why}; {told}"
                    ) from error
                if number == _TRIES:
                    again = "the next call connects again"
                    raise ToolFailed(f"the MCP server gives no result in {_TRIES} tries: {why}; {again}") from error
            finally:
                held.end()
        raise AssertionError

    def close(self) -> None:
        """Connect no more."""
        self._closed = True

    def _list_changed(self) -> None:
        self.changed = True

    def _count(self, held: _Held, *, dropped: bool) -> None:
        self._lost += 1
        if self._lost >= _IN_A_ROW:
            self._rests_until = time.monotonic() + _REST_S
        if dropped:
            held.drop()

    def _ready(self, ends: float) -> _Held:
        """A connection that is alive, made again with waits that double. Raises ToolFailed."""
        if not self._lock.acquire(timeout=max(0.0, ends - time.monotonic())):
            raise ToolFailed(f"the MCP server is not back within {self._limit_s:g} s")
        try:
            held = self._held
            assert held is not None
            if held.alive and held.late and self._starts and not held.running and not self._answers(held, ends):
                held.drop()
            if held.alive:
                return held
            held.drop()
            rest = self._rests_until - time.monotonic()
            if self._lost >= _IN_A_ROW and rest > 0:
                row = f"the connection to the MCP server was lost {self._lost} times in a row"
                raise ToolFailed(f"{row}; it is tried again in {rest:.0f} s")
            self._again(ends)
            self.changed = True
            assert self._held is not None
            return self._held
        finally:
            self._lock.release()

    def _again(self, ends: float) -> None:
        tries, wait_s = 0, _FIRST_WAIT_S
        while not self._closed:
            tries += 1
            left = ends - time.monotonic()
            try:
                return self.connect(max(0.001, left))
            except Exception as error:  # of any of the libraries below it
                left = ends - time.monotonic()
                if left <= wait_s or (self._starts and tries == _STARTS) or isinstance(error, FileNotFoundError):
                    wrote = f"; it wrote: {self.last_words}" if self.last_words else ""
                    why = f"the MCP server is not back: {tries} tries, {cause(error)}{wrote}"
                    raise ToolFailed(f"{why}; the next call tries again") from error
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        raise ToolFailed("the agent is closed, and its MCP servers have ended")

    def _answers(self, held: _Held, ends: float) -> bool:
        limit_s = max(0.001, min(_SIGN_S, ends - time.monotonic()))
        try:
            self._background.wait(held.client.list_tools(cache_mode="refresh"), limit_s)
        except Exception:  # as above: it is no use
            return False
        held.late = False
        return True


@contextlib.asynccontextmanager
async def client_of(where: Any, limit_s: float, changed: Callable[[], None]) -> AsyncIterator[Any]:
    """The official client of a transport, which tells of a new list of tools, in each of the protocol's ways."""
    from mcp import Client

    async def hear(message: Any) -> None:
        if getattr(message, "method", None) == "notifications/tools/list_changed":
            changed()

    async def listen(client: Any) -> None:
        with contextlib.suppress(Exception):  # then changes are seen when it is connected again
            async with client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    changed()

    async with Client(made_sound(where), read_timeout_seconds=limit_s, message_handler=hear) as client:
        tools = client.server_capabilities.tools
        modern = client.session.discover_result is not None
        listening = asyncio.ensure_future(listen(client)) if modern and tools and tools.list_changed else None
        try:
            yield client
        finally:
            if listening is not None:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)


def cause(error: BaseException) -> str:
    """The first error in a group, on one line."""
    while isinstance(inner := getattr(error, "exceptions", None), tuple) and inner:
        error = inner[0]
    return one_line(f"{type(error).__name__}: {error}")


def _is_lost(error: Exception, held: _Held) -> bool:
    """Whether a call has no answer because its connection has ended."""
    fault = fault_of(error)
    if fault is not None:
        return fault.lost
    if held.complaint.over or held.gone or isinstance(error, CancelledError):
        return True
    return str(error).startswith(_OWN_FAULTS) or type(error).__name__ in ("ClosedResourceError", "BrokenResourceError")
