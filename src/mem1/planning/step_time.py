"""FLOPs of a step by purpose, and its estimated seconds on GPUs, given by their data sheets.

    forward pass      2 per matrix weight and token, 2 per output weight and sampled token, 4 layers * width per pair
    backward pass     twice that; once for frozen matrices, since only the states have gradients
    computed again    the layers once more with activation checkpointing; logits that are computed in pieces

    passes            FLOPs / (GPUs * peak * a share of it)
    collectives       bytes exchanged by the ranks / link, as far as they take longer than the passes that hide them
    optimiser         bytes of weights, gradients and states / bandwidth
    reading contexts  FLOPs / (sampling GPUs * peak * a share)
    publishing        bytes of the published weights / rates of one core: written, read, and with mem1 summed by both
    writing           rounds of one token per row; a round reads all weights and the keys and values of its rows

`cluster("2x8xH100")` is two machines of 8 GPUs. Peaks are without sparsity; a gigabyte is 10^9 bytes, as on a data
sheet, and drivers report up to 7 % more. None of the times were measured on a GPU: the shares below are assumptions;
measure a step to know the real ones. Sources: Kaplan et al. 2020 (arXiv 2001.08361), section 2.1; checkpointing,
Korthikanti et al. 2022 (arXiv 2205.05198).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mem1.errors import UserError
from mem1.planning.memory import WIDE, logits_rows
from mem1.planning.networks import Network, Setup
from mem1.planning.stages import SAMPLER_TOKENS, Passes, Stage, StepTokens


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
    link_gb_s: float
    """Bandwidth to the other GPUs of its machine, in one direction."""
    source: str


_LOCKWOOD = "https://glennklockwood.com/garden/processors/"
_READ = "read 2026-11-22"
_DEALER = "https://www.mullet.se/product.html?product_id=355414, a dealer's copy of the sheet"
_H200 = "https://itkb.uw.cz/2026/06/nvidia-h200-vs-b300-precisions-cores.html (2026-06-22)"
_WAREDB = "https://waredb.com/processor/nvidia-geforce-rtx-4090"
_KINDS = (
    Gpu("H100", 80, 989.4, 66.9, 3350, 450, f"SXM5; {_LOCKWOOD}h100, which quotes NVIDIA's data sheet; {_READ}"),
    Gpu("H200", 141, 989.4, 66.9, 4800, 450, f"SXM; {_H200}; {_READ}"),
    Gpu("A100", 80, 312, 19.5, 2039, 300, f"SXM4 80 GB; {_LOCKWOOD}A100, which quotes NVIDIA's data sheet; {_READ}"),
    Gpu("L40S", 48, 362.05, 91.6, 864, 32, f"PCIe 4; {_DEALER}; {_READ}"),
    Gpu(
        "4090",
        24,
        165.15,
        82.58,
        1008,
        32,
        f"GeForce RTX, PCIe 4; {_WAREDB}; {_READ}",
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


def forward_flops(network: Network, *, tokens: int, rows: int, pairs: int) -> int:
    """FLOPs of one forward pass with logits for `rows` tokens."""
    shape = network.flops
    matrices = shape.parameters * tokens + shape.output_parameters * rows
    return 2 * matrices + 4 * shape.layers * shape.width * pairs


def update_flops(network: Network, tokens: StepTokens, passes: Passes, setup: Setup) -> Mapping[str, int]:
    """FLOPs of all passes over the packs, by purpose."""
    layers = forward_flops(network, tokens=tokens.trained, rows=0, pairs=tokens.pairs)
    logits = forward_flops(network, tokens=0, rows=tokens.sampled, pairs=0)
    whole = layers + logits
    frozen = forward_flops(network, tokens=tokens.trained, rows=tokens.sampled, pairs=0) if setup.lora else 0
    backward = 2 * whole - frozen
    in_pieces = tokens.load.packed and tokens.load.sampled > logits_rows(network, tokens.load)
    again = layers * setup.checkpoints + logits * in_pieces
    critic = (3 * layers + layers * setup.checkpoints) * passes.critic  # it has no adapters
    before = whole * passes.policy_before + layers * passes.critic + whole * passes.reference
    return {"before the update": before, "update": passes.trained * (whole + backward + again + critic)}


def sampling_flops(network: Network, tokens: StepTokens) -> Mapping[str, int]:
    """FLOPs of the model calls, without reuse of cached prefixes."""
    return {
        "reading contexts": forward_flops(network, tokens=tokens.prefill, rows=0, pairs=tokens.prefill_pairs),
        "writing": forward_flops(network, tokens=tokens.sampled, rows=tokens.sampled, pairs=tokens.sampled_pairs),
    }


TRAINING_SHARE = 0.4
"""Share of the peak in forward and backward passes; Llama 3 reports 0.38 to 0.43 for bf16 on far larger clusters
(arXiv 2407.21783, table 4)."""
READING_SHARE = 0.5
"""Share of the peak while contexts are read."""
BANDWIDTH_SHARE = 0.6
"""Share of the memory bandwidth that is reached."""
WRITTEN_GB_S = 0.7
"""Rate at which one core copies and writes, or reads, weights that are published."""
SUMMED_GB_S = 0.6
"""Rate of BLAKE2b on one core."""
LAUNCH_S = {"local": 4e-4, "servers": 4e-5}
"""Seconds per layer and round: kernels launched one by one from Python, or replayed from a graph."""


def step_time(network: Network, stage: Stage, setup: Setup, cluster: Cluster) -> Mapping[str, float]:
    """Seconds of one step of the stage, by part; sampling and training alternate, even on separate GPUs."""
    served = setup.engine == "servers"
    sampling_gpus = setup.server_gpus if served and stage.samples and not setup.sleep else cluster.gpus
    training_gpus = training(setup, cluster)
    parts: dict[str, float] = {}
    if stage.samples:
        rate = _peak(setup, cluster, sampling=True) * READING_SHARE * sampling_gpus
        parts["reading contexts"] = sampling_flops(network, stage.tokens)["reading contexts"] / rate
        parts["writing"] = _writing(network, stage, setup, cluster, sampling_gpus)
        if served:
            published = network.parameters * setup.publish_bytes / 1e9
            parts["publishing"] = 2 * published * (1 / WRITTEN_GB_S + setup.summed / SUMMED_GB_S)
    rate = _peak(setup, cluster) * TRAINING_SHARE * training_gpus
    passes = {name: flops / rate for name, flops in update_flops(network, stage.tokens, stage.passes, setup).items()}
    parts |= {name: seconds for name, seconds in passes.items() if seconds}
    hidden = sum(passes.values())
    parts["collectives"] = max(0.0, _collectives(network, stage, setup, cluster, training_gpus) - hidden)
    states = 4 * WIDE * network.parameters * ((setup.lora is None) + stage.passes.critic)
    parts["optimiser"] = 2 * states / training_gpus / (cluster.gpu.bandwidth_gb_s * 1e9 * BANDWIDTH_SHARE)
    return parts


def training(setup: Setup, cluster: Cluster) -> int:
    """Number of GPUs that train."""
    if setup.distributed is None:
        return 1
    return cluster.gpus - (setup.server_gpus if setup.engine == "servers" and not setup.sleep else 0)


def _peak(setup: Setup, cluster: Cluster, *, sampling: bool = False) -> float:
    """FLOPs per second; servers compute in bf16, sampling in the trainer's process as the recipe says."""
    wide = (setup.sampling_bytes if sampling else setup.compute_bytes) == WIDE
    return (cluster.gpu.fp32_tflops if wide else cluster.gpu.bf16_tflops) * 1e12


