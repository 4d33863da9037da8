"""Which loss an algorithm's advantages enter, and what it is divided by.

| loss | algorithms | denominator of an optimiser step |
|---|---|---|
| clipped surrogate | grpo, dapo, reinforce_pp, ppo | its sampled tokens |
| clipped surrogate | dr_grpo | its trajectories times a constant |
| surrogate of sequences | gspo | its trajectories |
| clipped weights | cispo | its sampled tokens |
| policy gradient | rloo, reinforce | its sampled tokens |
| likelihood | rejection | its sampled tokens, those of kept attempts |

The denominator is fixed before the first micro-batch of an optimiser step, so micro-batches add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mem1.algorithms.cispo import cispo
from mem1.algorithms.gspo import sequence_surrogate
from mem1.algorithms.likelihood import negative_log_likelihood
from mem1.algorithms.policy_gradient import policy_gradient
from mem1.algorithms.surrogate import SurrogateLoss, clipped_surrogate
from mem1.records import Trajectory
from mem1.training.rl_config import Algorithm, Cispo, DrGrpo, Gspo, Reinforce, Rejection, Rloo


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossInputs:
    """S trajectories of a micro-batch with M sampled tokens, in their order."""

    trajectories: Sequence[Trajectory]
    logprobs_M: Tensor
    """With gradient."""
    old_M: Tensor
    """Of the policy before the first update on this rollout."""
    advantages_M: Tensor
    weights_M: Tensor | None
    """Importance weights; None: 1."""


def policy_loss(algorithm: Algorithm, inputs: LossInputs, *, denominator: float) -> SurrogateLoss:
    """The loss of a micro-batch; `denominator` is that of the whole optimiser step."""
    new_M, old_M, advantages_M, weights_M = inputs.logprobs_M, inputs.old_M, inputs.advantages_M, inputs.weights_M
    match algorithm:
        case Rloo() | Reinforce():
            return SurrogateLoss(policy_gradient(new_M, advantages_M, denominator=denominator, weights_M=weights_M), 0)
        case Rejection():
            return SurrogateLoss(negative_log_likelihood(new_M, denominator=denominator), 0)
        case Cispo(clip_low=low, clip_high=high):
            return cispo(
                new_M,
                old_M,
                advantages_M,
                clip_low=low,
                clip_high=high,
                denominator=denominator,
                weights_M=weights_M,
            )
        case Gspo():
            return _gspo(algorithm, inputs, denominator)
        case _:
            return clipped_surrogate(
                new_M,
                old_M,
                advantages_M,
                clip_low=algorithm.clip_low,
                clip_high=algorithm.clip_high,
                denominator=denominator,
                weights_M=weights_M,
            )


def _gspo(algorithm: Gspo, inputs: LossInputs, denominator: float) -> SurrogateLoss:
    """A trajectory weighs 1, and each of its n sequences with sampled tokens 1/n."""
    units = [_units(t, algorithm.unit) for t in inputs.trajectories]
    lengths_S = [length for lengths in units for length in lengths]
    first_S = torch.tensor(lengths_S).cumsum(0) - torch.tensor(lengths_S)
    return sequence_surrogate(
        inputs.logprobs_M,
        inputs.old_M,
        inputs.advantages_M[first_S.to(inputs.advantages_M.device)],
        lengths_S,
        clip_low=algorithm.clip_low,
        clip_high=algorithm.clip_high,
        denominator=denominator,
        weights_S=torch.tensor([1 / len(lengths) for lengths in units for _ in lengths]).to(inputs.advantages_M),
        weights_M=inputs.weights_M,
    )


def _units(trajectory: Trajectory, unit: str) -> list[int]:
    turns = [len(turn.completion_ids) for turn in trajectory.turns if turn.completion_ids]
    return turns if unit == "turn" else [sum(turns)]


def step_denominator(algorithm: Algorithm, trajectories: Sequence[Trajectory]) -> float:
    """Of an optimiser step on these trajectories, those without gradient included."""
    match algorithm:
        case Gspo():
            return float(len(trajectories))
        case DrGrpo(tokens_per_attempt=tokens):
            return float(len(trajectories) * tokens)
        case _:
            return float(sum(t.num_completion_tokens for t in trajectories))
