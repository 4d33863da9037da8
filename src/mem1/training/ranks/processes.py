"""The processes of a training, as torchrun starts them: how ranks exchange values and share weights.

    torchrun --nproc-per-node 2 -m mem1 train RECIPE

    with joined() as ranks:                     one process without torchrun: Ranks(), which waits for nobody
        ranks.gather_json(ranks.rank)           ->  [0, 1] on both
    shard(model, Distributed(), device=ranks.device.at)
    as_forward(model, lambda: score(model, ...))        inside, weights are gathered layer by layer

Everything that ranks exchange besides weights and gradients goes through `gather`, as bytes that are never unpickled.
Every rank must make the same calls in the same order; a rank that does not makes the others wait.

Weights, gradients and optimiser states are sharded by FSDP2 (`fully_shard`). The loss of a rank is its share of a sum
whose denominator is that of the whole step, so gradients are summed over the ranks and never averaged. Layers are
gathered one at a time; everything else (embeddings, last norm, head) is one group, gathered from the beginning of
`as_forward` to its end, and again in the backward pass.

Source: Zhao et al. 2023 (PyTorch FSDP, arXiv 2304.11277).
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor

from mem1.engines.device import ON_CPU, Device, Machine, choose
from mem1.errors import UserError
from mem1.recipe.model import Distributed
from mem1.training.ranks.layers import layers

WAIT = timedelta(minutes=60)
"""How long a rank waits for the others; rollouts may differ this much in duration."""
_JOIN = timedelta(minutes=10)
"""How long a rank waits for the others to start."""


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
        return [part[: int(length)].numpy().tobytes() for part, length in zip(parts, lengths, strict=True)]

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
    fails does not wait, and torchrun ends the others. Raises UserError where there is no such device, and where another
    rank does not start or is lost.
    """
    under_torchrun, chosen = _under_torchrun(), own_device(device, machine)
    cuda = chosen.at.type == "cuda"
    if cuda:
        torch.cuda.set_device(chosen.at)
    if not under_torchrun and not grouped:
        yield replace(ONE_PROCESS, device=chosen)
        return
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    with _lost_ranks_named():
        if under_torchrun:
            store, rank, size = next(rendezvous("env://", timeout=_JOIN))
            store = _of_this_start(store, size)
            _await_start(store, rank, size)
            distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=WAIT)
        else:
            distributed.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        ranks = TorchRanks(rank=distributed.get_rank(), size=distributed.get_world_size(), device=chosen)
        try:
            yield ranks
            # if a process ends while another still communicates with it, gloo aborts
            ranks.gather(b"")
        finally:
            distributed.destroy_process_group()


def _under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def own_device(device: str, machine: Machine | None = None) -> Device:
    """The choice of `joined` for this process."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0")) if _under_torchrun() else None
    return choose(device, machine or Machine.here(), training=True, local_rank=local_rank)


def world() -> tuple[int, int]:
    """This process's rank and the number of torchrun's processes, before they are joined; (0, 1) without torchrun."""
    if not _under_torchrun():
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def _of_this_start(store: Store, size: int) -> Store:
    """The store without what ranks wrote before torchrun started them again: it keeps their addresses (torch 2.13).

    Several torchruns count restarts each for itself; docs/distributed.md gives them a new store for each start.
    """
    one_torchrun = os.environ.get("LOCAL_WORLD_SIZE") == str(size)
    return PrefixStore(f"start {os.environ['TORCHELASTIC_RESTART_COUNT']}", store) if one_torchrun else store


def _await_start(store: Store, rank: int, size: int) -> None:
    """Wait until every rank has got here: one that was killed while it started would be waited for much longer."""
    store.set(f"mem1/{rank}", "")
    store.wait([f"mem1/{other}" for other in range(size)], _JOIN)


@contextmanager
def _lost_ranks_named() -> Iterator[None]:
    """Raises UserError in place of what torch raises where another rank is lost: gloo's errors have no class."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, distributed.DistError) and "gloo" not in str(error):
            raise
        reason = str(error).splitlines()[0].rpartition("] ")[2]
        raise UserError(
            f"the other processes of this training cannot be reached ({reason}); torchrun starts the rest again if "
            "--max-restarts allows it; otherwise continue with --resume"
        ) from error


Output = TypeVar("Output", Tensor, tuple[Tensor, ...])
_FORWARD = "_mem1_forward"


def shard(
    module: nn.Module,
    config: Distributed,
    *,
    device: torch.device,
    offload: bool = False,
    half: bool = False,
) -> None:
    """Shard the module over all ranks, in place; every rank must hold the same weights.

    device              where this rank computes, which need not be the GPU that its machine has
    offload             keep its weights in the computer's memory
    half                compute in bf16
    """
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    away = device.type == "cuda" and (offload or config.cpu_offload)  # without a GPU they are there anyway
    frozen = {p for p in module.parameters() if not p.is_floating_point()}  # 4-bit weights: whole on every rank
    options = {
        "mesh": init_device_mesh(device.type, (distributed.get_world_size(),)),
        "ignored_params": frozen,
        "mp_policy": precision if half else MixedPrecisionPolicy(),
        "offload_policy": CPUOffloadPolicy() if away else OffloadPolicy(),
    }
    for layer in layers(module):
        if isinstance(layer, FSDPModule):
            continue
        fully_shard(layer, reshard_after_forward=config.reshard_after_forward, **options)
    # the outermost group always reshards after forward: gathered weights must not outlive an optimiser step
    fully_shard(module, reshard_after_forward=True, **options)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
    setattr(module, _FORWARD, MethodType(_call, module))
    register_fsdp_forward_method(module, _FORWARD)


def _call(_module: nn.Module, function: Callable[[], Output]) -> Output:
    """FSDP hooks the backward pass to the returned tensors, which must not be views."""
    output = function()
    return output.clone() if isinstance(output, Tensor) else tuple(tensor.clone() for tensor in output)  # type: ignore[return-value]


def as_forward(module: nn.Module, function: Callable[[], Output]) -> Output:
    """Call `function` as if it were the module's forward pass; it returns a tensor, or a tuple of tensors.

    All code that reads a sharded module's weights must go through here; for other modules it is a plain call.
    """
    if not isinstance(module, FSDPModule):
        return function()
    output = getattr(module, _FORWARD)(function)
    if not torch.is_grad_enabled():  # no backward pass will free the gathered weights, which the next step makes stale
        for part in module.modules():
            if isinstance(part, FSDPModule):
                part.reshard()
    return output


def whole(tensor: Tensor) -> Tensor:
    """The tensor with the shards of all ranks; every rank must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
