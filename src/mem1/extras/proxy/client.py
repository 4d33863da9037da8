"""The client's side of a request: its body, whether it is still there, and the answer that it gets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import httpx

from mem1.extras.proxy.upstream import Headers, passed_back
from mem1.net.requests import CapacityLimit, ClientGone, Refused

if TYPE_CHECKING:
    from starlette.types import Receive, Send


class Body:
    """A request's body, and whether its client is still there."""

    def __init__(self, receive: Receive, headers: Headers) -> None:
        self._receive = receive
        self._there_is_one = bool({name for name, _ in headers} & {b"content-length", b"transfer-encoding"})
        self._read: list[bytes] = []
        self._ended = asyncio.Event()
        self._gone = False

    async def read(self, most: int, room: CapacityLimit, held: contextlib.ExitStack) -> bytes:
        """All of it, for which `held` keeps room until it is closed; `stream` has it still, unless it is forgotten.

        Raises Refused where it has more than `most` bytes or there is no room.
        """
        size = 0
        async for piece in self._pieces():
            self._read.append(piece)
            size += len(piece)
            if size > most:
                raise Refused(413, f"the body is larger than {most:,} bytes")
            held.enter_context(room.holding(len(piece)))
        self._read = [b"".join(self._read)]
        return self._read[0]

    def forget(self) -> None:
        """Free what has been read."""
        self._read.clear()

    def stream(self) -> AsyncIterator[bytes] | None:
        """What has been read, then the rest; None: there is no body."""
        if self._there_is_one:
            return self._all()
        self._ended.set()
        return None

    async def _all(self) -> AsyncIterator[bytes]:
        while self._read:
            yield self._read.pop(0)
        async for piece in self._pieces():
            yield piece

    async def _pieces(self) -> AsyncIterator[bytes]:
        while not self._ended.is_set():
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._gone = True
                self._ended.set()
                raise ClientGone
            if not message.get("more_body", False):
                self._ended.set()
            if piece := message.get("body", b""):
                yield piece

    async def hung_up(self) -> None:
        """Returns when the client hangs up, after it has sent its request."""
        await self._ended.wait()
        while not self._gone:
            self._gone = (await self._receive())["type"] == "http.disconnect"


class Answer:
    """What the client gets."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = False

    async def relay(self, response: httpx.Response, notes: Headers = ()) -> None:
        """An upstream's answer as it comes; cut off where the upstream's was."""
        try:
            self._begun = True
            headers = [*passed_back(response), *notes]
            await self._send({"type": "http.response.start", "status": response.status_code, "headers": headers})
            async for piece in response.aiter_raw():
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
            await self._send({"type": "http.response.body", "body": b""})
        finally:
            await response.aclose()

    async def fail(self, status: int, why: str) -> None:
        """An error in the form of both APIs; an answer that has begun is cut off instead."""
        if self._begun:
            return
        error = {"type": "error", "error": {"type": "proxy_error", "message": f"mem1 proxy: {why}"}}
        body = json.dumps(error).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})
