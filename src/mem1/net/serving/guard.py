"""Which requests a server answers: those that name it correctly and do not come from another site's page.

Host: 127.0.0.1:8000                              answered
Host: evil.example:8000                           421: a foreign name that resolves to this address (DNS rebinding)
Origin: https://evil.example                      403: a page of another site
POST, Content-Type: text/plain                    415: what another site's page can send without permission
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mem1.errors import UserError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
"""Content type of HTML forms; pages of other sites are then recognised by Origin and Sec-Fetch-Site only."""
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/@\[\]]+)(?::[0-9]{1,5})?")
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?")


@dataclass(frozen=True, slots=True)
class Hosts:
    """The names and addresses that clients may use for a server; loopback always works.

    A site can point its own name to any address, but its name cannot be an address. A server that listens on all
    addresses of its machine therefore accepts each of them, but only names that are listed.
    """

    names: frozenset[str] = frozenset({"localhost"})
    """In lower case."""
    any_address: bool = False

    @classmethod
    def of(cls, host: str, bound: socket.socket, allowed: Sequence[str] = ()) -> Hosts:
        """Hosts of a server that listens on `host`. Raises UserError where one of `allowed` is not a host name."""
        address = str(bound.getsockname()[0])
        wild = ipaddress.ip_address(address).is_unspecified
        own = () if wild else (_plain(host), address)
        return cls(frozenset({"localhost", *own, *map(_checked, allowed)}), wild)

    def include(self, header: str) -> bool:
        """Whether this is the value of a Host header that names the server; its port does not matter."""
        found = _HOST.fullmatch(header.lower())
        if found is None:
            return False
        name = _plain(found[1])
        if name in self.names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.any_address or address.is_loopback


def _plain(host: str) -> str:
    return host.lower().strip("[]").removesuffix(".")


def _checked(name: str) -> str:
    plain = _plain(name)
    try:
        ipaddress.ip_address(plain)
    except ValueError:
        if not _NAME.fullmatch(plain):
            raise UserError(
                f"--allow-host {name!r} is not a host name; write the name only, as in --allow-host search.lan"
            ) from None
    return plain


class Guard:
    """Refuses requests before they reach an ASGI application."""

    def __init__(self, app: ASGIApp, hosts: Hosts, accepts: str) -> None:
        """`accepts`: the content type that every POST must have."""
        self._app, self._hosts, self._accepts = app, hosts, accepts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refusal(scope) if scope["type"] == "http" else None
        if refused is None:

            async def send_closing(message: Message) -> None:
                # uvicorn closes the connection after an exception; without this header clients would reuse it
                if message["type"] == "http.response.start" and message["status"] == 500:
                    message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
                await send(message)

            await self._app(scope, receive, send_closing)
            return
        status, why = refused
        body = json.dumps({"detail": why}).encode("ascii")
        headers = [(b"content-type", JSON.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason of a refusal; None: the request is accepted."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host")
        # HTTP/1.0 may leave it out, a browser never does
        if host is not None and not self._hosts.include(host):
            return 421, f"{host[:100]!r} is not a name of this server; --allow-host NAME adds one"
        if _from_elsewhere(headers, scope["method"]):
            return 403, "pages of other sites may not use this server"
        if scope["method"] == "POST":
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != self._accepts:
                return 415, f"a POST must have the content type {self._accepts}"
        return None


def _from_elsewhere(headers: Mapping[str, str], method: str) -> bool:
    """Whether another site's page made the request. Following a link does not count."""
    site = headers.get("sec-fetch-site")
    if site in ("cross-site", "same-site"):
        followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        return not (followed and method == "GET")
    origin = headers.get("origin")
    return origin is not None and _authority(origin) != headers.get("host", "").lower()


def _authority(origin: str) -> str:
    """http://127.0.0.1:8000 -> 127.0.0.1:8000; empty for "null" and malformed origins."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
