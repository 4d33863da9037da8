"""The networks of a stage of reinforcement learning, and what they say of sampled tokens.

policy                      log-probs, entropies
critic (ppo)                values, read from the policy's states or from its own trunk's
reference (KL penalty)      log-probs, frozen
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mem1.errors import UserError
from mem1.packing import Pack, split_into_packs
from mem1.records import Trajectory
from mem1.training.critic import Critic
from mem1.training.lessons import Before
from mem1.training.rank_packs import RankPacks
from mem1.training.ranks.placement import SINGLE_PROCESS, Placement
from mem1.training.ranks.sharding import as_forward
from mem1.training.reference import Reference
from mem1.training.rl_config import Gspo, Ppo, Rl
from mem1.training.scores import Scores, score, trunk_states
from mem1.training.weights.adapters import adapters_off


@dataclass(frozen=True, kw_only=True)
class Networks:
    """Made when the stage begins."""

    config: Rl
    policy: PreTrainedModel
    critic: Critic | None
    reference: Reference | None
    place: Placement = SINGLE_PROCESS
    workers: int = 1
    """Packs that are computed at a time."""

    @classmethod
    def make(
        cls, config: Rl, policy: PreTrainedModel, *, place: Placement = SINGLE_PROCESS, workers: int = 1
    ) -> Networks:
        """A new critic and a copy of the policy as it stands, where the recipe has them; all where `place` says.

        Raises UserError for contexts one by one on several ranks.
        """
        if place.spread and not config.packed:
            raise UserError(
                "rl.packed = false takes as many passes as there are turns, which ranks that share their weights "
                "cannot; set packed = true, or train in one process without [distributed]"
            )
        critic = Critic(config.algorithm, policy) if isinstance(config.algorithm, Ppo) else None
        reference = Reference(config.kl, None if place.lora else policy) if config.kl is not None else None
        if critic is not None:
            critic.settle(place)
        if reference is not None:
            reference.settle(place)
        trained = place.trained(policy)
        return cls(config=config, policy=trained, critic=critic, reference=reference, place=place, workers=workers)

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """All but the policy, by name."""
        named = {"critic": self.critic, "reference": self.reference}
        return {name: module for name, module in named.items() if module is not None}

    @property
    def kl_coefficient(self) -> float:
        """As it stands; 0.0 without a penalty."""
        return self.reference.coefficient.item() if self.reference is not None else 0.0

    @property
    def recomputes(self) -> bool:
        """Whether the old policy's log-probs are the trainer's, and not the sampler's own."""
        return self.config.old_policy == "trainer" or self.config.importance is not None

    @property
    def value_clip(self) -> float | None:
        return self.config.algorithm.value_clip if isinstance(self.config.algorithm, Ppo) else None

    def scores(self, trajectories: Sequence[Trajectory], *, frozen: bool = False) -> Scores:
        """Of the policy. With gradient, unless `frozen`."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            return score(
                self.policy,
                trajectories,
                temperature=self.config.temperature,
                packed=self.config.packed,
                entropy="gradient" if self.config.entropy and not frozen else "value",
                attention=self.place.attention,
            )

    def values(self, trajectories: Sequence[Trajectory], states_MD: Tensor) -> Tensor:
        """Of the critic, (M,); `states_MD` are the policy's."""
        critic = self.critic
        assert critic is not None

        def values() -> Tensor:
            if critic.trunk is None:
                return critic.values(states_MD)
            states = trunk_states(critic.trunk, trajectories, packed=self.config.packed, attention=self.place.attention)
            return critic.values(states)

        return as_forward(critic, values)

    def packs(self, trajectories: Sequence[Trajectory]) -> list[Pack]:
        """What each forward pass takes in; gspo's ratio of a sequence needs all its tokens at once."""
        ranks = self.place.ranks.size
        return split_into_packs(
            trajectories,
            max_tokens=self.config.pack_tokens,
            balanced=ranks > 1,
            whole=isinstance(self.config.algorithm, Gspo),
            multiple_of=ranks,
        )

    def backward(self, loss_of: Callable[[Pack], tuple[Tensor, Any]], trajectories: Sequence[Trajectory]) -> list[Any]:
        """Add the gradients of the losses of their packs, for policy and critic; what else `loss_of` returns of each.

        That is JSON, and comes in the order of the packs, of all ranks.
        """
        trained = [p for module in (self.policy, self.critic) if module is not None for p in module.parameters()]
        parameters = [p for p in trained if p.requires_grad]
        return self._dealt(trajectories).backward(loss_of, models=self._packed_models, parameters=parameters)

    def _dealt(self, trajectories: Sequence[Trajectory]) -> RankPacks:
        packs = self.packs(trajectories)
        return RankPacks.deal(packs, trajectories, self.policy, self.place, workers=self.workers)

    @property
    def _packed_models(self) -> list[PreTrainedModel]:
        models = [self.policy, self.critic and self.critic.trunk, self.reference and self.reference.model]
        return [model for model in models if model is not None] if self.config.packed else []

    @torch.no_grad()
    def before(self, groups: Sequence[Sequence[Trajectory]]) -> list[list[Before]]:
        """What they say before the first update on a rollout, per attempt; an attempt may have no tokens."""
        trajectories = [t for group in groups for t in group]
        said = self._dealt(trajectories).forward(
            lambda packed: self._before([piece.of(trajectories) for piece in packed]), models=self._packed_models
        )
        parts = said or [self._before([])]
        counts = [t.num_completion_tokens for t in trajectories]
        # Packs keep the order of the sampled tokens.
        values = {name: torch.cat([part[name] for part in parts]).cpu().split(counts) for name in parts[0]}
        attempts = (Before(**{name: some[i] for name, some in values.items()}) for i in range(len(counts)))
        return [[next(attempts) for _ in group] for group in groups]

    def _before(self, trajectories: Sequence[Trajectory]) -> dict[str, Tensor]:
        """The fields of `Before`, each for all sampled tokens in their order."""
        sampler_M = torch.tensor([p for t in trajectories for turn in t.turns for p in turn.logprobs])
        found = {"sampler_K": sampler_M, "old_K": sampler_M}
        if not len(sampler_M):
            asked = {"values_K": self.critic, "reference_K": self.reference}
            return found | {name: sampler_M for name, network in asked.items() if network is not None}
        if self.recomputes or self.critic is not None:
            scores = self.scores(trajectories)
            found["old_K"] = scores.logprobs_M if self.recomputes else sampler_M
            if self.critic is not None:
                found["values_K"] = self.values(trajectories, scores.states_MD)
        if self.reference is not None:
            found["reference_K"] = self._of_the_reference(trajectories)
        return found

    def _of_the_reference(self, trajectories: Sequence[Trajectory]) -> Tensor:
        """Its log-probs, (M,)."""
        assert self.reference is not None
        if self.reference.model is None:
            with adapters_off(self.policy):
                return self.scores(trajectories).logprobs_M
        return score(
            self.reference.model,
            trajectories,
            temperature=self.config.temperature,
            packed=self.config.packed,
            attention=self.place.attention,
        ).logprobs_M
