"""FLOPs of a step by what they are spent on, as `evaluation/flops.py` counts them.

    forward pass     2 a matrix weight and token, 2 an output weight and sampled token, 4 layers * width a pair
    backward pass    twice that; where the matrices are frozen, once for them, as only the states have gradients
    computed again   the layers once more with activation checkpointing; logits that stand in memory piece by piece

Source: Kaplan et al. 2020 (arXiv 2001.08361), section 2.1; checkpointing, Korthikanti et al. 2022 (arXiv 2205.05198).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mem1.planning.activations import logits_rows
from mem1.planning.networks import Network
from mem1.planning.setup import Setup
from mem1.planning.workload import StepTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """How often the packs of a step go through which networks."""

    trained: int = 1
    """Forward and backward passes of the policy, and of a critic of its own."""
    critic: bool = False
    policy_before: bool = False
    """The policy is asked once before the first update."""
    reference: bool = False


def forward_flops(network: Network, *, tokens: int, rows: int, pairs: int) -> int:
    """`rows` tokens get logits."""
    shape = network.flops
    matrices = shape.parameters * tokens + shape.output_parameters * rows
    return 2 * matrices + 4 * shape.layers * shape.width * pairs


def update_flops(network: Network, tokens: StepTokens, passes: Passes, setup: Setup) -> Mapping[str, int]:
    """Of the passes over the packs."""
    layers = forward_flops(network, tokens=tokens.trained, rows=0, pairs=tokens.pairs)
    logits = forward_flops(network, tokens=0, rows=tokens.sampled, pairs=0)
    whole = layers + logits
    frozen = forward_flops(network, tokens=tokens.trained, rows=tokens.sampled, pairs=0) if setup.lora else 0
    backward = 2 * whole - frozen
    in_pieces = tokens.load.packed and tokens.load.sampled > logits_rows(network, tokens.load)
    again = layers * setup.checkpoints + logits * in_pieces
    critic_backward = 2 * layers - (frozen and forward_flops(network, tokens=tokens.trained, rows=0, pairs=0))
    critic = (layers + critic_backward + layers * setup.checkpoints) * passes.critic
    before = whole * passes.policy_before + layers * passes.critic + whole * passes.reference
    return {"before the update": before, "update": passes.trained * (whole + backward + again + critic)}


def sampling_flops(network: Network, tokens: StepTokens) -> Mapping[str, int]:
    """Of the model calls, as if no call found anything in a cache of the calls before."""
    return {
        "reading contexts": forward_flops(network, tokens=tokens.prefill, rows=0, pairs=tokens.prefill_pairs),
        "writing": forward_flops(network, tokens=tokens.sampled, rows=tokens.sampled, pairs=tokens.sampled_pairs),
    }
