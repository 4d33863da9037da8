"""MCP over HTTP by the official transports, with one's own headers, a limit on every answer, and faults that are told.

    async with over_http("https://host/mcp", {"authorization": "Bearer ..."}) as streams: ...

The official transport ends with all its calls where one request fails. Here a request that fails is answered by an
error of its own, which `fault_of` reads: whether the server certainly did not get it.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from mem1.agent.mcp_answers import mended
from mem1.agent.mcp_program import LONGEST_MESSAGE
from mem1.net.exchange import one_line

_MARK = secrets.token_hex(16)
"""Tells our errors from those of servers."""
_FAULT = -32_099
_GATEWAY = (408, 425, 429, 500, 502, 503, 504)
"""Statuses of servers that are starting, or of proxies before them."""
_SILENT_S = 300.0
"""Longest silence of a server within an answer, unless a call may take longer."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a request has no answer."""

    unsent: bool
    """The server certainly did not do it: it was not reached, or it does not know the session."""
    lost: bool
    """Another try may have an answer."""
    method: str


def fault_of(error: Any) -> Fault | None:
    """The fault behind an error of the official client; None: it is the server's own error."""
    data = getattr(error, "data", None)
    if not isinstance(data, dict) or data.get("mark") != _MARK:
        return None
    return Fault(unsent=data["unsent"], lost=data["lost"], method=data["method"])


@contextlib.asynccontextmanager
async def over_http(url: str, headers: Mapping[str, str], *, limit_s: float) -> AsyncIterator[Any]:
    """Streams of a server. `limit_s`: longest time of a call."""
    from mcp.client.streamable_http import streamable_http_client

    async with _client(headers, limit_s) as http, streamable_http_client(
        url, http_client=http, max_sse_event_size=LONGEST_MESSAGE
    ) as streams:  # fmt: skip
        yield streams


def _client(headers: Mapping[str, str], limit_s: float) -> Any:
    import httpx2

    silent_s = max(_SILENT_S, limit_s)

    class Client(httpx2.AsyncClient):
        async def send(self, request: Any, **how: Any) -> Any:
            if request.method != "POST":
                response = await super().send(request, **how)
                _mends_events(response)
                return response
            try:
                response = await super().send(request, **how)
                if "content-encoding" in response.headers:  # a few bytes could be a great many
                    raise httpx2.DecodingError("its answer is compressed, which was not asked for")
                if not _mends_events(response):
                    await _read(response)
            except httpx2.HTTPError as error:
                early = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
                lost = isinstance(error, httpx2.TransportError)
                silent = isinstance(error, httpx2.ReadTimeout)
                why = f"it was silent for {silent_s:g} s" if silent else one_line(f"{type(error).__name__}: {error}")
                return _answered(request, why, unsent=isinstance(error, early), lost=lost)
            status, session = response.status_code, "mcp-session-id" in request.headers
            if session and (status in (404, 410) or (status == 400 and b"session" in response.content.lower())):
                return _answered(request, "the server does not know the session any more", unsent=True, lost=True)
            if status in (401, 403, *_GATEWAY) and not _is_error(response):
                hint = "; give McpServer(headers=...) what it asks for" if status in (401, 403) else ""
                return _answered(request, f"status {status}{hint}", unsent=status == 429, lost=status in _GATEWAY)
            return response

    def _answered(request: Any, why: str, *, unsent: bool, lost: bool) -> Any:
        message = _request(request.content)
        if "id" not in message:  # a notification has no answer
            return httpx2.Response(202, request=request)
        data = {"mark": _MARK, "unsent": unsent, "lost": lost, "method": str(message.get("method"))}
        error = {"code": _FAULT, "message": why, "data": data}
        return httpx2.Response(200, json={"jsonrpc": "2.0", "id": message["id"], "error": error}, request=request)

    def _mends_events(response: Any) -> bool:
        """Whether it comes in events, which are mended on the way."""
        kind, packed = response.headers.get("content-type", ""), "content-encoding" in response.headers
        comes = kind.startswith("text/event-stream") and not packed
        if comes:
            response.stream = Mended(response.stream)
        return comes

    async def _read(response: Any) -> None:
        """Reads an answer in one go; those in events are limited by the event."""
        pieces, left = list[bytes](), LONGEST_MESSAGE
        try:
            async for piece in response.aiter_raw():
                left -= len(piece)
                if left < 0:
                    raise httpx2.DecodingError(f"an answer of more than {LONGEST_MESSAGE:,} bytes")
                pieces.append(piece)
        finally:
            await response.aclose()
        response._content = mended(b"".join(pieces))

    class Mended(httpx2.AsyncByteStream):
        """Events line by line, which are mended; the transport limits the length of an event."""

        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            left = bytearray()
            async for piece in self._stream:
                left += piece
                if len(left) > LONGEST_MESSAGE:
                    end = len(left)
                elif b"\n" in piece or b"\r" in piece:
                    end = max(left.rfind(b"\n"), left.rfind(b"\r")) + 1
                else:
                    continue
                for line in bytes(left[:end]).splitlines(keepends=True):
                    field, _, data = line.partition(b":")
                    bare = data.rstrip(b"\r\n")
                    yield b"data:" + mended(bare) + data[len(bare) :] if field == b"data" else line
                del left[:end]
            yield bytes(left)

        async def aclose(self) -> None:
            await self._stream.aclose()

    plain = {**headers, "accept-encoding": "identity"}
    return Client(headers=plain, timeout=httpx2.Timeout(30.0, read=silent_s))


def _request(content: bytes) -> dict[str, Any]:
    message = json.loads(content or b"{}")
    return message if isinstance(message, dict) else {}


def _is_error(response: Any) -> bool:
    """Whether an answer is an error of the protocol, which says more than its status."""
    try:
        message = json.loads(response.content)
    except (ValueError, RecursionError):
        return False
    return isinstance(message, dict) and isinstance(message.get("error"), dict)
