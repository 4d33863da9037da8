"""GRPO's advantages with other uses of the ratio to the old policy: per sequence (gspo), or as a weight (cispo).

    gspo     s_i = exp(sum_{k in i} (logp_k - old_logp_k) / |i|)           geometric mean of the tokens' ratios
             L = -sum_i v_i min(s_i A_i, clip(s_i, 1 - low, 1 + high) A_i) / denominator
    cispo    L = -sum_k c_k sg(clip(w_k, 1 - low, 1 + high)) A_k logp_k / denominator,   w_k = exp(logp_k - old_logp_k)

Sources: GSPO (arXiv 2507.18071), equations 5 to 7; CISPO, MiniMax-M1 (arXiv 2506.13585), equations 4 and 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

from pydantic import Field

from mem1.algorithms.base import Algorithm, LossInputs
from mem1.algorithms.group import normalised_advantages
from mem1.algorithms.losses import Loss, policy_gradient, spread, sums
from mem1.records import Trajectory


class Gspo(Algorithm):
    """One ratio per sequence: for long sequences and mixtures of experts, where ratios of single tokens are noise.

    The clip bounds are narrow beside PPO's, as a mean over many tokens hardly moves.
    """

    needs_whole_trajectories = True

    unit: Literal["trajectory", "turn"] = "trajectory"
    """Sequence that has one ratio: all sampled tokens of a trajectory, or those of one turn, so that a turn that
    drifted is clipped alone. A trajectory weighs the same either way."""
    clip_low: float = Field(default=3e-4, gt=0)
    clip_high: float = Field(default=4e-4, gt=0)

    def group_advantages(self, rewards_G: Sequence[float]) -> tuple[float, ...]:
        return normalised_advantages(rewards_G)

    def loss(self, inputs: LossInputs, *, denominator: float) -> Loss:
        """A trajectory weighs 1, and each of its n sequences with sampled tokens 1/n; `clipped` counts the tokens of
        clipped sequences.

        A sequence's term is spread evenly over its tokens, where importance weights multiply it.
        """
        import torch

        units = [self._units(t) for t in inputs.trajectories]
        lengths_S = [length for lengths in units for length in lengths]
        first_S = [stop - length for stop, length in zip(accumulate(lengths_S), lengths_S, strict=True)]
        advantages_M = inputs.advantages_M
        advantages_S = advantages_M.index_select(0, torch.tensor(first_S).to(advantages_M.device, non_blocking=True))
        sizes_S = torch.tensor(lengths_S).to(inputs.logprobs_M, non_blocking=True).clamp(min=1)
        ratio_S = (sums(inputs.logprobs_M - inputs.old_logprobs_M, lengths_S) / sizes_S).exp()
        free_S = ratio_S * advantages_S
        held_S = ratio_S.clamp(1 - self.clip_low, 1 + self.clip_high) * advantages_S
        weights_S = torch.tensor([1 / len(lengths) for lengths in units for _ in lengths]).to(
            advantages_M, non_blocking=True
        )
        terms_M = spread(free_S.minimum(held_S) / sizes_S * weights_S, lengths_S)
        if inputs.weights_M is not None:
            terms_M = terms_M * inputs.weights_M
        return Loss(-terms_M.sum() / denominator, spread(held_S < free_S, lengths_S).sum())

    def _units(self, trajectory: Trajectory) -> list[int]:
        turns = [len(turn.completion_ids) for turn in trajectory.turns if turn.completion_ids]
        return turns if self.unit == "turn" else [sum(turns)]

    def denominator(self, trajectories: Sequence[Trajectory]) -> float:
        return float(len(trajectories))


class Cispo(Algorithm):
    """The policy gradient weighed by a clipped ratio through which no gradient flows.

    PPO's clip takes away a token's gradient; here every token keeps one, of bounded weight, so that rare words that
    turn a train of thought ("however", "wait") are learnt in every update.
    """

    clip_low: float | None = Field(default=None, gt=0)
    """The ratio is at least 1 - clip_low; None, as in the paper: not bounded from below."""
    clip_high: float = Field(default=4.0, gt=0)
    """The ratio is at most 1 + clip_high."""

    def group_advantages(self, rewards_G: Sequence[float]) -> tuple[float, ...]:
        return normalised_advantages(rewards_G)

    def loss(self, inputs: LossInputs, *, denominator: float) -> Loss:
        ratio_M = (inputs.logprobs_M.detach() - inputs.old_logprobs_M).exp()
        held_M = ratio_M.clamp(None if self.clip_low is None else 1 - self.clip_low, 1 + self.clip_high)
        advantages_M = held_M * inputs.advantages_M
        loss = policy_gradient(inputs.logprobs_M, advantages_M, denominator=denominator, weights_M=inputs.weights_M)
        return Loss(loss, (held_M != ratio_M).sum())
