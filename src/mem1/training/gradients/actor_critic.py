"""The networks of reinforcement learning, and what they compute for sampled tokens.

    policy                      log-probs, entropies
    critic (ppo)                values, read from the policy's states or from its own trunk's
    reference (KL penalty)      log-probs, frozen

A value is read where the token's logit is read: at the tree's `parent` of the token. So a value sees exactly what the
policy saw, under every memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mem1.algorithms.base import CriticConfig
from mem1.algorithms.losses import Kl, adapted
from mem1.errors import UserError
from mem1.packing import Pack, Piece, split_into_packs
from mem1.packing.attention import unpackable
from mem1.recipe.rl import Rl
from mem1.records import Trajectory
from mem1.training.gradients.pack_workers import UNPACKED_ALONE, PackWorkers
from mem1.training.gradients.samples import OldPolicyStats, TrainingSample
from mem1.training.logprobs import Scores, score, trunk_states
from mem1.training.ranks.adapters import adapters_off
from mem1.training.ranks.placement import SINGLE_PROCESS, Placement
from mem1.training.ranks.processes import as_forward


class Critic(nn.Module):
    """The value of the state before each sampled token: V = w h + b, 0 everywhere at first.

    h is the policy's last hidden state before the token ("head"), or that of a copy of its trunk, which has weights
    and learning of its own ("separate").
    """

    def __init__(self, config: CriticConfig, policy: PreTrainedModel, placement: Placement = SINGLE_PROCESS) -> None:
        """`policy` is left unchanged; "separate" copies its trunk in its present state."""
        super().__init__()
        self.trunk: PreTrainedModel | None = None
        if config.critic == "separate":
            self.trunk = placement.copied(policy.get_decoder())
        self.value_grad_scale = config.value_grad_scale
        self.head = nn.Linear(policy.config.hidden_size, 1, device=policy.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def shard_(self, placement: Placement) -> None:
        """Move to this rank's device and spread over the ranks; the head keeps its precision."""
        if self.trunk is not None:
            placement.shard_(self.trunk)
        placement.shard_(self, full_precision=True)

    def values(self, states_MD: Tensor) -> Tensor:
        """Values (M,) of states of the trunk that this critic reads: its own, else the policy's."""
        if self.trunk is None:
            held_MD = states_MD.detach()
            states_MD = held_MD + self.value_grad_scale * (states_MD - held_MD)
        return self.head(states_MD.to(self.head.weight.dtype))[:, 0]

    @torch.no_grad()
    def centre(self, errors_M: Tensor) -> float:
        """Add the mean of `errors_M`, returns less values, to the bias; return that shift.

        The mean return moves faster than an optimiser's steps. Left to them, the weights would follow it along the mean
        of the states, and the values would vary with whatever else varies in that direction.
        """
        shift = float(errors_M.mean().to(self.head.bias.dtype))
        self.head.bias.add_(shift)
        return shift


class Reference(nn.Module):
    """A frozen copy of the policy, with the coefficient of the KL penalty.

    A module, so that a checkpoint holds both: a resumed run must not take the policy that it finds for the reference.
    """

    coefficient: Tensor
    """Scalar, float64; adapted after each step if there is a target."""

    def __init__(self, config: Kl, policy: PreTrainedModel | None, placement: Placement = SINGLE_PROCESS) -> None:
        """`policy` None: the policy without its adapters is the reference, and no copy is needed."""
        super().__init__()
        self.config = config
        self.model = None if policy is None else placement.copied(policy).requires_grad_(False)
        self.register_buffer("coefficient", torch.tensor(config.coefficient, dtype=torch.float64))

    def shard_(self, placement: Placement) -> None:
        """Move to this rank's device and spread over the ranks."""
        if self.model is not None:
            placement.shard_(self.model, offload=placement.config is not None and placement.config.reference_offload)

    def adapt(self, measured: float) -> None:
        """Adapt the coefficient after a step with a mean KL of `measured` nats per token."""
        if self.config.target is None:
            return
        now, target, horizon = self.coefficient.item(), self.config.target, self.config.horizon
        self.coefficient.fill_(adapted(now, measured=measured, target=target, horizon=horizon))


