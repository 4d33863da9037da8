"""One optimiser step's loss and gradient, pack by pack.

    loss of a step = policy loss / its denominator
                   + kl coefficient * mean KL - entropy coefficient * mean entropy        over the sampled tokens
                   + value loss, mean over the sampled tokens                             of the critic

All denominators are those of the whole optimiser step, so packs add up to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from mem1.algorithms.kl import kl_estimate
from mem1.algorithms.values import value_loss
from mem1.packing import Pack
from mem1.training.lessons import Lesson
from mem1.training.losses import LossInputs, policy_loss, step_denominator
from mem1.training.networks import Networks
from mem1.training.rl_metrics import Totals
from mem1.training.scores import Scores
from mem1.training.staleness import sampled_by, staleness


@dataclass(frozen=True, slots=True, kw_only=True)
class Denominators:
    """Of one optimiser step."""

    policy: float
    tokens: float
    """Sampled tokens of all its attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Where an optimiser step stands among those of a run."""

    version: int = 0
    """Optimiser steps behind the policy now."""
    begun: int = 0
    """Optimiser steps behind the policy when this step of the run began. What these weights sampled, and nothing else,
    can be compared with the trainer."""
    first: bool = True
    """On its rollout: the policy is still the one that sampled."""
    frozen: bool = False
    """The policy gets no gradient: its critic warms up."""


def accumulate(
    networks: Networks, groups: Sequence[Sequence[Lesson]], totals: Totals, update: Update = Update()
) -> bool:
    """Add the gradients of one optimiser step on these lessons; False where none has anything to teach."""
    trajectories = [lesson.trajectory for group in groups for lesson in group]
    denominators = Denominators(
        policy=step_denominator(networks.config.algorithm, trajectories),
        tokens=float(sum(t.num_completion_tokens for t in trajectories)),
    )
    telling = [lesson for group in groups for lesson in group if lesson.teaches]
    of_packs = networks.backward(
        lambda packed: _loss(networks, telling, packed, denominators, update),
        [lesson.trajectory for lesson in telling],
    )
    for of_pack in of_packs:
        totals.merge(Totals(**of_pack))
    totals.staleness.update(staleness([lesson.trajectory for lesson in telling], update.version))
    totals.updates += bool(telling)
    return bool(telling)


def _loss(
    networks: Networks, lessons: Sequence[Lesson], packed: Pack, denominators: Denominators, update: Update
) -> tuple[Tensor, dict[str, Any]]:
    """Of a pack, whose pieces count the trajectories of `lessons`; and what is logged of it, the fields of `Totals`."""
    totals = Totals()
    whole = [lesson.trajectory for lesson in lessons]
    trajectories = [piece.of(whole) for piece in packed]
    scores = networks.scores(trajectories, frozen=update.frozen)

    def joined(read: Callable[[Lesson], Tensor | None]) -> Tensor | None:
        parts = [piece.cut(part) for piece in packed if (part := read(lessons[piece.trajectory])) is not None]
        return torch.cat(parts).to(scores.logprobs_M.device) if parts else None

    old_M, advantages_M = joined(lambda x: x.before.old_K), joined(lambda x: x.advantages_K)
    sampler_M = joined(lambda x: x.before.sampler_K)
    assert old_M is not None and advantages_M is not None and sampler_M is not None
    surrogate = policy_loss(
        networks.config.algorithm,
        LossInputs(
            trajectories=trajectories,
            logprobs_M=scores.logprobs_M,
            old_M=old_M,
            advantages_M=advantages_M,
            weights_M=joined(lambda x: x.weights_K),
        ),
        denominator=denominators.policy,
    )
    loss = surrogate.loss + _regularisation(networks, scores, joined(lambda x: x.before.reference_K), denominators)
    totals.add(loss=loss, clipped=surrogate.clipped, entropy_M=scores.entropy_M)
    if networks.recomputes or update.first:
        same_M = torch.tensor([same for t in trajectories for same in sampled_by(t, update.begun)], dtype=torch.bool)
        trainer_M = old_M if networks.recomputes else scores.logprobs_M
        totals.compare(trainer_M, sampler_M, same_M.to(trainer_M.device))
    returns_M, values_M = joined(lambda x: x.returns_K), joined(lambda x: x.before.values_K)
    if returns_M is not None and values_M is not None:
        critic = value_loss(
            networks.values(trajectories, scores.states_MD),
            values_M,
            returns_M,
            clip=networks.value_clip,
            denominator=denominators.tokens,
        )
        totals.value_loss += critic.loss.item()
        totals.values_clipped += critic.clipped
        loss = loss + critic.loss
    return loss, asdict(totals)


def _regularisation(
    networks: Networks, scores: Scores, reference_M: Tensor | None, denominators: Denominators
) -> Tensor | float:
    """KL penalty and entropy bonus, as a loss; 0.0 where the recipe has neither."""
    loss: Tensor | float = 0.0
    if networks.config.entropy:
        loss = loss - networks.config.entropy * scores.entropy_M.sum() / denominators.tokens
    kl = networks.config.kl
    if kl is not None and kl.where == "loss" and reference_M is not None:
        estimate_M = kl_estimate(scores.logprobs_M, reference_M, kl.loss_estimator)
        loss = loss + networks.kl_coefficient * estimate_M.sum() / denominators.tokens
    return loss
