"""`[rollout]` of a recipe: who samples for training, this process or servers of the policy.

[rollout]
engine = "servers"
servers = ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]
weights_folder = "runs/weights"
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from mem1.configuration import Config
from mem1.engines.servers import ModelServer, base_address
from mem1.engines.weight_update import ServerKind, Transfer
from mem1.errors import UserError


class LocalRollouts(Config):
    """The trainer's own process, and `workers - 1` others."""

    engine: Literal["local"] = "local"


class ServerRollouts(Config):
    """Servers of the policy, to which each step's weights are published before it samples."""

    engine: Literal["servers"] = "servers"
    servers: tuple[str, ...] = ()
    """Their addresses; all have the same model."""
    servers_file: str | None = None
    """A file of addresses, one a line, in the place of `servers`. It is read again and again: a server that is added
    joins in mid-run, one that is taken out gets no more work."""
    weights_folder: str
    """Folder for the weights of the moment, of this run alone. `mem1 serve-policy` has it as --weights-folder, under
    whatever name; vLLM must have it under the same name."""
    kind: ServerKind = "mem1"
    """mem1: `mem1 serve-policy`; vllm: in its development mode, with --logprobs-mode processed_logprobs."""
    transfer: Transfer = "folder"
    """folder: servers read `weights_folder`; nccl: the trainer's GPU sends the weights to those of vLLM, started with
    --weight-transfer-config '{"backend": "nccl"}', and the folder is this machine's own."""
    model: str = "policy"
    """The model's name on the servers."""
    token_env: str | None = None
    """Environment variable with the token that the servers ask for; None: none is sent."""
    concurrency: int = Field(default=64, ge=1, le=10_000)
    """Completions that are under way at a time."""
    tries: int = Field(default=120, ge=1)
    """Of one completion, all servers each time, 2.5 seconds apart on average (some five minutes in all); then its
    attempt ends with engine_failed."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Of one completion on one server."""
    update_timeout_s: float = Field(default=300.0, gt=0)
    """For a server to take weights; one that does not is left out until it has. Also how long a step waits for the
    first server that has them."""
    poll_s: float = Field(default=1.0, gt=0)
    """Between two looks at the servers and at `servers_file`."""

    @model_validator(mode="after")
    def _has_servers(self) -> ServerRollouts:
        if bool(self.servers) == (self.servers_file is not None):
            raise ValueError("give servers or servers_file: the addresses, or a file with one a line")
        if self.transfer == "nccl" and self.kind != "vllm":
            raise ValueError("transfer = 'nccl' is vLLM's; with kind = 'mem1' it is 'folder'")
        for url in self.servers:
            base_address(url)
        return self

    def listed(self) -> tuple[str, ...]:
        """The addresses of the moment. Raises UserError where the file cannot be read or has none."""
        if self.servers_file is None:
            return tuple(map(base_address, self.servers))
        try:
            lines = Path(self.servers_file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read rollout.servers_file {self.servers_file}: {error}") from error
        written = [line.partition("#")[0].strip() for line in lines]
        if not any(written):
            raise UserError(f"rollout.servers_file {self.servers_file} has no address; write one a line")
        return tuple(dict.fromkeys(base_address(url) for url in written if url))

    def model_server(self) -> ModelServer:
        """The same as the client of completions has it."""
        return ModelServer(
            urls=self.listed(),
            model=self.model,
            endpoint="completions",
            api_key_env=self.token_env,
            concurrency=self.concurrency,
            tries=self.tries,
            timeout_s=self.timeout_s,
            first_wait_s=0.5,
            longest_wait_s=5.0,
            processed_logprobs=True,
        )


Rollouts = Annotated[LocalRollouts | ServerRollouts, Field(discriminator="engine")]
