"""Memory of a stage by part: what stays, and what the moment of a step that needs most adds to it (`moments.py`).

Ranks that share weights hold 1/n of what stays, and gather two layers and the ends of the network at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mem1.planning.activations import WIDE
from mem1.planning.moments import Needs, passes, sampling
from mem1.planning.networks import Network
from mem1.planning.setup import Setup
from mem1.training.loop.recipe import BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on one GPU, or of one process."""

    parts: Mapping[str, int]
    """What they are at the moment of the peak; they sum to it."""
    moment: str
    """The moment of the peak."""
    moments: Mapping[str, int]
    """Total of each moment."""
    host: int = 0
    """Bytes on the machine's own memory: shards that were moved there, of one rank."""

    @property
    def peak(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    """Of one trained network with its adapters, as numbers of parameters."""

    frozen: int
    trained: int
    quantized: int = 0
    """Of the frozen ones; they are whole on every rank."""

    @classmethod
    def of(cls, network: Network, parameters: int, setup: Setup) -> _Weights:
        if setup.lora is None:
            return cls(frozen=0, trained=parameters)
        shapes = [shape for name, shape in network.matrices.items() if name in setup.adapted]
        adapters = network.layers * setup.lora.rank * sum(rows + columns for rows, columns in shapes)
        quantized = network.layers * network.matrix_parameters if setup.quantized else 0
        return cls(frozen=parameters, trained=adapters, quantized=quantized)

    @property
    def spread(self) -> int:
        """Bytes of what the ranks share."""
        return (self.frozen - self.quantized + self.trained) * WIDE

    @property
    def whole(self) -> int:
        """Bytes of what each rank has: half a byte a weight, and a scale for each block of them."""
        return self.quantized // 2 + self.quantized // BLOCK * WIDE


def stage_memory(network: Network, needs: Needs, setup: Setup, *, ranks: int = 1, cuda: bool = False) -> Memory:
    """Of one rank of `ranks`, each of which has packs of its own."""
    policy = _Weights.of(network, network.parameters, setup)
    critic = network.trunk_parameters * needs.critic  # it has no adapters: all of it is trained
    trained = policy.trained + critic
    shards = ranks if setup.distributed is not None else 1
    stays = {
        "weights: policy": policy.spread,
        "weights: critic": critic * WIDE,
        "weights: reference": network.parameters * WIDE * (needs.reference and setup.lora is None),
        "optimiser": _optimiser(network, trained, needs),
    }
    gradients = trained * WIDE
    stays = {name: size // shards for name, size in stays.items()}
    gradients //= shards
    gathered = _gathered(network, setup, needs) if setup.distributed is not None else 0
    host = 0
    if setup.distributed is not None and setup.distributed.cpu_offload:
        host = sum(stays.values()) + gradients
        stays, gradients = dict.fromkeys(stays, 0), 0
    elif setup.distributed is not None and setup.distributed.reference_offload:
        host = stays["weights: reference"]
        stays["weights: reference"] = 0
    # a whole policy beside the one that is trained, which servers leave to the machine's own memory
    whole = network.parameters * WIDE * setup.separate
    fixed = {
        **stays,
        "weights: 4 bits": policy.whole,
        "weights: gathered": gathered,
        "weights: sampling": whole // WIDE * setup.sampling_bytes * (setup.engine == "local"),
    }
    host += whole * (setup.engine == "servers")
    moments = {
        **passes(network, needs, setup, gradients, cuda=cuda),
        "optimiser": {"gradients": gradients, "temporary": _optimiser_temporary(network, gradients, cuda=cuda)},
        "sampling": sampling(network, needs, setup),
    }
    totals = {name: sum(fixed.values()) + sum(added.values()) for name, added in moments.items()}
    worst = max(totals, key=lambda name: totals[name])
    parts = {name: size for name, size in {**fixed, **moments[worst]}.items() if size}
    return Memory(parts=parts, moment=worst, moments=totals, host=host)


def _optimiser(network: Network, trained: int, needs: Needs) -> int:
    """AdamW has two states a weight; Muon one on matrices."""
    matrices = network.layers * network.matrix_parameters if needs.muon else 0
    return (2 * trained - matrices) * WIDE


def _optimiser_temporary(network: Network, gradients: int, *, cuda: bool) -> int:
    """AdamW's square roots: of all weights at once on CUDA, twice the largest weight on a CPU."""
    largest = max(network.embedding_parameters, network.hidden * network.feed_forward)
    return gradients if cuda else 2 * min(largest * WIDE, gradients)


def _gathered(network: Network, setup: Setup, needs: Needs) -> int:
    """Whole weights in the forward pass: ends of the network and two layers, or all of it."""
    assert setup.distributed is not None
    e = setup.compute_bytes
    ends = network.parameters - network.layers * network.layer_parameters
    layers = 2 if setup.distributed.reshard_after_forward else network.layers
    # a layer's whole gradient exists before it is summed over the ranks
    # nothing is gathered of matrices in 4 bits; one at a time is brought back from them
    layer = network.layer_parameters - network.matrix_parameters * setup.quantized
    brought_back = network.hidden * network.feed_forward * setup.quantized
    return (ends + (layers + 1) * layer + brought_back) * e * (1 + needs.critic)


def server_memory(network: Network, *, attempts: int, longest: int) -> Mapping[str, int]:
    """Bytes of one that serves the policy in bf16: weights, and keys and values if all its attempts run at once.

    A server with less room for them lets attempts wait.
    """
    token = 2 * network.layers * network.kv_width * 2
    return {"weights": network.parameters * 2, "keys and values": attempts * longest * token}
