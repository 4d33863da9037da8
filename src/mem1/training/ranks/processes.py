"""The processes of a training, as torchrun starts them: this rank, and how ranks exchange values.

    torchrun --nproc-per-node 2 -m mem1 train RECIPE

    with joined() as ranks:                     one process without torchrun: Ranks(), which waits for nobody
        ranks.gather_json(ranks.rank)           ->  [0, 1] on both

Everything that ranks exchange besides weights and gradients goes through `gather`, as bytes that are never unpickled.
Every rank must make the same calls in the same order; a rank that does not makes the others wait.
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
"""How long a rank waits for the others; rollouts may differ this much in duration."""


@dataclass(frozen=True)
class Ranks:
    """One process; `TorchRanks` are several."""

    rank: int = 0
    size: int = 1
    device: Device = ON_CPU
    """Device of this rank."""

    def gather(self, data: bytes) -> list[bytes]:
        """The data of each rank, in the order of the ranks, on every rank."""
        return [data]

    def gather_json(self, value: Any) -> list[Any]:
        """`gather` for JSON values."""
        return [json.loads(text) for text in self.gather(json.dumps(value).encode())]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return any(self.gather_json(flag))

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.gather(b"")

    def on_rank_zero(self, function: Callable[[], Any]) -> Any:
        """Call `function` on rank 0 only, and return its JSON result on every rank. Its error is raised on every rank.

        A UserError is a UserError everywhere; any other error is a RuntimeError on the other ranks.
        """
        if self.size == 1:
            return function()
        return self.on_each_rank(function if self.rank == 0 else lambda: None)[0]

    def on_each_rank(self, function: Callable[[], Any]) -> list[Any]:
        """Call `function` on every rank, and return all JSON results. An error of any rank is raised on every rank."""
        error: Exception | None = None
        result: dict[str, Any] = {}
        try:
            result["value"] = function()
        except UserError as caught:
            error, result = caught, {"mistake": str(caught)}
        except Exception as caught:
            error, result = caught, {"error": "".join(traceback.format_exception_only(caught)).strip()}
        if self.size == 1 and error is not None:
            raise error
        everything = self.gather_json(result)
        if error is not None:
            raise error
        for rank, other in enumerate(everything):
            if "mistake" in other:
                raise UserError(other["mistake"])
            if "error" in other:
                raise RuntimeError(f"rank {rank} failed: {other['error']}")
        return [other["value"] for other in everything]


ONE_PROCESS = Ranks()
"""One process, on its CPU."""


@dataclass(frozen=True)
class TorchRanks(Ranks):
    """The ranks of a process group."""

    group: distributed.ProcessGroup | None = None
    """None: the default group. Gathered data are in the computer's memory, so the group needs gloo."""

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
        """The same ranks with a process group of their own, for another thread."""
        group = distributed.new_group(backend="gloo", timeout=WAIT)
        assert isinstance(group, distributed.ProcessGroup)  # all ranks are in it
        return TorchRanks(rank=self.rank, size=self.size, device=self.device, group=group)


@contextmanager
def joined(*, grouped: bool = False, device: str = "auto", machine: Machine | None = None) -> Iterator[Ranks]:
    """Inside the block this process is one of torchrun's; without torchrun it is the only one.

    grouped     make a process group even for one process: sharding needs it
    device      name for `mem1.engines.device.choose`; on CUDA each of torchrun's processes gets the GPU of its rank
    machine     which devices there are; None: those that torch sees

    CPU tensors use gloo on CUDA machines too. At the end of the block all ranks wait for one another; a rank that
    fails does not wait, and torchrun ends the others. Raises UserError where there is no such device.
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
        # if a process ends while another still communicates with it, gloo aborts
        ranks.barrier()
    finally:
        distributed.destroy_process_group()
