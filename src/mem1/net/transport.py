"""Connections for hundreds of concurrent requests: urllib3 finds a free one at once, httpx's own pool looks at all.

    httpx.Client(transport=PooledTransport(256))        256 idle connections are kept for each server

Apart from `httpx` because importing it is slow, and only a client of servers needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import urllib3
from urllib3 import exceptions


class PooledTransport(httpx.BaseTransport):
    """No proxies; raises what httpx's own transport raises."""

    def __init__(self, connections: int) -> None:
        self._servers = urllib3.PoolManager(num_pools=10_000, maxsize=connections)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; its response is read as a stream."""
        timeout = request.extensions["timeout"]
        with _httpx_errors():
            answer = self._servers.urlopen(
                request.method,
                str(request.url),
                body=request.read(),
                headers=dict(request.headers),
                timeout=urllib3.Timeout(connect=timeout["connect"], read=timeout["read"]),
                preload_content=False,
                redirect=False,
                retries=False,
            )
        return httpx.Response(answer.status, headers=list(answer.headers.items()), stream=_Body(answer))

    def close(self) -> None:
        """Close the idle connections."""
        self._servers.clear()


class _Body(httpx.SyncByteStream):
    def __init__(self, answer: urllib3.BaseHTTPResponse) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        with _httpx_errors():
            while piece := self._answer.read1(65_536, decode_content=False):  # what has arrived, however little
                yield piece

    def close(self) -> None:
        if not self._answer.closed:  # not read to its end: the connection cannot be used again
            self._answer.close()
        self._answer.release_conn()


@contextmanager
def _httpx_errors() -> Iterator[None]:
    try:
        yield
    except (exceptions.ConnectTimeoutError, exceptions.NewConnectionError) as error:
        raise httpx.ConnectError(str(error)) from error
    except exceptions.ReadTimeoutError as error:
        raise httpx.ReadTimeout(str(error)) from error
    except exceptions.HTTPError as error:
        raise httpx.RemoteProtocolError(str(error)) from error
