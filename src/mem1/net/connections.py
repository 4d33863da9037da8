"""Connections with deadlines, and an upper limit on their number.

    half of the headers, then nothing       408 after `head_s`, and the connection is closed
    half of the body, then nothing          408 after `body_s`
    an answer that is not read              closed after `write_s`
    one connection too many                 the one that has waited longest for its client is closed; 503 where all are
                                            being worked on

uvicorn only has a deadline for idle connections, and answers requests above a limit, where connections matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from typing import Any, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from mem1.net.bounds import Bounds

_ENDED = b"content-length: 0\r\nconnection: close\r\n"
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\n" + _ENDED + b"\r\n"
_FULL = b"HTTP/1.1 503 Service Unavailable\r\n" + _ENDED + b"retry-after: 1\r\n\r\n"

Phase = Literal["head", "body", "idle", "work"]
"""Phase of a connection: the first two wait for the rest of a request, "idle" for the next one."""


class ConnectionLimit:
    """Limits the number of connections of one server."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._most = bounds.most_connections
        self._inside = 0
        self._waiting: dict[Connection, None] = {}
        """Connections that wait for their clients, longest first."""

    def enter(self) -> bool:
        """Whether there is room for one more connection; counts it if so."""
        if self._inside >= self._most and not self.make_room():
            return False
        self._inside += 1
        return True

    def make_room(self) -> bool:
        """Close the connection that has waited longest; False where none waits."""
        if not self._waiting:
            return False
        connection = next(iter(self._waiting))
        del self._waiting[connection]
        connection.transport.abort()
        return True

    def left(self, connection: Connection) -> None:
        self._inside -= 1
        self._waiting.pop(connection, None)

    def waits(self, connection: Connection, waits: bool) -> None:
        """A connection begins to wait, or to be worked on."""
        self._waiting.pop(connection, None)
        if waits:
            self._waiting[connection] = None


class Listener(socket.socket):
    """A listening socket that accepts connections while the limit has room."""

    def __init__(self, bound: socket.socket, limit: ConnectionLimit) -> None:
        """Takes the place of `bound`."""
        super().__init__(bound.family, bound.type, bound.proto, fileno=bound.detach())
        self._limit = limit
        self._accepted = False
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY)
        """A spare descriptor, given up to refuse a connection when there is no other."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Raises BlockingIOError where there is no room now; asyncio then acts as if nobody were waiting."""
        # asyncio accepts everybody in the queue before serving anybody; one at a time can be counted
        if self._accepted:
            self._accepted = False
            raise BlockingIOError
        try:
            connection, place = super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._limit.make_room()
            self._turn_away_without_descriptors()
            raise BlockingIOError from error
        if not self._limit.enter():
            _turn_away(connection)
            raise BlockingIOError
        self._accepted = True
        return connection, place

    def close(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        super().close()

    def _turn_away_without_descriptors(self) -> None:
        """Otherwise the waiting queue would wake the server again and again for nothing."""
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        with contextlib.suppress(OSError):
            _turn_away(super().accept()[0])
        with contextlib.suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY)


def _turn_away(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            connection.recv(1 << 16)  # unread data would make the answer be lost
        connection.send(_FULL)


class Connection(H11Protocol):
    """One connection to a client."""

    def __init__(self, *args: Any, limit: ConnectionLimit, **options: Any) -> None:
        super().__init__(*args, **options)
        self._limit, self._bounds = limit, limit.bounds
        self._phase: Phase | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self._bounds.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop(self._stalled)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(self._deadline)
        self._stop(self._stalled)
        self._limit.left(self)
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Each phase has its own deadline; bytes within a phase do not extend it."""
        phase = self._now()
        if phase == self._phase or self.transport.is_closing():
            return
        self._phase = phase
        self._stop(self._deadline)
        self._limit.waits(self, phase != "work")
        seconds = {"head": self._bounds.head_s, "body": self._bounds.body_s, "idle": self._bounds.idle_s}
        if phase != "work":
            self._deadline = self.loop.call_later(seconds[phase], self._too_late)

    def _now(self) -> Phase:
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        if self.conn.their_state is not h11.IDLE:
            return "work"
        fresh = self.cycle is None
        return "head" if fresh or self.conn.trailing_data[0] else "idle"

    def _too_late(self) -> None:
        if self.transport.is_closing():  # with data left to write that nobody reads
            self.transport.abort()
            return
        if self._phase != "idle" and (self._phase == "head" or not self.cycle.response_started):
            self.transport.write(_TOO_SLOW)
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
