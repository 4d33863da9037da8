"""Bounds that follow from the precision, not from the processor that a test was written on.

Adding up n numbers in another order moves the sum by at most n * u times the sum of their absolute values, u being half
the precision's eps (Higham, Accuracy and Stability of Numerical Algorithms, 4.2); errors of sums that follow each other
add up. Which order a processor takes depends on its vectors and threads, so two ways of computing may lie that far
apart:

    rounding(model, tokens=100, magnitude=10.0)   ->  3.0e-4 for a tiny float32 model, 5.6e-13 in float64

What an optimiser has normalised has no such bound in float32: AdamW moves a weight whose gradient is rounding alone as
far as any other, and so does Muon with small singular values. Tests compare such weights in float64.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

FLOAT32 = torch.finfo(torch.float32).eps / 2
"""Largest relative error of one rounding."""


def additions(model: PreTrainedModel, tokens: int) -> int:
    """Numbers that are added one after another from the ids of `tokens` tokens to a log-prob of the last."""
    config = model.config
    heads = config.num_attention_heads
    attention = 3 * config.hidden_size + (getattr(config, "head_dim", None) or config.hidden_size // heads) + 2 * tokens
    feed_forward = 2 * config.hidden_size + config.intermediate_size
    return config.num_hidden_layers * (attention + feed_forward) + 2 * config.hidden_size + config.vocab_size


def rounding(model: PreTrainedModel, *, tokens: int, magnitude: float) -> float:
    """How far log-probs of size `magnitude` may lie apart by the order of addition, in the model's precision."""
    return additions(model, tokens) * torch.finfo(model.dtype).eps / 2 * magnitude


def gradient_rounding(model: PreTrainedModel, *, tokens: int, magnitude: float) -> float:
    """The same of a gradient, which passes each sum forwards, twice backwards, and is itself a sum over tokens."""
    return (
        3 * rounding(model, tokens=tokens, magnitude=magnitude) + tokens * torch.finfo(model.dtype).eps / 2 * magnitude
    )
