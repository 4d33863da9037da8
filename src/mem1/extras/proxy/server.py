"""`mem1 proxy` as a process: the proxy on a port until Ctrl-C or SIGTERM."""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from mem1.extras.proxy.app import Proxy
from mem1.extras.proxy.folding import Counts
from mem1.extras.proxy.states import StateFile
from mem1.extras.proxy.upstream import Upstream
from mem1.messages import Bounds, Event, Memory
from mem1.net.bounds import BOUNDS
from mem1.net.web_server import Hosts, address, bind, make_server
from mem1.prices import PriceClass

_FILES = 8192
"""Open files that the proxy asks for: two per connection of a client."""
_WAIT_S = 600.0
"""Seconds for a client to send a body, and without progress while it reads."""
_BOUNDS = Bounds(handles=False)
"""Clients have no tool `recall`."""


def serve(
    upstream: str,
    memory: str,
    *,
    prices: str | PriceClass | None = None,
    bounds: Bounds = _BOUNDS,
    states: Path | None = None,
    events: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8002,
    allow_hosts: Sequence[str] = (),
    listening: Callable[[str], None],
) -> Counts:
    """Serve until SIGTERM or SIGINT, finish the open requests, and return what was done.

    `states`: the file in which they are kept; None: they are gone when the server stops. `listening` is called with the
    address once requests are answered; port 0: any free port. Raises UserError where the address is taken, and for an
    upstream, a memory or a file that cannot be used.
    """
    kept: MutableMapping[str, str] | None = None if states is None else StateFile(states)

    def memory_of(form: str, on_event: Callable[[Event], None]) -> Memory:
        return Memory(
            memory, form=form, bounds=bounds, prices=prices, only_if_cheaper=True, on_event=on_event, states=kept
        )

    proxy = Proxy(Upstream(upstream), memory_of, events=events)
    (socket,) = bind(host, port)
    hosts, where = Hosts.of(host, socket, allow_hosts), address(host, socket)
    files = _more_files()
    patient = replace(BOUNDS, body_s=_WAIT_S, write_s=_WAIT_S, connections=min(BOUNDS.connections, files // 3))
    _spare_time()
    make_server(proxy, socket, hosts=hosts, accepts=None, bounds=patient, ready=lambda: listening(where)).run()
    return proxy.counts


def _spare_time() -> None:
    """Milliseconds of each request: what was made at the start is never garbage, and httpcore looks for sniffio four
    times in each request, for which Python searches all folders of packages where it is not installed."""
    gc.freeze()
    if find_spec("sniffio") is None:
        sys.modules["sniffio"] = None  # type: ignore[assignment]


def _more_files() -> int:
    """Open files that the process may have, after asking for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return _FILES if soft == resource.RLIM_INFINITY else soft
