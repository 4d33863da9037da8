"""HTTP for thousands of concurrent requests: a head, a body, an answer, and connections that are used again.

    client = Client(256, {"content-type": "application/json"})        256 idle connections are kept for each server
    exchange(client, "http://127.0.0.1:8000/v1/completions", body, timeout_s=60.0)

httpx spends five times the processor time on a request, most of it on what a server of one's own does not need:
cookies, redirections, proxies, authentication, encodings. It serves https. Apart from `exchange` because importing
httpx is slow, and only a client of servers needs it.
"""

from __future__ import annotations

import select
import socket
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, lru_cache
from http.client import HTTPException, HTTPResponse

import httpx

_PIECE = 65_536
"""Most bytes that are read at a time."""


class Client:
    """Plain HTTP by `PlainHttp`, https by httpx. Thread-safe."""

    def __init__(
        self,
        connections: int,
        headers: Mapping[str, str],
        *,
        proxies: bool = False,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`headers` go with every request; at most `connections` idle ones are kept for each server.

        proxies     https goes through the environment's proxies
        transport   httpx's, for all requests; None: the network
        """
        # what is read is then what was sent, and no larger
        self.headers = httpx.Headers({**headers, "accept-encoding": "identity"})
        self._plain = PlainHttp(connections, self.headers) if transport is None else None
        self._connections, self._proxies, self._transport = connections, proxies, transport

    @cached_property
    def _httpx(self) -> httpx.Client:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self._connections)
        return httpx.Client(transport=self._transport, limits=limits, headers=self.headers, trust_env=self._proxies)

    def stream(
        self, method: str, url: str, *, content: bytes | None, timeout: httpx.Timeout
    ) -> AbstractContextManager[Answer | httpx.Response]:
        """Send a request; its answer is read inside the block, as far as the block wants to."""
        plain = self._plain if url.startswith("http:") else None
        return (plain or self._httpx).stream(method, url, content=content, timeout=timeout)

    def close(self) -> None:
        """Close the idle connections."""
        if self._plain is not None:
            self._plain.close()
        if "_httpx" in self.__dict__:
            self._httpx.close()


class PlainHttp:
    """No TLS, no proxies; raises what httpx raises. Thread-safe."""

    def __init__(self, connections: int, headers: Mapping[str, str]) -> None:
        self._head = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("ascii")
        self._connections = connections
        self._idle: defaultdict[bytes, list[socket.socket]] = defaultdict(list)

    @contextmanager
    def stream(self, method: str, url: str, *, content: bytes | None, timeout: httpx.Timeout) -> Iterator[Answer]:
        place, path = _parts(url)
        connection = self._connection(url, place, timeout.connect)
        kept = False
        response = HTTPResponse(connection, method=method)
        try:
            with _httpx_errors():
                connection.settimeout(timeout.read)
                length = b"content-length: %d\r\n" % len(content or b"")
                start = b"%s %s HTTP/1.1\r\nhost: %s\r\n" % (method.encode("ascii"), path, place)
                # at once: TCP would hold the second of two writes back
                connection.sendall(b"".join((start, self._head, length, b"\r\n", content or b"")))
                response.begin()
            answer = Answer(response)
            yield answer
            kept = answer.whole and not response.will_close
        finally:
            response.close()  # it holds the connection open
            if kept and len(self._idle[place]) < self._connections:
                self._idle[place].append(connection)
            else:
                connection.close()

    def close(self) -> None:
        """Close the idle connections."""
        for idle in self._idle.values():
            while idle:
                idle.pop().close()

    def _connection(self, url: str, place: bytes, timeout_s: float | None) -> socket.socket:
        idle = self._idle[place]
        while True:
            try:
                connection = idle.pop()
            except IndexError:
                return _connected(url, timeout_s)
            if not _readable(connection):
                return connection
            connection.close()  # the server has hung up meanwhile


class Answer:
    """A response whose head has been read."""

    def __init__(self, response: HTTPResponse) -> None:
        self._response = response
        self.status_code = response.status
        self.reason_phrase = response.reason
        self.headers = response.headers
        self.whole = False
        """The body was read to its end."""

    def iter_bytes(self) -> Iterator[bytes]:
        """The body in pieces, as they arrive."""
        with _httpx_errors():
            while self._response.length != 0 and (piece := self._response.read1(_PIECE)):
                yield piece
            if self._response.length:
                raise httpx.RemoteProtocolError("the connection was closed without sending complete message body")
            self.whole = True


@lru_cache(maxsize=4096)
def _parts(url: str) -> tuple[bytes, bytes]:
    """Host with port, and path with query, as they are sent."""
    parsed = httpx.URL(url)
    return parsed.netloc, parsed.raw_path


def _connected(url: str, timeout_s: float | None) -> socket.socket:
    parsed = httpx.URL(url)
    try:
        connection = socket.create_connection((parsed.host, parsed.port or 80), timeout=timeout_s)
    except OSError as error:
        raise httpx.ConnectError(str(error)) from error
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _readable(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


@contextmanager
def _httpx_errors() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise httpx.ReadTimeout(str(error)) from error
    except HTTPException as error:  # before OSError: one that hung up is both
        raise httpx.RemoteProtocolError(f"{type(error).__name__}: {error}") from error
    except OSError as error:
        raise httpx.ReadError(str(error)) from error
