"""The server behind the proxy: where a request goes, with which headers, and the bytes of its answer as they come.

--upstream https://api.openai.com/v1     POST /v1/chat/completions  ->  https://api.openai.com/v1/chat/completions
--upstream https://api.anthropic.com     POST /v1/messages          ->  https://api.anthropic.com/v1/messages
--upstream https://host/v1beta/openai    POST /chat/completions     ->  https://host/v1beta/openai/chat/completions
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from urllib.parse import unquote_to_bytes, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from mem1.errors import UserError

Headers = Sequence[tuple[bytes, bytes]]
_OF_ONE_CONNECTION = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade".split()
)
_OF_ONE_REQUEST = frozenset((b"content-length", b"idempotency-key"))
_SECRETS = (b"auth", b"cookie", b"key", b"secret", b"token")
"""Parts of the names of headers that may hold keys."""
_OF_CLIENTS = frozenset(b"apikey auth authorization credential key secret token".split())
"""Words in the names of headers by which clients are told apart."""
_TIMEOUT = httpx.Timeout(None, connect=10.0).as_dict()
"""Clients know how long they wait for an answer."""
_LARGEST_STATE = 1 << 20
"""Bytes of an answer with a state."""
_IDLE_S = 4.0
"""Seconds that an idle connection is kept: servers close theirs after 5 and more."""


def root_of(url: str) -> str:
    """The address that a client's path is appended to. Raises UserError where `url` is none to send requests to."""
    try:
        parts = urlsplit(url)
        wrong = parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment
        wrong = wrong or parts.port == 0
    except ValueError:
        parts, wrong = None, True
    if wrong or parts is None:
        raise UserError(f"--upstream {url!r:.80} is no address of a server; write it as https://api.openai.com/v1")
    if parts.username is not None or parts.password is not None:
        raise UserError("--upstream must not contain a password; clients send their own keys, which are passed on")
    return url.rstrip("/").removesuffix("/v1")


