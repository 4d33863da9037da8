"""A web server of this machine alone, or of everyone who has its token.

server = private_server(app, host="127.0.0.1", port=8001, token=None, listening=print)
server.run()                                 until Ctrl-C or SIGTERM
host 0.0.0.0 without a token                 UserError
a request without "Authorization: Bearer ..."    401, but for /health, once `require_token` has been told of one
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mem1.errors import UserError
from mem1.net.web_server import Hosts, address, bind, make_server, refuse

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Receive, Scope, Send


def private_server(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    token: str | None,
    listening: Callable[[str], None],
    allow_hosts: Sequence[str] = (),
) -> uvicorn.Server:
    """A server of the application, which requires the token itself; its `run()` serves until SIGTERM or SIGINT.

    `listening` is called with the address once requests are answered; port 0: any free port. `allow_hosts`: names of
    the server that clients may use besides its address. Raises UserError where other machines could connect and there
    is no token, and where the address is taken.
    """
    check_private(host, token)
    (socket,) = bind(host, port)
    hosts, where = Hosts.of(host, socket, allow_hosts), address(host, socket)
    return make_server(app, socket, hosts=hosts, ready=lambda: listening(where))


def check_private(host: str, token: str | None) -> None:
    """Raises UserError where other machines could connect to the address and there is no token."""
    if token is None and not is_loopback(host):
        raise UserError(
            f"other machines can connect to {host}, so the server needs a token: put one into an environment "
            "variable and name it with --token-env, or leave --host out"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_token(app: Starlette, token: str | None) -> None:
    """Every request but /health must carry the bearer token, if there is one."""
    if token is not None:
        app.add_middleware(_TokenCheck, token=token)


class _TokenCheck:
    """Refuses requests without the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._authorization = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/health":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._authorization):
                await refuse(scope, send, 401, "this server requires its bearer token")
                return
        await self._app(scope, receive, send)
