"""The networks of a stage of reinforcement learning, and what they say of sampled tokens.

policy                      log-probs, entropies
critic (ppo)                values, read from the policy's states or from its own trunk's
reference (KL penalty)      log-probs, frozen
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mem1.packing import Pack, split_into_packs
from mem1.records import Trajectory
from mem1.training.critic import Critic
from mem1.training.lessons import Before
from mem1.training.parallel_packs import backward_in_order, in_order
from mem1.training.reference import Reference
from mem1.training.rl_config import Gspo, Ppo, Rl
from mem1.training.scores import Scores, score, trunk_states

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Networks:
    """Made when the stage begins."""

    config: Rl
    policy: PreTrainedModel
    critic: Critic | None
    reference: Reference | None
    workers: int = 1
    """Packs that are computed at a time."""

    @classmethod
    def make(cls, config: Rl, policy: PreTrainedModel, *, workers: int = 1) -> Networks:
        """A new critic and a copy of the policy as it stands, where the recipe has them."""
        return cls(
            config=config,
            policy=policy,
            critic=Critic(config.algorithm, policy) if isinstance(config.algorithm, Ppo) else None,
            reference=Reference(config.kl, policy) if config.kl is not None else None,
            workers=workers,
        )

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
            )

    def values(self, trajectories: Sequence[Trajectory], states_MD: Tensor) -> Tensor:
        """Of the critic, (M,); `states_MD` are the policy's."""
        assert self.critic is not None
        if self.critic.trunk is not None:
            states_MD = trunk_states(self.critic.trunk, trajectories, packed=self.config.packed)
        return self.critic.values(states_MD)

    def packs(self, trajectories: Sequence[Trajectory]) -> list[Pack]:
        """What each forward pass takes in; gspo's ratio of a sequence needs all its tokens at once."""
        whole = isinstance(self.config.algorithm, Gspo)
        return split_into_packs(trajectories, max_tokens=self.config.pack_tokens, whole=whole)

    def backward(self, loss_of: Callable[[Pack], tuple[Tensor, T]], packs: Sequence[Pack]) -> Iterator[T]:
        """Add the gradients of the packs' losses, for policy and critic; what else `loss_of` returns, in order."""
        trained = [p for module in (self.policy, self.critic) if module is not None for p in module.parameters()]
        parameters = [p for p in trained if p.requires_grad]
        return backward_in_order(
            loss_of, packs, models=self._packed_models, parameters=parameters, workers=self.workers
        )

    @property
    def _packed_models(self) -> list[PreTrainedModel]:
        models = [self.policy, self.critic and self.critic.trunk, self.reference and self.reference.model]
        return [model for model in models if model is not None] if self.config.packed else []

    @torch.no_grad()
    def before(self, groups: Sequence[Sequence[Trajectory]]) -> list[list[Before]]:
        """What they say before the first update on a rollout, per attempt; an attempt may have no tokens."""
        trajectories = [t for group in groups for t in group]
        packs = self.packs(trajectories)
        said = in_order(
            lambda packed: self._before([piece.of(trajectories) for piece in packed]),
            packs,
            models=self._packed_models,
            workers=self.workers,
        )
        parts = list(said) or [self._before([])]
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
            config = self.config
            frozen = score(self.reference.model, trajectories, temperature=config.temperature, packed=config.packed)
            found["reference_K"] = frozen.logprobs_M
        return found