class Upstream:
    """A server and the connections to it."""

    def __init__(self, url: str, *, state_s: float = 120.0) -> None:
        """`state_s`: seconds for a state, for which the client waits. Raises UserError where `url` is none to send
        requests to.
        """
        self.root, self._state_s = root_of(url), state_s
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=_IDLE_S)
        try:
            # no client, which would keep cookies, and take longer
            self._transport = httpx.AsyncHTTPTransport(limits=limits, proxy=_proxy_to(self.root))
        except (ImportError, ValueError) as error:
            raise UserError(f"the environment's proxy to {self.root} cannot be used: {error}") from error

    def request(
        self, method: str, path: bytes, query: bytes, headers: Iterable[tuple[bytes, bytes]],
        content: bytes | AsyncIterator[bytes] | None,
    ) -> httpx.Request:  # fmt: skip
        """`content`: bytes, whose length replaces the one in `headers`; or a stream. Raises ValueError for a path that
        is none, or that leads out of the upstream's.
        """
        if _climbs(path):
            raise ValueError("the path of the request leads out of the upstream's")
        try:
            target = self.root + path.decode("ascii") + (f"?{query.decode('ascii')}" if query else "")
            url = httpx.URL(target)
        except (UnicodeDecodeError, httpx.InvalidURL) as error:
            raise ValueError("the path of the request is none") from error
        headers = list(headers)
        if isinstance(content, bytes):
            headers = [*(header for header in headers if header[0] != b"content-length"), _length(content)]
            content = _once(content)
        return httpx.Request(method, url, headers=headers, content=content, extensions={"timeout": _TIMEOUT})

    async def send(self, request: httpx.Request) -> httpx.Response:
        """The answer, of which only the headers have been read. Raises httpx.HTTPError."""
        return await self._transport.handle_async_request(request)

    async def read(self, response: httpx.Response) -> tuple[httpx.Response, bytes]:
        """(an error to pass back, what it says), which is read whole and comes once more. Raises httpx.HTTPError."""
        raw = b""
        try:
            async for piece in response.aiter_raw():
                raw += piece
                if len(raw) > _LARGEST_STATE:
                    raise httpx.DecodingError(f"an error is larger than {_LARGEST_STATE:,} bytes")
        finally:
            await response.aclose()
        again = httpx.Response(response.status_code, headers=response.headers.raw, content=_once(raw))
        try:
            return again, httpx.Response(response.status_code, headers=response.headers.raw, content=raw).content
        except httpx.DecodingError:
            return again, b""

    async def state(self, path: bytes, query: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        """(status, body) of the answer to a request for a state. Raises httpx.HTTPError."""
        asked = [*(header for header in headers if header[0] != b"accept-encoding"), (b"accept-encoding", b"identity")]
        request = self.request("POST", path, query, asked, body)
        try:
            return await asyncio.wait_for(self._whole(request), self._state_s)
        except asyncio.TimeoutError:
            raise httpx.ReadTimeout(f"nothing within {self._state_s:.0f} seconds", request=request) from None

    async def _whole(self, request: httpx.Request) -> tuple[int, bytes]:
        response = await self.send(request)
        answer = bytearray()
        try:
            async for piece in response.aiter_bytes():
                answer += piece
                if len(answer) > _LARGEST_STATE:
                    raise httpx.DecodingError(f"the answer is larger than {_LARGEST_STATE:,} bytes", request=request)
        finally:
            await response.aclose()
        return response.status_code, bytes(answer)


def _climbs(path: bytes) -> bool:
    """Whether a server could read a step up ("..") in the path, however often it decodes it."""
    while (decoded := unquote_to_bytes(path)) != path:
        path = decoded
    segments = path.replace(b"\\", b"/").split(b"/")
    return any(segment.partition(b";")[0] == b".." for segment in segments)


def _proxy_to(url: str) -> str | None:
    """The environment's proxy (HTTPS_PROXY, ALL_PROXY, NO_PROXY), if there is one for this address."""
    parts, proxies = urlsplit(url), getproxies()
    return None if proxy_bypass(parts.hostname or "") else proxies.get(parts.scheme, proxies.get("all"))


def _length(content: bytes) -> tuple[bytes, bytes]:
    return b"content-length", str(len(content)).encode()


async def _once(content: bytes) -> AsyncIterator[bytes]:
    """A body that is free as soon as it is sent; answers take long, and conversations are large."""
    yield content


def is_secret(name: bytes) -> bool:
    """Whether a header of this name may hold a key."""
    return any(part in name for part in _SECRETS)


def credential_of(headers: Headers) -> Headers:
    """The headers that tell one client from another: those with keys, else cookies, which servers change at will."""
    keys = [header for header in headers if _OF_CLIENTS.intersection(header[0].replace(b"_", b"-").split(b"-"))]
    cookies = [header for header in headers if header[0] == b"cookie"]
    return sorted(header for header in keys or cookies if header[0] not in _OF_ONE_REQUEST)


def passed_on(headers: Headers, *, same_request: bool = True) -> list[tuple[bytes, bytes]]:
    """A client's headers for the upstream; of another request, such as one for a state, without its identity."""
    own = _OF_ONE_CONNECTION | _named(headers) | {b"host", b"expect"}
    if not same_request:
        own |= _OF_ONE_REQUEST
    return [(name, value) for name, value in headers if name not in own]


def passed_back(response: httpx.Response) -> list[tuple[bytes, bytes]]:
    """An answer's headers for the client; the date is our server's."""
    headers = [(name.lower(), value) for name, value in response.headers.raw]
    own = _OF_ONE_CONNECTION | _named(headers) | {b"date"}
    return [(name, value) for name, value in headers if name not in own]


def _named(headers: Headers) -> set[bytes]:
    """Headers that a Connection header keeps to one connection."""
    values = [value for name, value in headers if name == b"connection"]
    return {word.strip().lower() for value in values for word in value.split(b",")}
