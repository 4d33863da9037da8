"""The critic's loss and how much of the returns it explains.

    L = sum_k 1/2 max((V_k - R_k)^2, (clip(V_k, old_k - c, old_k + c) - R_k)^2) / denominator
    explained = 1 - Var(R - V) / Var(R)

Source: PPO (arXiv 1707.06347), the squared error of equation 9; its clipping, which the paper does not have, is
that of the authors' code (openai/baselines, ppo2). The larger of the two squares counts, so a value that has
moved by more than `clip` towards its return learns no further in this rollout.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class ValueLoss:
    """The loss and what to log about it."""

    loss: Tensor
    """Scalar with gradient; the parts of a step add up."""
    clipped: int
    """Tokens on which the clip took effect."""


def value_loss(
    values_M: Tensor, old_values_M: Tensor, returns_M: Tensor, *, clip: float | None, denominator: float
) -> ValueLoss:
    """The critic's loss on M sampled tokens.

    `old_values_M` are those from which `returns_M` were computed, before the first update. `clip` None: none.
    `denominator` counts the whole optimiser step.
    """
    free_M = (values_M - returns_M).square()
    if clip is None:
        return ValueLoss(0.5 * free_M.sum() / denominator, 0)
    held_M = (old_values_M + (values_M - old_values_M).clamp(-clip, clip) - returns_M).square()
    return ValueLoss(0.5 * free_M.maximum(held_M).sum() / denominator, int((held_M > free_M).sum()))


def explained_variance(values_M: Tensor, returns_M: Tensor) -> float | None:
    """Share of the variance of the returns that the values explain: 1 all, 0 no better than a constant, or less.

    None where the returns do not vary. Over all tokens of a step: the parts of a step do not add up.
    """
    returns = returns_M.detach().double()
    if len(returns.unique()) < 2:
        return None
    errors = returns - values_M.detach().double()
    return 1 - float(errors.var(correction=0) / returns.var(correction=0))
