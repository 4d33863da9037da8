"""`[rollout]` of a recipe: this process samples for training, or policy servers do.

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
    """Policy servers; each step pushes its weights to them before it samples."""

    engine: Literal["servers"] = "servers"
    servers: tuple[str, ...] = ()
    """Addresses of the servers; all have the same model."""
    servers_file: str | None = None
    """File with one address per line, instead of `servers`. It is re-read every `poll_s`: servers added to it join the
    run, servers removed from it get no more work."""
    weights_folder: str
    """Folder for the current weights, used by no other run. Pass it to `mem1 serve-policy` as --weights-folder; vLLM
    must see it under the same path, other servers need not."""
    kind: ServerKind = "mem1"
    """mem1: `mem1 serve-policy`. vllm: vLLM in development mode, with --logprobs-mode processed_logprobs."""
    transfer: Transfer = "folder"
    """folder: servers read `weights_folder`. nccl: the trainer's GPU sends them to the GPUs of vLLM servers that were
    started with --weight-transfer-config '{"backend": "nccl"}'; `weights_folder` may then be local."""
    model: str = "policy"
    """Name of the model on the servers."""
    token_env: str | None = None
    """Environment variable that holds the servers' access token; None: no token is sent."""
    concurrency: int = Field(default=64, ge=1, le=10_000)
    """Most completions in flight at a time."""
    tries: int = Field(default=120, ge=1)
    """Attempts per completion, each trying every server, about 2.5 seconds apart. After the last one (about five
    minutes) the rollout ends with engine_failed."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Longest time for one completion on one server."""
    update_timeout_s: float = Field(default=300.0, gt=0)
    """Longest time for a server to load weights; a slower one is not used until it has them. A step waits as long for
    the first server."""
    poll_s: float = Field(default=1.0, gt=0)
    """Time between two checks of the servers and of `servers_file`."""

    @model_validator(mode="after")
    def _has_servers(self) -> ServerRollouts:
        if bool(self.servers) == (self.servers_file is not None):
            raise ValueError("give either servers (addresses) or servers_file (a file with one address per line)")
        if self.transfer == "nccl" and self.kind != "vllm":
            raise ValueError("transfer = 'nccl' works with kind = 'vllm' only; set transfer = 'folder'")
        for url in self.servers:
            base_address(url)
        return self

    def listed(self) -> tuple[str, ...]:
        """The current addresses. Raises UserError where the file cannot be read or has none."""
        if self.servers_file is None:
            return tuple(map(base_address, self.servers))
        try:
            lines = Path(self.servers_file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read rollout.servers_file {self.servers_file}: {error}") from error
        written = [line.partition("#")[0].strip() for line in lines]
        if not any(written):
            raise UserError(f"rollout.servers_file {self.servers_file} has no address; write one per line")
        return tuple(dict.fromkeys(base_address(url) for url in written if url))

    def model_server(self) -> ModelServer:
        """Settings of the client that requests completions."""
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
