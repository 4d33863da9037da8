"""Bytes that autograd keeps of a forward pass until the backward pass.

Each tensor that some backward formula needs counts once, as found in transformers' layers and
`packing/blocks.py`. Per token and layer, in numbers (D hidden, A queries, K keys, F feed-forward; fp32; keys
and values are repeated for the query heads that share them):

    two norms       3 D each: input, normalised, scaled
    attention       A queries, A keys, A values, A output, one log-sum per head
    feed-forward    4 F: gate, its activation, up, their product

In bf16 the norm's input is kept in fp32, the rest in bf16. A frozen matrix keeps no input, and a frozen norm keeps no
normalised values. `benchmarks/plan.py` compares the sum with torch's allocations.

Letters: T tokens, N of them sampled, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

from mem1.planning.networks import Network
from mem1.planning.placement import Setup
from mem1.training.logprobs import LOGITS_AT_ONCE

WIDE = 4
"""Bytes of a number where the code insists on fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Input of one backward pass."""

    tokens: int
    """T; with packing, shared prefixes count once."""
    sampled: int
    """N."""
    packed: bool = True
    rows: int = 0
    """Sampled tokens of the longest completion; used without packing, where each context has its own logits."""
    contexts: int = 1
    """Number of contexts; used without packing, where each adds its gradients separately in one backward pass."""
    alone: int = 0
    """Tokens of the longest context; used without packing, where the backward pass handles one at a time."""
    part: int = 0
    """Query-key pairs of the largest part of the attention; used on a GPU with attention by blocks."""


def layer_bytes(network: Network, load: Load, setup: Setup) -> int:
    """Bytes kept of one layer."""
    return load.tokens * round(
        _norms(network, setup) + _attention(network, load, setup) + _feed_forward(network, setup)
    )


def _trains(setup: Setup, matrix: str) -> bool:
    """Whether the matrix's input is needed: for its own gradient, or its adapter's."""
    return setup.lora is None or matrix in setup.adapted


def _norms(network: Network, setup: Setup) -> int:
    """Bytes per token: the norms before attention and feed-forward."""
    D, e = network.hidden, setup.compute_bytes
    normalised = e * D * (setup.lora is None)
    before_attention = e * D * any(_trains(setup, name) for name in ("q_proj", "k_proj", "v_proj"))
    before_feed_forward = e * D * any(_trains(setup, name) for name in ("gate_proj", "up_proj"))
    return 2 * (WIDE * D + normalised + WIDE) + before_attention + before_feed_forward


def _attention(network: Network, load: Load, setup: Setup) -> int:
    """Bytes per token: queries, keys, values, output; adapters' inner values; Qwen3's norms of queries and keys."""
    A, K, e = network.query_width, network.kv_width, setup.compute_bytes
    keys = A if load.packed else K  # block attention repeats them for the heads that share them
    inside = e * (2 * A + 2 * keys) + WIDE * network.heads
    normed = (WIDE + e * (setup.lora is None)) * (A + K) + WIDE * (network.heads + network.kv_heads)
    return inside + normed * network.norms_queries + _adapters(setup, ("q_proj", "k_proj", "v_proj", "o_proj"))


def _feed_forward(network: Network, setup: Setup) -> int:
    product = _trains(setup, "down_proj")
    return (3 + product) * network.feed_forward * setup.compute_bytes + _adapters(
        setup, ("gate_proj", "up_proj", "down_proj")
    )


def _adapters(setup: Setup, matrices: tuple[str, ...]) -> int:
    if setup.lora is None:
        return 0
    return setup.lora.rank * setup.compute_bytes * sum(name in setup.adapted for name in matrices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Bytes kept of one network for one load."""

    layers: int
    """All layers; with checkpointing only their inputs."""
    rotations: int
    """Sines and cosines of the positions, shared by all layers."""
    top: int
    """The last norm, and the states for logits and values; freed before the backward pass reaches the layers."""
    again: int
    """One whole layer while it is recomputed; 0: no checkpointing."""

    @property
    def total(self) -> int:
        return self.layers + self.rotations + self.top + self.again


def kept(network: Network, load: Load, setup: Setup) -> Kept:
    """Bytes kept until the backward pass."""
    T, D, e = load.tokens, network.hidden, setup.compute_bytes
    each = layer_bytes(network, load, setup)
    rotations = T * 2 * network.head_size * e
    top = T * (WIDE + e) * D + load.sampled * D * e
    if setup.checkpoints:
        return Kept(layers=network.layers * T * D * e, rotations=rotations, top=top, again=each)
    return Kept(layers=network.layers * each, rotations=rotations, top=top, again=0)


def logits_rows(network: Network, load: Load) -> int:
    """Sampled tokens whose logits are in memory at the same time."""
    if not load.packed:
        return load.rows
    return min(load.sampled, max(1, LOGITS_AT_ONCE // network.vocabulary))


def logits_kept(network: Network, load: Load) -> int:
    """Bytes of log-probabilities over the vocabulary kept until the backward pass; 0 if they are recomputed."""
    if not load.packed:
        return load.sampled * network.vocabulary * WIDE
    in_pieces = load.sampled > logits_rows(network, load)
    return 0 if in_pieces else load.sampled * network.vocabulary * WIDE


def backward_bytes(network: Network, load: Load, setup: Setup, *, cuda: bool) -> int:
    """Peak of the gradients passed between layers: at a layer's product of gate and up.

    With attention by blocks on a GPU, also the scores of the largest part, which exist four times at once.
    """
    tokens = load.tokens if load.packed else load.alone
    layer = tokens * (2 * network.feed_forward + 2 * network.hidden) * setup.compute_bytes
    return layer + (cuda and setup.blocks) * 4 * network.heads * load.part * WIDE
