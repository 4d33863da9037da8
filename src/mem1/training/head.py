"""From last hidden states to log-probabilities and entropies, without all logits in memory at once.

    head_columns(model, hidden_ND, targets_N, 1.0, "value")     ->  (N, 2): log-probs of the targets, entropies in nats

    151,936 tokens of vocabulary, 8,192 states      4.98 GB of logits in fp32: pieces of 441 states, 0.27 GB each

Few logits are kept for the backward pass. Many are computed in pieces, and again in the backward pass, where a piece's
probabilities become its gradient in place. So the gradient of the head is added up where it is kept, and a piece costs
at most 8 bytes per logit. Pieces are as large as that allows: each reads and updates the whole head.

Products are in the type of `torch.autocast`, else in that of the states; all else is in fp32 (fp64 for fp64 states).

Letters: N states, R of a piece, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear
from transformers import PreTrainedModel

LOGITS_KEPT = 1 << 24
"""Most logits that are kept for the backward pass."""
LOGITS_AT_ONCE = 1 << 26
"""Most logits of a piece, where they are not kept."""
_HEAD_ROWS = 1 << 13
"""Rows of the head whose gradient is converted at a time."""

Entropy = Literal["none", "value", "gradient"]
"""Whether the entropy of each token's distribution is computed, and with gradient."""


def head_columns(
    model: PreTrainedModel, hidden: Tensor, targets: Tensor, temperature: float, entropy: Entropy
) -> Tensor:
    """`columns` of the logits of final hidden states. Raises ValueError if temperature is not positive."""
    head = model.get_output_embeddings()
    assert isinstance(head, nn.Linear)
    if len(hidden) * head.out_features <= LOGITS_KEPT:
        return columns(head(hidden), targets, temperature, entropy)
    _check(temperature)
    rows = max(1, LOGITS_AT_ONCE // head.out_features)
    return _Pieces.apply(hidden, head.weight, head.bias, targets, temperature, entropy, rows)


def columns(logits: Tensor, targets: Tensor, temperature: float, entropy: Entropy) -> Tensor:
    """(rows, V) logits -> (rows, 1) log-probs of the targets, or (rows, 2) with the entropies in nats.

    Raises ValueError if temperature is not positive.
    """
    _check(temperature)
    scaled = logits.to(_wide(logits.dtype)) / temperature
    logprobs_V = torch.log_softmax(scaled, dim=-1)
    logprobs = logprobs_V.gather(-1, targets[:, None])
    if entropy == "none":
        return logprobs
    if entropy == "value":
        return torch.cat([logprobs, torch.special.entr(logprobs_V.detach().exp()).sum(-1, keepdim=True)], dim=-1)
    # entr has no finite gradient where a probability rounds to 0
    return torch.cat([logprobs, -(logprobs_V.exp() * logprobs_V).sum(-1, keepdim=True)], dim=-1)


def _check(temperature: float) -> None:
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0 in training, not {temperature}")


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


class _Pieces(torch.autograd.Function):
    """`columns` of hidden weight' + bias, R rows at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        temperature: float,
        entropy: Entropy,
        rows: int,
    ) -> Tensor:
        kind = hidden_ND.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden_ND.dtype
        found = hidden_ND.new_empty((len(hidden_ND), 1 if entropy == "none" else 2), dtype=_wide(dtype))
        head = _in(dtype, weight_VD, bias_V)
        for piece in _slices(len(hidden_ND), rows):
            logprobs_RV = _logprobs(hidden_ND[piece], *head, temperature)
            found[piece, :1] = logprobs_RV.gather(1, targets_N[piece, None])
            if entropy != "none":
                found[piece, 1] = torch.special.entr(logprobs_RV.exp_()).sum(-1)
            del logprobs_RV  # not beside those of the next piece
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, targets_N, found)
        ctx.temperature, ctx.dtype, ctx.rows, ctx.entropy = temperature, dtype, rows, entropy
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_found: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V, targets_N, found = ctx.saved_tensors
        d_hidden, d_weight, d_bias = (
            torch.zeros_like(x) if needed else None
            for x, needed in zip((hidden_ND, weight_VD, bias_V), ctx.needs_input_grad, strict=False)
        )
        head = _in(ctx.dtype, weight_VD, bias_V)
        for piece in _slices(len(hidden_ND), ctx.rows):
            d_RV = _logprobs(hidden_ND[piece], *head, ctx.temperature)
            d_logprob_R1 = d_found[piece, :1]
            if ctx.entropy == "gradient":
                probs_RV = d_RV.exp()
                # of the entropy H: -p (log p + H)
                d_RV.add_(found[piece, 1:]).mul_(d_found[piece, 1:]).add_(d_logprob_R1).mul_(probs_RV).neg_()
                del probs_RV
            else:
                d_RV.exp_().mul_(-d_logprob_R1)
            d_RV.scatter_add_(1, targets_N[piece, None], d_logprob_R1).div_(ctx.temperature)
            if d_bias is not None:
                d_bias += d_RV.sum(0)
            d_RV = d_RV.to(ctx.dtype)
            if d_hidden is not None:
                d_hidden[piece] = d_RV @ head[0]
            if d_weight is not None:
                _add_product(d_weight, d_RV.T, hidden_ND[piece].to(ctx.dtype))
        return d_hidden, d_weight, d_bias, None, None, None, None


def _slices(length: int, rows: int) -> Iterator[slice]:
    return (slice(start, start + rows) for start in range(0, length, rows))


def _in(dtype: torch.dtype, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return weight.to(dtype), None if bias is None else bias.to(dtype)


def _logprobs(hidden_RD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, temperature: float) -> Tensor:
    """(R, V), for the caller to overwrite."""
    kind = hidden_RD.device.type
    with torch.autocast(kind, enabled=False):
        logits_RV = linear(hidden_RD.to(weight_VD.dtype), weight_VD, bias_V)
    return torch.log_softmax(logits_RV.to(_wide(logits_RV.dtype)).div_(temperature), dim=-1)


def _add_product(total_VD: Tensor, d_VR: Tensor, hidden_RD: Tensor) -> None:
    """total += d hidden. A product of another type is converted some rows at a time, as a whole one is of the head's
    size."""
    if total_VD.dtype is hidden_RD.dtype:
        total_VD.addmm_(d_VR, hidden_RD)
        return
    for rows in _slices(len(total_VD), _HEAD_ROWS):
        total_VD[rows] += d_VR[rows] @ hidden_RD
