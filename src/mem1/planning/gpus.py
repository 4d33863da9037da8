"""GPUs by their data sheets.

    cluster("2x8xH100")         ->  two machines of 8 GPUs

A gigabyte is 10^9 bytes, as on a data sheet; drivers report up to 7 % more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mem1.errors import UserError


@dataclass(frozen=True, slots=True)
class Gpu:
    """One model of GPU."""

    name: str
    memory_gb: float
    source: str


_LOCKWOOD = "https://glennklockwood.com/garden/processors/"
GPUS: Mapping[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu("H100", 80, f"SXM5; {_LOCKWOOD}h100"),
        Gpu("H200", 141, "SXM; https://itkb.uw.cz/2026/06/nvidia-h200-vs-b300-precisions-cores.html"),
        Gpu("A100", 80, f"SXM4; {_LOCKWOOD}A100"),
        Gpu("L40S", 48, "https://www.mullet.se/product.html?product_id=355414"),
        Gpu("4090", 24, "https://waredb.com/processor/nvidia-geforce-rtx-4090"),
    )
}
"""Read 2026-11-22."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Machines that are all alike."""

    gpu: Gpu
    machines: int
    per_machine: int

    @property
    def gpus(self) -> int:
        return self.machines * self.per_machine

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
