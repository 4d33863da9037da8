"""GPUs by their data sheets, and the seconds that a step may take on them: estimates.

    cluster("2x8xH100")         ->  two machines of 8 GPUs

    passes              FLOPs / (GPUs * peak * TRAINING_SHARE)
    reading contexts    FLOPs / (GPUs that sample * peak * TRAINING_SHARE)
    writing             one round per token of a row; a round reads all weights, and the keys and values of its rows,
                        at BANDWIDTH_SHARE of the bandwidth

Peaks are without sparsity. A gigabyte is 10^9 bytes, as on a data sheet; drivers report up to 7 % more. Sampling and
training are assumed to alternate; exchanging weights, the optimiser and the search engine are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mem1.errors import UserError

TRAINING_SHARE = 0.4
"""Assumed share of the peak. On an H200 the passes over token trees by FlexAttention reached 0.13 with 0.5 billion
weights, 0.25 with 1.5 and 0.47 with 7 (benchmarks/results/gpu); Llama 3 reports 0.38 to 0.43 on far larger clusters
(arXiv 2407.21783, table 4)."""
BANDWIDTH_SHARE = 0.6
"""Assumed share of the memory bandwidth while completions are written."""
LOCAL_LAYER_S = 2e-3
"""Least seconds per layer and round in the trainer's own process, measured on an H200 for 0.5 to 7 billion weights."""


@dataclass(frozen=True, slots=True)
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
    source: str


_LOCKWOOD = "https://glennklockwood.com/garden/processors/"
GPUS: Mapping[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu("H100", 80, 989.4, 66.9, 3350, f"SXM5; {_LOCKWOOD}h100"),
        Gpu(
            "H200", 141, 989.4, 66.9, 4800, "SXM; https://itkb.uw.cz/2026/06/nvidia-h200-vs-b300-precisions-cores.html"
        ),
        Gpu("A100", 80, 312, 19.5, 2039, f"SXM4; {_LOCKWOOD}A100"),
        Gpu("L40S", 48, 362.05, 91.6, 864, "https://www.mullet.se/product.html?product_id=355414"),
        Gpu("4090", 24, 165.15, 82.58, 1008, "https://waredb.com/processor/nvidia-geforce-rtx-4090"),
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


def passes_s(flops: float, gpu: Gpu, *, gpus: int, half: bool) -> float:
    """Seconds of products, in bf16 (`half`) or fp32, on so many GPUs."""
    return flops / (gpus * (gpu.bf16_tflops if half else gpu.fp32_tflops) * 1e12 * TRAINING_SHARE)


def writing_s(read_bytes: float, gpu: Gpu, *, rounds: float, layers: int, local: bool) -> float:
    """Seconds of `rounds` of one token per row, each of which reads `read_bytes`."""
    return rounds * max(read_bytes / (gpu.bandwidth_gb_s * 1e9 * BANDWIDTH_SHARE), local * layers * LOCAL_LAYER_S)
