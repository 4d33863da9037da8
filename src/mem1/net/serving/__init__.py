"""A web server in this process: packages, sockets, signals, which clients it answers, how it reads requests.

check_packages()
(socket,) = bind("127.0.0.1", 8000)
hosts = Hosts.of("127.0.0.1", socket, allowed=["search.lan"])
make_server(app, socket, hosts=hosts, ready=lambda: print("ready")).run()    until Ctrl-C or SIGTERM
"""

from mem1.net.serving.connections import BOUNDS, Bounds
from mem1.net.serving.guard import FORM, JSON, Hosts
from mem1.net.serving.requests import (
    ClientGone,
    Refused,
    Room,
    answered,
    handle_refusals,
    read_body,
    read_json,
    refusal,
    unless_gone,
)
from mem1.net.serving.server import FINISH_S, address, bind, check_packages, handling, make_server

__all__ = [
    "BOUNDS",
    "FINISH_S",
    "FORM",
    "JSON",
    "Bounds",
    "ClientGone",
    "Hosts",
    "Refused",
    "Room",
    "address",
    "answered",
    "bind",
    "check_packages",
    "handle_refusals",
    "handling",
    "make_server",
    "read_body",
    "read_json",
    "refusal",
    "unless_gone",
]
