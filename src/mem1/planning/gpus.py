"""GPUs by their data sheets, and the values of `--gpus`.

    cluster("8xH100")      ->  8 GPUs on one machine
    cluster("2x8xH100")    ->  2 machines of 8

Peaks are without sparsity; nothing here was measured. A gigabyte is 10^9 bytes, as on a data sheet; drivers report up
to 7 % more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mem1.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One model of GPU."""

    name: str
    memory_gb: float
    bf16_tflops: float
    """Peak of dense bf16 products summed in fp32."""
    fp32_tflops: float
    """Peak of fp32 products without TF32, torch's default."""
    bandwidth_gb_s: float
    """Memory bandwidth."""
    link_gb_s: float
    """Bandwidth to the other GPUs of its machine, in one direction."""
    source: str


_LOCKWOOD = "https://glennklockwood.com/garden/processors/"
_READ = "read 2026-11-22"
_KINDS = (
    Gpu(
        name="H100",
        memory_gb=80,
        bf16_tflops=989.4,
        fp32_tflops=66.9,
        bandwidth_gb_s=3350,
        link_gb_s=450,
        source=f"SXM5; {_LOCKWOOD}h100, which quotes NVIDIA's data sheet; {_READ}",
    ),
    Gpu(
        name="H200",
        memory_gb=141,
        bf16_tflops=989.4,
        fp32_tflops=66.9,
        bandwidth_gb_s=4800,
        link_gb_s=450,
        source=f"SXM; https://itkb.uw.cz/2026/06/nvidia-h200-vs-b300-precisions-cores.html (2026-06-22); {_READ}",
    ),
    Gpu(
        name="A100",
        memory_gb=80,
        bf16_tflops=312,
        fp32_tflops=19.5,
        bandwidth_gb_s=2039,
        link_gb_s=300,
        source=f"SXM4 80 GB; {_LOCKWOOD}A100, which quotes NVIDIA's data sheet; {_READ}",
    ),
    Gpu(
        name="L40S",
        memory_gb=48,
        bf16_tflops=362.05,
        fp32_tflops=91.6,
        bandwidth_gb_s=864,
        link_gb_s=32,
        source=f"PCIe 4; https://www.mullet.se/product.html?product_id=355414, a dealer's copy of the sheet; {_READ}",
    ),
    Gpu(
        name="4090",
        memory_gb=24,
        bf16_tflops=165.15,
        fp32_tflops=82.58,
        bandwidth_gb_s=1008,
        link_gb_s=32,
        source=f"GeForce RTX, PCIe 4; https://waredb.com/processor/nvidia-geforce-rtx-4090; {_READ}",
    ),
)
GPUS: Mapping[str, Gpu] = {gpu.name: gpu for gpu in _KINDS}
BETWEEN_MACHINES_GB_S = 50.0
"""Per GPU and direction: InfiniBand of 400 Gbit/s a GPU, which is assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Machines that are all alike."""

    gpu: Gpu
    machines: int
    per_machine: int

    @property
    def gpus(self) -> int:
        return self.machines * self.per_machine

    @property
    def link_gb_s(self) -> float:
        """What a collective over all GPUs goes through at its narrowest, per GPU and direction."""
        return self.gpu.link_gb_s if self.machines == 1 else min(BETWEEN_MACHINES_GB_S, self.gpu.link_gb_s)

    def __str__(self) -> str:
        counts = (self.per_machine,) if self.machines == 1 else (self.machines, self.per_machine)
        return "x".join(map(str, counts)) + f"x{self.gpu.name}"


def cluster(text: str) -> Cluster:
    """What `--gpus` names. Raises UserError for an unknown kind or a malformed count."""
    *counts, kind = text.split("x")
    known = {name.lower(): gpu for name, gpu in GPUS.items()}
    if kind.lower() not in known:
        raise UserError(f"--gpus {text}: unknown GPU {kind!r}; known: {', '.join(GPUS)}; write 8xH100 or 2x8xH100")
    if len(counts) > 2 or not all(re.fullmatch("[0-9]{1,6}", count) and int(count) for count in counts):
        raise UserError(f"--gpus {text}: write GPUs x kind, or machines x GPUs x kind, such as 8xH100 or 2x8xH100")
    machines, per_machine = [1, 1, *map(int, counts)][-2:]
    return Cluster(gpu=known[kind.lower()], machines=machines, per_machine=per_machine)