@dataclass(frozen=True, kw_only=True)
class ActorCritic:
    """Policy, critic and reference of a stage, made when it begins."""

    config: Rl
    policy: PreTrainedModel
    critic: Critic | None
    reference: Reference | None
    workers: PackWorkers
    packed: bool
    """Whether contexts share a token tree: as the recipe says, for a model that can be packed exactly."""

    @classmethod
    def make(
        cls,
        config: Rl,
        policy: PreTrainedModel,
        *,
        placement: Placement = SINGLE_PROCESS,
        threads: int = 1,
    ) -> ActorCritic:
        """A new critic and a copy of the policy, where the recipe has them, on the ranks of `placement`.

        Raises UserError for unpacked contexts on several ranks.
        """
        packed = config.packed and not unpackable(policy)
        if placement.spread and not packed:
            raise UserError(UNPACKED_ALONE)
        critic_config = config.algorithm.critic_config
        critic = None if critic_config is None else Critic(critic_config, policy, placement)
        if critic is not None:
            critic.shard_(placement)
        frozen = None if placement.lora else policy
        reference = None if config.kl is None else Reference(config.kl, frozen, placement)
        if reference is not None:
            reference.shard_(placement)
        trained = placement.trained(policy)
        models = [trained, critic and critic.trunk, reference and reference.model] if packed else []
        workers = PackWorkers(models=[m for m in models if m is not None], placement=placement, threads=threads)
        return cls(config=config, policy=trained, critic=critic, reference=reference, workers=workers, packed=packed)

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """All but the policy, by name."""
        named = {"critic": self.critic, "reference": self.reference}
        return {name: module for name, module in named.items() if module is not None}

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Everything that is trained."""
        trained = [p for module in (self.policy, self.critic) if module is not None for p in module.parameters()]
        return [p for p in trained if p.requires_grad]

    @property
    def kl_coefficient(self) -> float:
        """The present coefficient; 0.0 without a penalty."""
        return self.reference.coefficient.item() if self.reference is not None else 0.0

    def packs(
        self, trajectories: Sequence[Trajectory], wanted: Callable[[Piece], bool] = lambda piece: True
    ) -> list[Pack]:
        """The parts of these trajectories that one forward pass each computes, without the pieces not `wanted`."""
        return split_into_packs(
            trajectories,
            max_tokens=self.config.pack_tokens,
            whole=self.config.algorithm.needs_whole_trajectories,
            ranks=self.workers.placement.ranks.size,
            wanted=wanted,
        )

    def scores(self, pack: Pack, *, frozen: bool = False) -> Scores:
        """The policy's scores, with gradient unless `frozen`."""
        entropy = "gradient" if self.config.entropy and not frozen else "value"
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            return self._score(self.policy, pack, entropy)

    def _score(self, model: PreTrainedModel, pack: Pack, entropy: Literal["value", "gradient"] = "value") -> Scores:
        placement = self.workers.placement
        with placement.passes(model):
            return score(
                model,
                pack,
                temperature=self.config.temperature,
                packed=self.packed,
                entropy=entropy,
                attention=placement.attention,
            )

    def values(self, pack: Pack, states_MD: Tensor) -> Tensor:
        """The critic's values, (M,); `states_MD` are the policy's states."""
        critic = self.critic
        assert critic is not None

        def values() -> Tensor:
            if critic.trunk is None:
                return critic.values(states_MD)
            placement = self.workers.placement
            with placement.passes(critic.trunk):
                own_MD = trunk_states(critic.trunk, pack, packed=self.packed, attention=placement.attention)
            return critic.values(own_MD)

        return as_forward(critic, values)

    def old_policy_stats(self, groups: Sequence[Sequence[Trajectory]]) -> list[list[OldPolicyStats]]:
        """Statistics of every attempt, before the first update on a rollout; an attempt may have no tokens.

        Nothing is packed where the sampler's log-probs are all that is needed.
        """
        trajectories = [t for group in groups for t in group]
        counts = [t.num_completion_tokens for t in trajectories]
        sampler_M = torch.tensor([p for t in trajectories for turn in t.turns for p in turn.logprobs])
        by_name = {"sampler_K": sampler_M, "old_K": sampler_M}
        if self._computed_names:
            parts = self.workers.forward(self.packs(trajectories), self._computed)
            for name in self._computed_names:  # packs keep the order of the sampled tokens
                by_name[name] = torch.cat([part[name] for part in parts] or [sampler_M]).cpu()
        split = {name: values_M.split(counts) for name, values_M in by_name.items()}
        stats = (OldPolicyStats(**{name: parts[i] for name, parts in split.items()}) for i in range(len(counts)))
        return [[next(stats) for _ in group] for group in groups]

    @property
    def _computed_names(self) -> list[str]:
        """The fields of `OldPolicyStats` that take a forward pass."""
        recomputes = self.config.recomputes_old_logprobs
        networks = {"values_K": self.critic, "reference_K": self.reference}
        return ["old_K"] * recomputes + [name for name, network in networks.items() if network is not None]

    def _computed(self, pack: Pack) -> dict[str, Tensor]:
        """Those fields for all sampled tokens of a pack."""
        names = self._computed_names
        if not any(t.num_completion_tokens for t in pack.trajectories):
            return {name: torch.zeros(0) for name in names}
        found: dict[str, Tensor] = {}
        if "old_K" in names or "values_K" in names:
            scores = self.scores(pack)
            found["old_K"] = scores.logprobs_M
            if "values_K" in names:
                found["values_K"] = self.values(pack, scores.states_MD)
        if "reference_K" in names:
            assert self.reference is not None
            if self.reference.model is None:
                with adapters_off(self.policy):
                    found["reference_K"] = self.scores(pack).logprobs_M
            else:
                found["reference_K"] = self._score(self.reference.model, pack).logprobs_M
        return {name: found[name] for name in names}

    def centre_critic(self, samples_by_group: Sequence[Sequence[TrainingSample]]) -> list[list[TrainingSample]]:
        """Move the critic's bias to where it fits the returns best; the samples' values move with it.

        So value clipping counts from there; advantages and returns stay.
        """
        errors = [
            sample.returns_K - sample.old.values_K
            for samples in samples_by_group
            for sample in samples
            if sample.returns_K is not None and sample.old.values_K is not None
        ]
        shift = self.critic.centre(torch.cat(errors)) if self.critic is not None and any(map(len, errors)) else 0.0
        return [[_shifted(sample, shift) for sample in samples] for samples in samples_by_group]


def _shifted(sample: TrainingSample, shift: float) -> TrainingSample:
    values_K = sample.old.values_K
    return sample if values_K is None else replace(sample, old=replace(sample.old, values_K=values_K + shift))
