"""One HTTP request over one connection, to a checked IP address, within a time and a size; and its body as text.

send(HttpRequest(method="GET", address=address), resolve=public_only(resolve_any), seconds=20, max_bytes=5_000_000)
->  HttpReply(status=200, headers={"content-type": "text/html", ...}, body=b"...")
decompress(b"\\x1f\\x8b...", "gzip", max_bytes=10_000_000)        ->  b"<html>..."
decode(b"caf\\xe9", "text/html; charset=iso-8859-1")              ->  "café"

A host is resolved once, by `resolve`, at the moment of connecting, and the connection goes to the addresses returned.
Check and connection therefore see the same address, and DNS rebinding has nothing to change between them. The Host
header and the TLS name remain the host's. We use httpcore, the layer below httpx, because it follows no redirects,
reads no proxy variables, decompresses nothing and lets us make the connection.
"""

from __future__ import annotations

import codecs
import re
import socket
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import httpcore

from mem1.retrieval.web.urls import Address, FetchFailed, Why, check_ip

ACCEPTED = "gzip, deflate"
"""Accept-Encoding of our requests."""
_GZIP = b"\x1f\x8b"
_MOST_MEMBERS = 256
"""Members of a gzip file that are read; each costs a copy of those behind it, also an empty one."""
_META = re.compile(rb"<meta[^>]{0,200}?charset\s{0,8}=\s{0,8}[\"']?\s{0,8}([\w.:-]{1,40})", re.IGNORECASE)
_HEADER = re.compile(r"charset\s{0,8}=\s{0,8}[\"']?\s{0,8}([\w.:-]{1,40})", re.IGNORECASE)
_META_WITHIN = 4096
"""Bytes at the head of a page that are searched for its own declaration."""
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_KNOWN = re.compile(
    r"utf-8|utf-16(-[lb]e)?|cp125[0-8]|cp866|cp874|cp932|cp949|cp950|iso8859-\d+|koi8-[ru]|mac-(roman|cyrillic)|gbk|"
    r"ascii|gb2312|gb18030|big5(hkscs)?|euc_(jp|kr)|shift_jis|iso2022_jp|tis-620"
)
"""Encodings of text; Python knows others (punycode, unicode_escape, utf-7) that a page must not choose."""
_AS_BROWSERS = {
    **dict.fromkeys(("ascii", "iso8859-1"), "cp1252"),
    **dict.fromkeys(("gb2312", "gbk"), "gb18030"),
    **dict.fromkeys(("iso8859-11", "tis-620"), "cp874"),
    "iso8859-9": "cp1254",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}
"""Python's name of an encoding -> the larger one by which every browser reads pages that declare it (WHATWG)."""


def decompress(body: bytes, encoding: str, *, max_bytes: int) -> bytes:
    """Undo a Content-Encoding, never holding more than `max_bytes` of the result.

    Raises FetchFailed: SIZE beyond the bound, ENCODING for unsupported or repeated encodings and for damaged data,
    NETWORK where the data end too early.
    """
    name = encoding.strip().lower()
    if name in ("", "identity") or not body:
        return body
    if name not in ("gzip", "x-gzip", "deflate"):
        raise FetchFailed(Why.ENCODING, f"it is compressed as {name[:40]!r}, which is not read; only {ACCEPTED} are")
    window = (31 if name.endswith("gzip") else 15) if _has_header(body, name) else -15
    text = bytearray()
    for _ in range(_MOST_MEMBERS):
        stream = zlib.decompressobj(window)
        try:
            text += stream.decompress(body, max_bytes + 1 - len(text))
        except zlib.error as error:
            raise FetchFailed(Why.ENCODING, f"its data are not {name}, as its header claims") from error
        if len(text) > max_bytes:
            raise FetchFailed(Why.SIZE, f"it is larger than {max_bytes / 1e6:g} MB once decompressed")
        if not stream.eof:
            raise FetchFailed(Why.NETWORK, "it breaks off in the middle")
        body = stream.unused_data
        if not (window == 31 and body.startswith(_GZIP)):  # a gzip file may have several members
            return bytes(text)
    raise FetchFailed(Why.ENCODING, f"it is compressed in more than {_MOST_MEMBERS} members")


def _has_header(body: bytes, name: str) -> bool:
    """False only for a "deflate" without zlib's two bytes, as some servers send it."""
    return name != "deflate" or (body[0] & 0x0F == 8 and int.from_bytes(body[:2], "big") % 31 == 0)


def decode(body: bytes, content_type: str) -> str:
    """The text of a body; bytes that are invalid in its encoding become U+FFFD. Never raises.

    The encoding is the one `declared`, else UTF-8 where all bytes are valid, else Windows-1252.
    """
    text = declared(body, content_type)
    if text is not None:
        return text
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return body.decode("cp1252", errors="replace")


