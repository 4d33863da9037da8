"""verl's engine for the device "cpu", and `mem1 serve-policy` in the place of its vLLM servers: see verl_cpu.py.

trainer's rank 0   Adapter.update_weights --weights--> Server.take --a file--> mem1 serve-policy
agent loop         verl's client --------------------> Server.generate --HTTP--> mem1 serve-policy
"""

# pyright: reportMissingImports=false, reportIncompatibleMethodOverride=false
from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import httpx
import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from safetensors.torch import save_file
from torch.distributed.fsdp import CPUOffloadPolicy
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.rollout import base, replica

from mem1.engines.weight_update import PublishedWeights, WeightRoutes
from mem1.engines.weights import checksum

EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")(
    transformer_impl.FSDPEngineWithLMHead
)
# the reference policy is offloaded, to memory that only a machine with a GPU can pin
transformer_impl.CPUOffloadPolicy = lambda **_: CPUOffloadPolicy(pin_memory=False)


class Server:
    """Ray's actor of one server: `mem1 serve-policy` in a process, requests as verl makes them, new weights."""

    def __init__(self, model: str) -> None:
        self.folder, self.steps = Path(mkdtemp(prefix="weights-", dir=Path(model).parent)), None
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        port = self.url.rpartition(":")[2].removesuffix("/v1")
        command = [sys.executable, "-m", "mem1", "serve-policy", model, "--port", port, "--device", "cpu"]
        # Ray kills its actors; the server then reads the end of its input
        watched = ["sh", "-c", '"$@" & read _; kill $!', "sh", *command, "--weights-folder", str(self.folder)]
        self.process = subprocess.Popen(watched, stdin=subprocess.PIPE)
        self.routes = WeightRoutes("mem1", model="policy", token=None, timeout_s=60.0)
        self.client = httpx.AsyncClient(trust_env=False, timeout=120.0)
        while True:
            assert self.process.poll() is None, "mem1 serve-policy ended"
            try:
                httpx.get(self.url.replace("/v1", "/health"), trust_env=False)
                return
            except httpx.ConnectError:
                time.sleep(0.2)

    def address(self) -> str:
        return self.url.removeprefix("http://").removesuffix("/v1")

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **others: Any
    ) -> replica.TokenOutput:
        wanted = {**sampling_params, "logprobs": 0, "prompt": prompt_ids, "return_token_ids": True}
        answer = await self.client.post(f"{self.url}/completions", json=wanted)
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        return replica.TokenOutput(
            token_ids=choice["token_ids"],
            log_probs=choice["logprobs"]["token_logprobs"],
            stop_reason="completed",
            extra_fields={"global_steps": self.steps},
        )

    def take(self, weights: Mapping[str, torch.Tensor], steps: int) -> None:
        """Have the server sample with these weights."""
        path = self.folder / f"weights-{steps:06d}" / "model.safetensors"
        path.parent.mkdir(exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, path)
        self.routes.update(self.url, PublishedWeights(version=steps, path=path, checksum=checksum(path)))
        self.steps = steps

    async def sleep(self) -> None:
        """It has no GPU to leave to the trainer."""


def _name(number: int) -> str:
    return f"mem1_server_{number}"


class Replica(replica.RolloutReplica):
    """A server of one rank, on the rank's node."""

    async def launch_servers(self) -> None:
        (worker,) = self.workers
        node = await worker.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
        where = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        options = {"name": _name(self.replica_rank), "scheduling_strategy": where, "max_concurrency": 64, "num_cpus": 0}
        self._server_handle = ray.remote(Server).options(**options).remote(self.model_config.path)
        self.servers = [self._server_handle]
        self._server_address = await self._server_handle.address.remote()


class Adapter(base.BaseRollout):
    """The trainer's side of a server: hands it the weights."""

    async def resume(self, tags: list[str]) -> None:
        pass

    async def release(self) -> None:
        pass

    async def update_weights(self, weights: Any, *, global_steps: int, **others: Any) -> None:
        found = {name: tensor.cpu() for name, tensor in weights}
        await ray.get_actor(_name(int(os.environ["RANK"]))).take.remote(found, global_steps)


base._ROLLOUT_REGISTRY["vllm", "async"] = "verl_servers.Adapter"
replica.RolloutReplicaRegistry.register("vllm", lambda: Replica)
