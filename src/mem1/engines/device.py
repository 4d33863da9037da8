"""Which device computes with a policy, and in which precision: one rule for every command and recipe.

    choose("auto", Machine(gpus=("NVIDIA H100",)))              ->  cuda:0 (NVIDIA H100)
    choose("auto", Machine(mps=True))                           ->  mps
    choose("auto", Machine(mps=True), training=True)            ->  cpu
    choose("cuda:1", Machine(gpus=("NVIDIA H100",)))            ->  UserError: it has cuda:0 (NVIDIA H100), cpu

Apple's GPU (mps) has no float64, which training and `mem1 verify` need: it samples and evaluates only.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from mem1.errors import UserError
from mem1.net.threads import cores

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The devices that a machine has besides its CPU."""

    gpus: tuple[str, ...] = ()
    """Names of its CUDA devices, in order."""
    mps: bool = False
    """Whether torch can use Apple's GPU."""
    bfloat16: bool = False
    """Whether its CPU has units for products in bf16 (AVX512-BF16, AMX), which are twice as fast as those in fp32."""
    pretended: bool = False
    """Tensors stay on the CPU, whichever device is chosen: for tests on a machine without a GPU."""

    @classmethod
    def here(cls) -> Machine:
        """The devices that torch finds here."""
        number = torch.cuda.device_count() if torch.cuda.is_available() else 0
        gpus = tuple(torch.cuda.get_device_name(i) for i in range(number))
        bfloat16 = torch.cpu._is_avx512_bf16_supported()  # every CPU with AMX has it too
        return cls(gpus=gpus, mps=torch.backends.mps.is_available(), bfloat16=bfloat16)

    @property
    def listed(self) -> str:
        """All devices, for messages."""
        named = [f"cuda:{i} ({name})" for i, name in enumerate(self.gpus)]
        return ", ".join([*named, *(["mps"] if self.mps else []), "cpu"])


@dataclass(frozen=True, kw_only=True)
class Device:
    """Where a process computes."""

    name: str = "cpu"
    """cpu, mps, or cuda:N."""
    model: str = ""
    """Name of a GPU according to its driver; empty for other devices."""
    at: torch.device = CPU
    """Where tensors go."""
    units: bool = False
    """Whether it is a CPU with units for products in bf16."""

    def __str__(self) -> str:
        return f"{self.name} ({self.model})" if self.model else self.name

    @property
    def is_cpu(self) -> bool:
        return self.name == "cpu"

    @property
    def bfloat16(self) -> bool:
        """Whether products of wide matrices are faster in bf16 than in fp32."""
        return self.name.startswith("cuda") or self.units

    def workers(self, wanted: int) -> int:
        """Number of processes that sample or train: `wanted` on a CPU, else 1."""
        return wanted if self.is_cpu else 1

    def worker_warnings(self, wanted: int) -> tuple[str, ...]:
        """A line for the user where fewer processes sample than `wanted`, or more than there are cores."""
        if self.is_cpu and wanted > max(cores(), 2):
            return (f"{wanted} workers share {cores()} cores: more than one a core are slower, and take long to start",)
        if self.workers(wanted) == wanted:
            return ()
        return (f"{wanted} workers are for a CPU; on {self.name} one process computes",)


ON_CPU = Device()


@dataclass(frozen=True, kw_only=True)
class Computed:
    """Device and precision of a result, for messages and files."""

    device: str
    """Device, such as "cuda:0 (NVIDIA H100)"."""
    dtype: str
    """Precision of sampling, such as "float32"."""
    attention: str | None = None
    """Precision of log-probs and training; None: only sampling was done."""

    def __str__(self) -> str:
        attention = "" if self.attention is None else f", attention by {self.attention}"
        return f"device: {self.device}, {self.dtype}{attention}"

    def record(self) -> dict[str, str]:
        """As JSON."""
        attention = {} if self.attention is None else {"attention": self.attention}
        return {"device": self.device, "dtype": self.dtype, **attention}


def choose(wanted: str, machine: Machine, *, training: bool = False, local_rank: int | None = None) -> Device:
    """The device that `wanted` (auto, cpu, cuda, cuda:N or mps) means on this machine.

    training        the device also trains, or checks training in float64
    local_rank      number of this process among those of torchrun on this machine, each with a GPU of its own;
                    None: it is not one of torchrun's

    Raises UserError where the machine has no such device, listing those that it has.
    """
    kind, _, number = wanted.partition(":")
    if kind == "cuda" or (kind == "auto" and machine.gpus):
        return _gpu(wanted, int(number) if number else None, machine, local_rank)
    if kind == "mps" and training:
        raise UserError(
            "device mps samples and evaluates only, because it has no float64; use cpu for training and mem1 verify"
        )
    if kind == "mps" and not machine.mps:
        raise UserError(f"there is no device mps: this machine has {machine.listed}")
    if machine.mps and not training and kind in ("auto", "mps"):
        return Device(name="mps", at=CPU if machine.pretended else torch.device("mps"))
    return replace(ON_CPU, units=machine.bfloat16)


def _gpu(wanted: str, number: int | None, machine: Machine, local_rank: int | None) -> Device:
    if local_rank is not None and number is not None:
        raise UserError(f"device {wanted}: under torchrun each process uses the GPU of its own rank; set cuda or auto")
    if local_rank is not None and local_rank >= len(machine.gpus):
        raise UserError(
            f"the process of local rank {local_rank} has no GPU of its own: this machine has {machine.listed}; start "
            "torchrun with a smaller --nproc-per-node, or set device cpu"
        )
    index = number if number is not None else local_rank or 0
    if index >= len(machine.gpus):
        raise UserError(
            f"there is no device {wanted}: this machine has {machine.listed}; set device auto to use what there is"
        )
    at = CPU if machine.pretended else torch.device("cuda", index)
    return Device(name=f"cuda:{index}", model=machine.gpus[index], at=at)


def sampling_dtype(wanted: str, device: Device, stored: torch.dtype | None) -> torch.dtype:
    """Precision of a policy that is only sampled or evaluated.

    auto never rounds a weight: bfloat16 on CUDA where the weights are `stored` in it, float32 everywhere else.
    """
    if wanted == "auto":
        return torch.bfloat16 if device.name.startswith("cuda") and stored is torch.bfloat16 else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[wanted]


def with_float64(device: torch.device) -> torch.device:
    """The device itself, or the CPU where it has no float64."""
    return CPU if device.type == "mps" else device


def dtype_name(dtype: torch.dtype) -> str:
    """torch.float32  ->  "float32"."""
    return str(dtype).removeprefix("torch.")


def release_unused() -> None:
    """Give memory of the GPU that torch keeps for later back to the driver, for other processes."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def free_memory(device: Device) -> int | None:
    """Free bytes of a GPU; None: the device is no GPU of CUDA, or a pretended one."""
    return torch.cuda.mem_get_info(device.at)[0] if device.at.type == "cuda" else None


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Inside the block, this thread and threads that it starts treat denormal numbers as zero.

    A sharp softmax is full of numbers below float32's normal range, and a CPU computes with them so slowly that they
    can cost a small model half its speed (`benchmarks/denormals.py`). Other libraries keep their arithmetic.
    """
    before = _flushed()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def _flushed() -> bool:
    """Whether denormals are treated as zero now; torch has no function for it."""
    return sys.float_info.min / 2 == 0.0
