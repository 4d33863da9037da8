"""Loss and gradient of one optimiser step, pack by pack.

    loss of a step = policy loss / its denominator
                   + kl coefficient * mean KL - entropy coefficient * mean entropy        over the sampled tokens
                   + value loss, mean over the sampled tokens                             of the critic

All denominators are those of the whole optimiser step, so packs add up to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from mem1.algorithms.base import LossInputs
from mem1.algorithms.losses import kl_estimate
from mem1.algorithms.ppo import value_loss
from mem1.packing import Pack
from mem1.records import Trajectory
from mem1.training.gradients.actor_critic import ActorCritic
from mem1.training.gradients.samples import TrainingSample, sampled_by
from mem1.training.logprobs import Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerStep:
    """The place of an optimiser step in a run."""

    version: int = 0
    """Number of optimiser steps taken so far."""
    begun: int = 0
    """Number of optimiser steps taken when this step of the run began; only tokens sampled by that version are
    comparable with the trainer's log-probs."""
    first: bool = True
    """First on its rollout: the policy is still the one that sampled."""
    frozen: bool = False
    """The policy gets no gradient: its critic warms up."""


@dataclass(kw_only=True)
class PassStats:
    """Statistics of some forward and backward passes, all sums but `largest_difference`."""

    loss: float = 0.0
    clipped: float = 0.0
    """Tokens on which the clip of the policy loss took effect."""
    tokens: float = 0.0
    entropy: float = 0.0
    compared: float = 0.0
    """Tokens whose log-probs by sampler and trainer, with the same weights, were compared."""
    difference: float = 0.0
    """Absolute differences of these log-probs."""
    largest_difference: float = 0.0
    value_loss: float = 0.0
    values_clipped: float = 0.0

    def add(self, other: PassStats) -> None:
        """Include the passes of another."""
        largest = max(self.largest_difference, other.largest_difference)
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)
        self.largest_difference = largest


Waiting = dict[str, Tensor | float]
"""Some fields of `PassStats`, which the device may not have computed yet."""


def compared(trainer_M: Tensor, sampler_M: Tensor, same: Sequence[bool]) -> Waiting:
    """Differences between log-probs of the same tokens, where `same` says that the same weights gave both."""
    if not any(same):
        return {}
    difference_M = (trainer_M.detach() - sampler_M).abs()
    if not all(same):
        same_M = torch.tensor(same).to(difference_M.device, non_blocking=True)
        difference_M = difference_M.where(same_M, 0.0)
    return {"compared": sum(same), "difference": difference_M.sum(), "largest_difference": difference_M.max()}


def accumulate(
    networks: ActorCritic,
    groups: Sequence[Sequence[TrainingSample]],
    total: PassStats,
    step: OptimizerStep = OptimizerStep(),
) -> list[Trajectory]:
    """Add the gradients of one optimiser step on these samples, and its statistics to `total`.

    Returns what was computed: the pieces of the trajectories with a gradient, none where nothing is to be learnt.
    """
    samples = [sample for group in groups for sample in group]
    trajectories = [sample.trajectory for sample in samples]
    denominator = networks.config.algorithm.denominator(trajectories)
    tokens = float(sum(t.num_completion_tokens for t in trajectories))
    packs = networks.packs(trajectories, lambda piece: samples[piece.trajectory].has_gradient(piece.tokens))
    of_packs = networks.workers.backward(
        packs, lambda pack: _loss(networks, samples, pack, denominator, tokens, step), networks.parameters
    )
    for stats in of_packs:
        total.add(PassStats(**stats))
    return [piece for pack in packs for piece in pack.trajectories]


def _loss(
    networks: ActorCritic,
    samples: Sequence[TrainingSample],
    pack: Pack,
    denominator: float,
    tokens: float,
    step: OptimizerStep,
) -> tuple[Tensor, Waiting]:
    """Loss and statistics of a pack, whose pieces number the trajectories of `samples`; `denominator` divides the
    policy loss alone, the sampled `tokens` of the step everything else."""
    scores = networks.scores(pack, frozen=step.frozen)
    device = scores.logprobs_M.device

    def gathered(read: Callable[[TrainingSample], Tensor | None]) -> Tensor | None:
        parts = [piece.cut(part) for piece in pack.pieces if (part := read(samples[piece.trajectory])) is not None]
        return torch.cat(parts).to(device, non_blocking=True) if parts else None

    old_M, advantages_M = gathered(lambda x: x.old.old_K), gathered(lambda x: x.advantages_K)
    sampler_M = gathered(lambda x: x.old.sampler_K)
    assert old_M is not None and advantages_M is not None and sampler_M is not None
    inputs = LossInputs(
        trajectories=pack.trajectories,
        logprobs_M=scores.logprobs_M,
        old_logprobs_M=old_M,
        advantages_M=advantages_M,
        weights_M=gathered(lambda x: x.weights_K),
    )
    policy = networks.config.algorithm.loss(inputs, denominator=denominator)
    loss = policy.loss + _regularisation(networks, scores, gathered(lambda x: x.old.reference_K), tokens)
    stats: Waiting = {
        "loss": loss.detach(),
        "clipped": policy.clipped,
        "tokens": len(scores.entropy_M),
        "entropy": scores.entropy_M.detach().sum(),
    }
    recomputes = networks.config.recomputes_old_logprobs
    if recomputes or step.first:
        same = [same for t in pack.trajectories for same in sampled_by(t, step.begun)]
        stats |= compared(old_M if recomputes else scores.logprobs_M, sampler_M, same)
    returns_M, values_M = gathered(lambda x: x.returns_K), gathered(lambda x: x.old.values_K)
    critic_config = networks.config.algorithm.critic_config
    if critic_config is not None and returns_M is not None and values_M is not None:
        critic = value_loss(
            networks.values(pack, scores.states_MD),
            values_M,
            returns_M,
            clip=critic_config.value_clip,
            denominator=tokens,
        )
        stats |= {"value_loss": critic.loss.detach(), "values_clipped": critic.clipped}
        loss = loss + critic.loss
    return loss, stats


def _regularisation(networks: ActorCritic, scores: Scores, reference_M: Tensor | None, tokens: float) -> Tensor | float:
    """KL penalty and entropy bonus, as a loss; 0.0 where the recipe has neither."""
    loss: Tensor | float = 0.0
    if networks.config.entropy:
        loss = loss - networks.config.entropy * scores.entropy_M.sum() / tokens
    kl = networks.config.kl
    if kl is not None and kl.where == "loss" and reference_M is not None:
        estimate_M = kl_estimate(scores.logprobs_M, reference_M, kl.loss_estimator)
        loss = loss + networks.kl_coefficient * estimate_M.sum() / tokens
    return loss
