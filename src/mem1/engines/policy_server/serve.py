"""Runs the server of `server.py`: address, token, signals.

serve(model, codec, name="policy", host="127.0.0.1", port=8001, workers=1, token=None, weights_folder=Path("weights"),
      listening=print)
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from pathlib import Path

from transformers import PreTrainedModel

from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.net.serving import Hosts, address, bind, check_packages, make_server


def serve(
    model: PreTrainedModel,
    codec: Codec,
    *,
    name: str,
    host: str,
    port: int,
    workers: int,
    token: str | None,
    weights_folder: Path | None,
    listening: Callable[[str], None],
    allow_hosts: Sequence[str] = (),
) -> None:
    """Serve until SIGTERM or SIGINT, then finish the open requests and return.

    `listening` is called with the address once requests are answered; port 0: any free port. `allow_hosts`: names of
    the server that clients may use besides its address.

    Raises UserError where other machines could connect and there is no token, the address is taken, or a package or the
    folder is missing.
    """
    check_packages()
    if token is None and not is_loopback(host):
        raise UserError(
            f"other machines can connect to {host}, so the server needs a token: put one into an environment "
            "variable and name it with --token-env, or leave --host out"
        )
    if weights_folder is not None and not weights_folder.is_dir():
        raise UserError(
            f"--weights-folder {weights_folder} is not a folder; create it, and give trainer and servers the same one"
        )
    (socket,) = bind(host, port)
    hosts, where = Hosts.of(host, socket, allow_hosts), address(host, socket)
    from mem1.engines.policy_server.sampler import Sampler
    from mem1.engines.policy_server.server import make_app

    sampler = Sampler(model, codec, workers=workers)
    app = make_app(sampler, model=name, weights_folder=weights_folder, token=token)
    make_server(app, socket, hosts=hosts, ready=lambda: listening(where)).run()


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