def _writing(network: Network, stage: Stage, setup: Setup, cluster: Cluster, gpus: int) -> float:
    """Seconds for writing completions of mean length, all rows of a batch together."""
    tokens = stage.tokens
    served = setup.engine == "servers"
    e = setup.sampling_bytes
    attempts = -(-tokens.attempts // gpus)
    rows = attempts if served else min(attempts, max(1, SAMPLER_TOKENS // tokens.longest))
    rounds = tokens.sampled / tokens.attempts * -(-attempts // rows)
    context = (tokens.prefill + tokens.sampled / 2) / tokens.calls
    keys = 2 * network.layers * network.kv_width * context * rows
    read = (network.parameters + keys) * e / (cluster.gpu.bandwidth_gb_s * 1e9 * BANDWIDTH_SHARE)
    return rounds * max(read, network.layers * LAUNCH_S[setup.engine])


def _collectives(network: Network, stage: Stage, setup: Setup, cluster: Cluster, ranks: int) -> float:
    """Seconds for gathering weights per pack (twice with resharding) and summing gradients over the ranks."""
    if setup.distributed is None or ranks == 1:
        return 0.0
    e = setup.compute_bytes
    gathers = 2 if setup.distributed.reshard_after_forward else 1
    networks = 1 + stage.passes.critic
    forward_only = stage.passes.policy_before + stage.passes.critic + stage.passes.reference
    packs = -(-stage.tokens.packs // ranks)
    trained = stage.passes.trained * networks * (gathers * e + (WIDE if setup.lora is None else 0))
    numbers = network.parameters * packs * (trained + forward_only * e)
    return numbers * (ranks - 1) / ranks / (cluster.link_gb_s * 1e9)
