"""What autograd keeps of a forward pass until the backward pass, in bytes.

Counted by reading transformers' layers and `packing/block_attention.py`: each tensor that some backward formula needs,
once. Per token and layer, in numbers (D hidden, A queries, K keys, F feed-forward; fp32; keys and values are repeated
for the query heads that share them):

    two norms       3 D each: input, normalised, scaled
    attention       A queries, A keys, A values, A output, one log-sum a head
    feed-forward    4 F: gate, its activation, up, their product

In bf16 the norm's input is kept in fp32, the rest in bf16. A frozen matrix keeps no input, and a frozen norm not what
it has normalised. `benchmarks/plan.py` compares the sum with what torch allocates.

Letters: T tokens, N of them sampled, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

from mem1.planning.networks import Network
from mem1.planning.setup import Setup
from mem1.training.logprobs import LOGITS_AT_ONCE

WIDE = 4
"""Bytes of a number where the code insists on fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one backward pass works on."""

    tokens: int
    """T, contexts that share a prefix counted once where they are packed."""
    sampled: int
    """N."""
    packed: bool = True
    rows: int = 0
    """Sampled tokens of the longest completion; of effect where contexts are not packed: each has its own logits."""
    contexts: int = 1
    """Of effect where they are not packed: each adds to the gradients by itself, in one backward pass."""
    alone: int = 0
    """Tokens of the longest context; of effect where they are not packed: the backward pass takes one at a time."""
    part: int = 0
    """Query-key pairs of the largest part of the attention; of effect on a GPU with attention by blocks."""


def layer_bytes(network: Network, load: Load, setup: Setup) -> int:
    """Kept of one layer."""
    return load.tokens * round(
        _norms(network, setup) + _attention(network, load, setup) + _feed_forward(network, setup)
    )


def _trains(setup: Setup, matrix: str) -> bool:
    """Whether the matrix's input is needed: for its own gradient, or its adapter's."""
    return setup.lora is None or matrix in setup.adapted


def _norms(network: Network, setup: Setup) -> int:
    """Of a token: the norms before attention and feed-forward."""
    D, e = network.hidden, setup.compute_bytes
    normalised = e * D * (setup.lora is None)
    before_attention = e * D * any(_trains(setup, name) for name in ("q_proj", "k_proj", "v_proj"))
    before_feed_forward = e * D * any(_trains(setup, name) for name in ("gate_proj", "up_proj"))
    return 2 * (WIDE * D + normalised + WIDE) + before_attention + before_feed_forward


def _attention(network: Network, load: Load, setup: Setup) -> int:
    """Of a token: queries, keys, values, output; the adapters' inner values; Qwen3's norms of queries and keys."""
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
    """Bytes of one network on one load."""

    layers: int
    """Of all layers; of their inputs alone where they are computed again."""
    rotations: int
    """Their sines and cosines, which all layers share."""
    top: int
    """The last norm, and the states that logits and values are read from: gone once the layers' turn comes."""
    again: int
    """One whole layer, while it is computed again; 0: nothing is."""

    @property
    def total(self) -> int:
        return self.layers + self.rotations + self.top + self.again


def kept(network: Network, load: Load, setup: Setup) -> Kept:
    """Until the backward pass."""
    T, D, e = load.tokens, network.hidden, setup.compute_bytes
    each = layer_bytes(network, load, setup)
    rotations = T * 2 * network.head_size * e
    top = T * (WIDE + e) * D + load.sampled * D * e
    if setup.checkpoints:
        return Kept(layers=network.layers * T * D * e, rotations=rotations, top=top, again=each)
    return Kept(layers=network.layers * each, rotations=rotations, top=top, again=0)


def logits_rows(network: Network, load: Load) -> int:
    """Sampled tokens whose logits stand in memory together."""
    if not load.packed:
        return load.rows
    return min(load.sampled, max(1, LOGITS_AT_ONCE // network.vocabulary))


def logits_kept(network: Network, load: Load) -> int:
    """Log-probabilities over the vocabulary that stay until the backward pass: none where they are computed again."""
    if not load.packed:
        return load.sampled * network.vocabulary * WIDE
    in_pieces = load.sampled > logits_rows(network, load)
    return 0 if in_pieces else load.sampled * network.vocabulary * WIDE


def backward_bytes(network: Network, load: Load, setup: Setup, *, cuda: bool) -> int:
    """Passing gradients, at their most: where a layer's product of gate and up is taken apart.

    By blocks on a GPU also the scores of the attention's largest part, which exist four times at once.
    """
    tokens = load.tokens if load.packed else load.alone
    layer = tokens * (2 * network.feed_forward + 2 * network.hidden) * setup.compute_bytes
    return layer + (cuda and setup.blocks) * 4 * network.heads * load.part * WIDE
