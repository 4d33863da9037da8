"""The moments of a step at which memory may peak, and what each adds to the weights and states that stay.

moment              gradients so far, and
forward's end       all activations, and the logits at their most: five copies (logits, scaled, log-probs, two of
                    the entropy's)
backward's start    all activations, the output matrix's gradient, passing gradients
between contexts    where they are not packed: autograd adds their gradients up beside those of earlier packs
backward's end      the gradients of the embedding and of a tied output matrix, which are added up
sampling            keys and values of the contexts that are sampled together
"""

from __future__ import annotations

from dataclasses import dataclass

from mem1.planning.activations import WIDE, Load, backward_bytes, kept, logits_kept, logits_rows
from mem1.planning.networks import Network
from mem1.planning.setup import Setup

LOGIT_COPIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Which networks a stage has, and what each of its backward passes works on."""

    load: Load
    """The largest pack."""
    packs: int
    """Backward passes before an optimiser step; from the second on the gradients are there already."""
    at_once: int = 1
    """Packs that are computed at a time."""
    critic: bool = False
    """A trunk of its own for the values."""
    reference: bool = False
    """A frozen copy of the policy."""
    entropy: bool = True
    """The entropy of each sampled token is computed."""
    muon: bool = False
    """Matrices have one state a weight in place of two."""
    sampled_tokens: int = 0
    """Contexts and completions that are sampled together, in tokens; 0: others sample."""
    sampled_rows: int = 0
    """How many they are."""


def passes(network: Network, needs: Needs, setup: Setup, gradients: int, *, cuda: bool) -> dict[str, dict[str, int]]:
    """The three moments of forward and backward pass."""
    load, networks = needs.load, 1 + needs.critic
    each = kept(network, load, setup)
    states = load.sampled * network.hidden * setup.compute_bytes
    activations = needs.at_once * networks * each.total
    below = activations - needs.at_once * networks * each.top * load.packed
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
    """One context is done, so a sum for each weight is begun; the next one's output matrix is added to its sum."""
    return {
        "gradients": gradients * (2 if needs.packs > 1 else 1),
        "activations": activations * (needs.load.contexts - 1) // needs.load.contexts,
        "output matrix": 2 * output,
        "passing gradients": passing,
    }


def sampling(network: Network, needs: Needs, setup: Setup) -> dict[str, int]:
    """Keys and values of all layers; of each row the logits in fp32, and twice in fp64 to draw from."""
    keys = 2 * network.layers * network.kv_width * needs.sampled_tokens * setup.sampling_bytes
    return {"keys and values": keys, "logits": needs.sampled_rows * network.vocabulary * (2 * WIDE + 2 * 8)}
