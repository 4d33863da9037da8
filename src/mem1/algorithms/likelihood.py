"""Supervised fine-tuning: the negative log-likelihood of the demonstrated tokens.

L = -sum_k logp_k / denominator
"""

from __future__ import annotations

from torch import Tensor


def negative_log_likelihood(logprobs_M: Tensor, *, denominator: float) -> Tensor:
    """Scalar loss of M demonstrated tokens; `denominator` counts the whole optimiser step."""
    return -logprobs_M.sum() / denominator
