"""Peak memory of a stage by part: what is always there, and what each moment of a step adds to it.

moment              besides the gradients so far
forward's end       all activations, and the logits at their most: five copies (logits, scaled, log-probs, two for the
                    entropy)
backward's start    all activations, the gradient of the output matrix, gradients passed between layers
between contexts    only without packing: autograd adds their gradients up separately from those of earlier packs
backward's end      the gradients of the embedding and of a tied output matrix, which are added up
sampling            keys and values of the contexts sampled together

Ranks that shard weights hold 1/n of what is always there, and gather two layers and both ends of the network at a time.

Activations are the tensors that some backward formula needs, as found in transformers' layers and `packing/blocks.py`;
each counts once. Per token and layer, in numbers (D hidden, A queries, K keys, F feed-forward; fp32; keys and values
are repeated for the query heads that share them):

    two norms       3 D each: input, normalised, scaled
    attention       A queries, A keys, A values, A output, one log-sum per head
    feed-forward    4 F: gate, its activation, up, their product

In bf16 the norm's input is kept in fp32, the rest in bf16. A frozen matrix keeps no input, and a frozen norm keeps no
normalised values. `benchmarks/plan.py` compares the plan with torch's allocations.

Letters: T tokens, N of them sampled, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mem1.planning.networks import Network, Setup
from mem1.recipe.model import BLOCK
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


LOGIT_COPIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The networks of a stage, and the input of each of its backward passes."""

    load: Load
    """The largest pack."""
    packs: int
    """Backward passes per optimiser step; from the second on, gradients already exist."""
    at_once: int = 1
    """Packs computed at the same time."""
    critic: bool = False
    """Whether the values have a trunk of their own."""
    reference: bool = False
    """Whether there is a frozen copy of the policy."""
    entropy: bool = True
    """Whether the entropy of each sampled token is computed."""
    muon: bool = False
    """Whether matrices have one optimiser state per weight instead of two."""
    sampled_tokens: int = 0
    """Tokens of contexts and completions sampled together; 0: servers sample."""
    sampled_rows: int = 0
    """Number of contexts sampled together."""


def passes(network: Network, needs: Needs, setup: Setup, gradients: int, *, cuda: bool) -> dict[str, dict[str, int]]:
    """The moments of the forward and backward pass."""
    load, each = needs.load, kept(network, needs.load, setup)
    critic = kept(network, load, replace(setup, lora=None)).total * needs.critic  # it has no adapters
    states = load.sampled * network.hidden * setup.compute_bytes
    activations = needs.at_once * (each.total + critic)
    below = activations - needs.at_once * (1 + needs.critic) * each.top * load.packed
    before = gradients if needs.packs > 1 else 0
    extra = gradients * (needs.at_once if needs.at_once > 1 else 0)
    row = network.vocabulary * WIDE * needs.at_once
    logits = (LOGIT_COPIES if needs.entropy else LOGIT_COPIES - 2) * logits_rows(network, load) * row
    kept_logits = logits_kept(network, load) * needs.at_once
    others = 0 if load.packed else kept_logits - load.rows * row
    logits += others  # those of earlier contexts stay while the last one's are computed, and taken apart
    output = network.embedding_parameters * WIDE * (setup.lora is None)
    passing = needs.at_once * backward_bytes(network, load, setup, cuda=cuda)
    held = before + extra
    return {
        "forward's end": {
            "gradients": held,
            "activations": activations,
            "states": states * needs.at_once,
            "logits": max(logits, kept_logits),
        },
        "backward's start": {
            "gradients": held,
            "activations": below,
            "logits": others,
            "output matrix": output,
            "passing gradients": passing,
        },
        **(
            {}
            if load.contexts == 1
            else {"between contexts": _between(below + others, output, passing, gradients, needs)}
        ),
        "backward's end": {
            "gradients": gradients + extra,
            "passing gradients": 2 * output + needs.at_once * load.tokens * network.hidden * setup.compute_bytes,
        },
    }


def _between(activations: int, output: int, passing: int, gradients: int, needs: Needs) -> dict[str, int]:
    """After the first context every gradient exists; that of the next one's output matrix is added to it."""
    return {
        "gradients": gradients * (2 if needs.packs > 1 else 1),
        "activations": activations * (needs.load.contexts - 1) // needs.load.contexts,
        "output matrix": 2 * output,
        "passing gradients": passing,
    }


