"""Forward FLOPs of a trajectory: what its model calls cost, with and without a cache of prefixes.

A call of n tokens, of which the cache holds the first c and o are sampled, multiplies and adds

    2 * parameters * (n - c)                      every processed token through every matrix of the layers
    2 * output_parameters * o                     one row of logits a sampled token
    4 * layers * width * pairs                    scores and weighted sums, 2 each a (token, visible token) pair

    pairs = (c + 1) + (c + 2) + ... + n = n (n + 1) / 2 - c (c + 1) / 2

Norms, biases, rotations and softmax are left out, as usual; they are under a hundredth. The last sampled token of a
call counts as processed, as in `total_tokens`. Source: Kaplan et al. 2020 (arXiv 2001.08361), section 2.1, whose count
of attention has the scores alone; the weighted sums are added as in Chowdhery et al. 2022 (arXiv 2204.02311),
appendix B, and a token sees itself and those before it only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mem1.records import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What the formula needs of a dense transformer with full causal attention."""

    parameters: int
    """Weights in the matrices of all layers; embeddings, output matrix, norms and biases left out."""
    output_parameters: int
    """Weights of the matrix that gives the logits, vocabulary times width, also where it is the embedding's."""
    layers: int
    width: int
    """Query heads times the dimension of a head."""


def forward_flops(trajectory: Trajectory, shape: ModelShape, *, cached: Sequence[int] | None = None) -> int:
    """FLOPs of all model calls; `cached` are the tokens that each of them finds in a cache, None: there is no cache."""
    return sum(
        _flops(shape, cached=c, tokens=turn.num_tokens, sampled=len(turn.completion_ids))
        for c, turn in zip(cached or [0] * len(trajectory.turns), trajectory.turns, strict=True)
    )


def _flops(shape: ModelShape, *, cached: int, tokens: int, sampled: int) -> int:
    pairs = (tokens * (tokens + 1) - cached * (cached + 1)) // 2
    matrices = shape.parameters * (tokens - cached) + shape.output_parameters * sampled
    return 2 * matrices + 4 * shape.layers * shape.width * pairs
