"""`mem1 serve-policy`: a policy as a server of OpenAI's protocol that takes new weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mem1.cli.devices import DeviceOption, DtypeOption
from mem1.cli.options import work_begins
from mem1.configuration.numbers import MOST_WORKERS


def command(
    invocation: typer.Context,
    policy: Annotated[str, typer.Argument(help="Folder of a policy, or the name of a shipped one.")],
    host: Annotated[str, typer.Option(help="Address to listen on; any but this machine's own needs --token-env.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8001,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name by which the server may be called besides its address; repeatable.", show_default=False
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="What requests call the model.")] = "policy",
    token_env: Annotated[
        str | None, typer.Option(help="Environment variable with the token that requests must bear.")
    ] = None,
    weights_folder: Annotated[
        Path | None, typer.Option(help="Folder from which new weights are taken; without it none are.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=MOST_WORKERS, help="Processes that sample; for small models on a CPU.")
    ] = 1,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
) -> None:
    """Sample for others over HTTP, with token ids and log-probabilities, until Ctrl-C or SIGTERM."""
    from mem1.cli.devices import chosen, few_workers
    from mem1.cli.display import stderr
    from mem1.engines.policy_server.serve import serve
    from mem1.engines.servers import api_key
    from mem1.errors import UserError
    from mem1.training.weights.policy import load_policy

    on = chosen(invocation, device)
    if weights_folder is not None and dtype == "bfloat16":
        raise UserError("--weights-folder takes the weights of a training, which are float32: leave --dtype out")
    work_begins()
    console = stderr()
    token = api_key(token_env)
    loaded = load_policy(policy, device=on, dtype=dtype or "auto" if weights_folder is None else "float32")
    for note in (str(loaded.computed(on)), *few_workers(on, workers)):
        console.print(note, markup=False, soft_wrap=True)
    serve(
        loaded.model,
        loaded.codec,
        name=name,
        host=host,
        allow_hosts=allow_host or (),
        port=port,
        workers=on.workers(workers),
        token=token,
        weights_folder=weights_folder,
        listening=lambda address: console.print(
            f"Serving {policy} on {address}; Ctrl-C stops", soft_wrap=True, markup=False
        ),
    )
    console.print("Stopped.")