def sampling(network: Network, needs: Needs, setup: Setup) -> dict[str, int]:
    """Keys and values of all layers; per row the logits in fp32, and twice in fp64 for drawing tokens."""
    keys = 2 * network.layers * network.kv_width * needs.sampled_tokens * setup.sampling_bytes
    return {"keys and values": keys, "logits": needs.sampled_rows * network.vocabulary * (2 * WIDE + 2 * 8)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on one GPU, or in one process."""

    parts: Mapping[str, int]
    """Bytes by part at the peak, which is their sum."""
    moment: str
    """Moment of the peak."""
    moments: Mapping[str, int]
    """Total bytes at each moment."""
    least: int
    """Bytes of weights, gradients and optimiser states, however short attempts are."""
    host: int = 0
    """Bytes that one rank offloads to the machine's main memory."""

    @property
    def peak(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    """Parameter counts of one trained network with its adapters."""

    frozen: int
    trained: int
    quantized: int = 0
    """Frozen parameters in 4 bits, which every rank holds completely."""

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
        """Bytes that are sharded over the ranks."""
        return (self.frozen - self.quantized + self.trained) * WIDE

    @property
    def whole(self) -> int:
        """Bytes on each rank: half a byte per weight and one scale per block of weights."""
        return self.quantized // 2 + self.quantized // BLOCK * WIDE


def stage_memory(
    network: Network,
    needs: Needs,
    setup: Setup,
    *,
    ranks: int = 1,
    cuda: bool = False,
    beside: Mapping[str, int] | None = None,
) -> Memory:
    """Memory of one of `ranks` ranks, each with its own packs; `beside`: bytes of a server on its GPU that is awake."""
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
    # a complete policy besides the trained one
    whole = network.parameters * setup.sampling_bytes * setup.separate * (setup.engine == "local")
    fixed = {
        **stays,
        "weights: 4 bits": policy.whole,
        "weights: gathered": gathered,
        "weights: sampling": whole,
    }
    moments = {
        **passes(network, needs, setup, gradients, cuda=cuda),
        "optimiser": {"gradients": gradients, "temporary": _optimiser_temporary(network, gradients, cuda=cuda)},
        "sampling": {**sampling(network, needs, setup), **(beside or {})},
    }
    totals = {name: sum(fixed.values()) + sum(added.values()) for name, added in moments.items()}
    worst = max(totals, key=lambda name: totals[name])
    parts = {name: size for name, size in {**fixed, **moments[worst]}.items() if size}
    least = sum(fixed.values()) + gradients
    return Memory(parts=parts, moment=worst, moments=totals, least=least, host=host)


def _optimiser(network: Network, trained: int, needs: Needs) -> int:
    """AdamW has two states per weight, Muon one per weight of a matrix."""
    matrices = network.layers * network.matrix_parameters if needs.muon else 0
    return (2 * trained - matrices) * WIDE


def _optimiser_temporary(network: Network, gradients: int, *, cuda: bool) -> int:
    """AdamW's square roots: of all weights at once on CUDA, twice the largest tensor on a CPU."""
    largest = max(network.embedding_parameters, network.hidden * network.feed_forward)
    return gradients if cuda else 2 * min(largest * WIDE, gradients)


def _gathered(network: Network, setup: Setup, needs: Needs) -> int:
    """Gathered weights in the forward pass: both ends of the network and two layers, or everything."""
    assert setup.distributed is not None
    e = setup.compute_bytes
    ends = network.parameters - network.layers * network.layer_parameters
    layers = 2 if setup.distributed.reshard_after_forward else network.layers
    # a layer's full gradient exists before it is summed over the ranks
    # 4-bit matrices are not gathered; they are dequantised one at a time
    layer = network.layer_parameters - network.matrix_parameters * setup.quantized
    brought_back = network.hidden * network.feed_forward * setup.quantized
    return (ends + (layers + 1) * layer + brought_back) * e * (1 + needs.critic)


def server_memory(network: Network, setup: Setup, *, attempts: int, longest: int) -> Mapping[str, int]:
    """Bytes of a server of the policy: weights, and keys and values if all its attempts run at once.

    With less memory, the server lets attempts wait.
    """
    token = 2 * network.layers * network.kv_width * setup.publish_bytes
    return {"weights": network.parameters * setup.publish_bytes, "keys and values": attempts * longest * token}