def declared(body: bytes, content_type: str = "") -> str | None:
    """The text of a body by a byte order mark, else the header, else the page's own <meta>; None: none names an
    encoding that is known. Bytes that are invalid in it become U+FFFD."""
    for mark, encoding in _MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(encoding, errors="replace")
    header = _HEADER.search(content_type)
    meta = _META.search(body[:_META_WITHIN])
    if header and (encoding := _encoding(header[1])):
        return body.decode(encoding, errors="replace")
    if meta and (encoding := _encoding(meta[1].decode("ascii", errors="replace"))):
        # who could read the declaration byte by byte does not read UTF-16
        return body.decode("utf-8" if encoding.startswith("utf-16") else encoding, errors="replace")
    return None


def _encoding(label: str) -> str | None:
    """Python's name of the encoding; None where the label names none that a page may choose."""
    try:
        name = codecs.lookup(label).name
    except (LookupError, ValueError):
        return None
    return _AS_BROWSERS.get(name, name) if _KNOWN.fullmatch(name) else None


Resolve = Callable[[str], Sequence[str]]
"""Host name or IP address -> the IP addresses to connect to, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request; its repr omits the headers, which may hold a key."""

    method: str
    address: Address
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """A response."""

    status: int
    headers: Mapping[str, str]
    """By name in lower case; the values of a repeated header are joined by commas."""
    body: bytes
    """As received, possibly compressed."""


def resolve_any(host: str) -> list[str]:
    """All IP addresses of a host, from the system's resolver. Raises FetchFailed where it has none."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise FetchFailed(Why.NETWORK, f"the host {host} was not found") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def public_only(resolve: Resolve, *, allow_loopback: bool = False) -> Resolve:
    """A resolver that refuses a host if any of its addresses is outside the public internet."""

    def checked(host: str) -> Sequence[str]:
        addresses = resolve(host)
        for address in addresses:
            check_ip(address, allow_loopback=allow_loopback)
        return addresses

    return checked


def send(request: HttpRequest, *, resolve: Resolve, seconds: float, max_bytes: int) -> HttpReply:
    """Send a request and read the whole reply within `seconds`, from the connection to the last byte.

    Raises FetchFailed (TIME, SIZE, NETWORK, or what `resolve` raises). The system's resolver has its own time limit.
    """
    address = request.address
    network = _Network(resolve, deadline=time.monotonic() + seconds)
    url = httpcore.URL(scheme=address.scheme, host=address.host, port=address.port, target=address.target)
    host = address.origin.partition("://")[2]
    headers = {"Host": host, "Connection": "close", **request.headers}
    try:
        with (
            httpcore.ConnectionPool(ssl_context=_tls(), network_backend=network, max_connections=1) as pool,
            pool.stream(request.method, url, headers=list(headers.items()), content=request.body or None) as response,
        ):
            names = _headers(response.headers)
            length = names.get("content-length", "")
            if length.isascii() and length.isdigit() and int(length[:20]) > max_bytes:
                raise _too_large(max_bytes)
            return HttpReply(status=response.status, headers=names, body=_body(response.iter_stream(), max_bytes))
    except (httpcore.TimeoutException, TimeoutError):
        raise FetchFailed(Why.TIME, f"{address.host} did not answer within {seconds:g} seconds") from None
    except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
        # the library's message may quote a header, and with it a key: only the type of the error is passed on
        kind = type(error).__name__
        raise FetchFailed(Why.NETWORK, f"the connection to {address.host} failed ({kind})") from None


def _headers(raw: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    names: dict[str, str] = {}
    for name, value in raw:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip()
        names[key] = f"{names[key]}, {text}" if key in names else text
    return names


def _body(chunks: Iterable[bytes], max_bytes: int) -> bytes:
    body = bytearray()
    for chunk in chunks:
        body += chunk
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(body)


def _too_large(max_bytes: int) -> FetchFailed:
    return FetchFailed(Why.SIZE, f"it is larger than {max_bytes / 1e6:g} MB")


@lru_cache(maxsize=1)
def _tls() -> Any:
    return httpcore.default_ssl_context()


class _Network(httpcore.NetworkBackend):
    """Connects to the addresses that `resolve` returns, and ends every wait at the deadline."""

    def __init__(self, resolve: Resolve, deadline: float) -> None:
        self._resolve = resolve
        self._deadline = deadline
        self._sockets = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        failed: Exception = FetchFailed(Why.NETWORK, f"the host {host} has no address")
        addresses = self._resolve(host)
        for untried, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            try:
                # a silent address leaves the others their share of the time
                share = _left(self._deadline, httpcore.ConnectTimeout) / untried
                return _Stream(self._sockets.connect_tcp(address, port, share, local_address), self._deadline)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        raise failed


class _Stream(httpcore.NetworkStream):
    """A connection whose every operation ends at the deadline, so one byte per second cannot keep it open."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: float) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(self._deadline, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left(self._deadline, httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left = _left(self._deadline, httpcore.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, left), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _left(deadline: float, late: type[httpcore.TimeoutException]) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise late("out of time")
    return left
