"""Seconds of a step on GPUs, by what they go to. Nothing of it was measured on a GPU.

    passes            FLOPs / (GPUs * peak * a share of it)
    collectives       bytes that ranks exchange / link, as far as they take longer than the passes that hide them
    optimiser         bytes of weights, gradients and states / bandwidth
    reading contexts  FLOPs / (sampling GPUs * peak * a share)
    writing           rounds of one token a row; a round reads all weights and the keys and values of its rows

The shares are assumptions, named below; a step that is measured tells the real ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mem1.planning.activations import WIDE
from mem1.planning.gpus import Cluster
from mem1.planning.networks import Network
from mem1.planning.setup import Setup
from mem1.planning.stages import SAMPLER_TOKENS, Stage
from mem1.planning.step_flops import sampling_flops, update_flops

TRAINING_SHARE = 0.4
"""Of the peak, in forward and backward passes; 0.38 to 0.43 is what Llama 3 reports for bf16 (arXiv 2407.21783,
table 4), on far larger machines."""
READING_SHARE = 0.5
"""Of the peak, while contexts are read."""
BANDWIDTH_SHARE = 0.6
"""Of the memory's bandwidth."""
LAUNCH_S = {"local": 4e-4, "servers": 4e-5}
"""A layer and round: kernels started one by one from Python, or replayed from a graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds, by part, in the order in which a step spends them."""

    parts: Mapping[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


def step_time(network: Network, stage: Stage, setup: Setup, cluster: Cluster) -> StepTime:
    """Of one step of the stage. Sampling and training take turns, also where they have GPUs of their own."""
    served = setup.engine == "servers"
    sampling_gpus = setup.server_gpus if served and stage.samples else cluster.gpus
    training_gpus = training(setup, cluster)
    parts: dict[str, float] = {}
    if stage.samples:
        rate = _peak(setup, cluster, sampling=True) * READING_SHARE * sampling_gpus
        parts["reading contexts"] = sampling_flops(network, stage.tokens)["reading contexts"] / rate
        parts["writing"] = _writing(network, stage, setup, cluster, sampling_gpus)
    rate = _peak(setup, cluster) * TRAINING_SHARE * training_gpus
    passes = {name: flops / rate for name, flops in update_flops(network, stage.tokens, stage.passes, setup).items()}
    parts |= {name: seconds for name, seconds in passes.items() if seconds}
    hidden = sum(passes.values())
    parts["collectives"] = max(0.0, _collectives(network, stage, setup, cluster, training_gpus) - hidden)
    states = (4 * WIDE if setup.lora is None else 0) * network.parameters * (1 + stage.passes.critic)
    parts["optimiser"] = 2 * states / training_gpus / (cluster.gpu.bandwidth_gb_s * 1e9 * BANDWIDTH_SHARE)
    return StepTime(parts=parts)


def training(setup: Setup, cluster: Cluster) -> int:
    """GPUs that train."""
    if setup.distributed is None:
        return 1
    return cluster.gpus - (setup.server_gpus if setup.engine == "servers" else 0)


def _peak(setup: Setup, cluster: Cluster, *, sampling: bool = False) -> float:
    """FLOPs a second; servers compute in bf16, what samples in the trainer's own process as the recipe says."""
    wide = (setup.sampling_bytes if sampling else setup.compute_bytes) == WIDE
    return (cluster.gpu.fp32_tflops if wide else cluster.gpu.bf16_tflops) * 1e12


def _writing(network: Network, stage: Stage, setup: Setup, cluster: Cluster, gpus: int) -> float:
    """Each call writes its mean length, all rows of a batch together."""
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
    """A pack of each rank gathers the weights, twice where they were dropped, and sums the gradients."""
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
