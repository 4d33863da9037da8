"""The processes of a training, as torchrun starts them: who I am, and what the others have.

    torchrun --nproc-per-node 2 -m mem1 train RECIPE

    with joined() as ranks:                     one process without torchrun: Ranks(), which waits for nobody
        ranks.gather_json(ranks.rank)           ->  [0, 1] on both

All that ranks tell one another besides weights and gradients goes through `gather`, as bytes that are never
unpickled. Every rank calls the same gathers in the same order; one that is missing makes the others wait.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch._C._distributed_c10d import HashStore

from mem1.engines.device import ON_CPU, Device, Machine, choose
from mem1.errors import UserError

WAIT = timedelta(minutes=60)
"""How long a rank waits for the others: a rollout of one may take so much longer than that of another."""


@dataclass(frozen=True)
class Ranks:
    """One process alone; `TorchRanks` has company."""

    rank: int = 0
    size: int = 1
    device: Device = ON_CPU
    """Where this rank computes."""

    def gather(self, data: bytes) -> list[bytes]:
        """What each rank has given, in the order of the ranks, on every rank."""
        return [data]

    def gather_json(self, value: Any) -> list[Any]:
        """As `gather`, for what JSON can hold."""
        return [json.loads(said) for said in self.gather(json.dumps(value).encode())]

    def any(self, flag: bool) -> bool:
        """Whether it holds on some rank."""
        return any(self.gather_json(flag))

    def barrier(self) -> None:
        """Go on when all have come here."""
        self.gather(b"")

    def on_rank_zero(self, function: Callable[[], Any]) -> Any:
        """What `function` returns on rank 0, where alone it is called; JSON. Its error is raised on every rank.

        A UserError stays one; another error is a RuntimeError elsewhere than on rank 0.
        """
        if self.size == 1:
            return function()
        return self.on_each_rank(function if self.rank == 0 else lambda: None)[0]

    def on_each_rank(self, function: Callable[[], Any]) -> list[Any]:
        """What `function` returns on every rank, in their order; JSON. An error of any is raised on every rank."""
        error: Exception | None = None
        said: dict[str, Any] = {}
        try:
            said["value"] = function()
        except UserError as caught:
            error, said = caught, {"mistake": str(caught)}
        except Exception as caught:
            error, said = caught, {"error": "".join(traceback.format_exception_only(caught)).strip()}
        if self.size == 1 and error is not None:
            raise error
        everything = self.gather_json(said)
        if error is not None:
            raise error
        for rank, other in enumerate(everything):
            if "mistake" in other:
                raise UserError(other["mistake"])
            if "error" in other:
                raise RuntimeError(f"rank {rank} failed: {other['error']}")
        return [other["value"] for other in everything]


ONE_PROCESS = Ranks()
"""This process alone, on its CPU."""


@dataclass(frozen=True)
class TorchRanks(Ranks):
    """The ranks of a process group."""

    group: distributed.ProcessGroup | None = None
    """None: the default one. What is gathered lies in the computer's memory, so it needs gloo."""

    def gather(self, data: bytes) -> list[bytes]:
        own = torch.tensor(len(data))
        lengths = [torch.zeros_like(own) for _ in range(self.size)]
        distributed.all_gather(lengths, own, group=self.group)
        longest = max(1, *(int(length) for length in lengths))
        padded = torch.zeros(longest, dtype=torch.uint8)
        if data:
            padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        distributed.all_gather(parts, padded, group=self.group)
        pairs: Sequence[tuple[torch.Tensor, torch.Tensor]] = list(zip(parts, lengths, strict=True))
        return [part[: int(length)].numpy().tobytes() for part, length in pairs]

    def new_group(self) -> TorchRanks:
        """The same ranks on a line of their own, for a thread beside the main one."""
        group = distributed.new_group(backend="gloo", timeout=WAIT)
        assert isinstance(group, distributed.ProcessGroup)  # all ranks are in it
        return TorchRanks(rank=self.rank, size=self.size, device=self.device, group=group)


@contextmanager
def joined(*, grouped: bool = False, device: str = "auto", machine: Machine | None = None) -> Iterator[Ranks]:
    """Inside, this process is one of torchrun's; without torchrun it is alone.

    grouped     alone too it has a process group, which sharding needs
    device      as `mem1.engines.device.choose` takes it; on CUDA each of torchrun's processes has the GPU of its rank
    machine     whose devices there are; None: this machine, as torch sees it

    Tensors of the CPU go over gloo on CUDA too. At the end of the block all ranks wait for one another; a rank that
    leaves it with an error does not, and torchrun ends the others. Raises UserError where there is no such device.
    """
    under_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    local_rank = int(os.environ.get("LOCAL_RANK", "0")) if under_torchrun else None
    chosen = choose(device, machine or Machine.here(), training=True, local_rank=local_rank)
    cuda = chosen.at.type == "cuda"
    if cuda:
        torch.cuda.set_device(chosen.at)
    if not under_torchrun and not grouped:
        yield ONE_PROCESS if chosen.is_cpu else replace(ONE_PROCESS, device=chosen)
        return
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    if under_torchrun:
        distributed.init_process_group(backend, timeout=WAIT)
    else:
        distributed.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    ranks = TorchRanks(rank=distributed.get_rank(), size=distributed.get_world_size(), device=chosen)
    try:
        yield ranks
        # A process that ends while another still talks to it makes gloo abort.
        ranks.barrier()
    finally:
        distributed.destroy_process_group()
