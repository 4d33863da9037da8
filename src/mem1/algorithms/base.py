"""The interface of an algorithm: its settings in a recipe, and all that sets it apart from other algorithms.

    class Centred(ClippedAlgorithm):                           # a new one: rewards less the mean of their group
        def group_advantages(self, rewards_G):
            return [r - sum(rewards_G) / len(rewards_G) for r in rewards_G]

    [rl.algorithm]
    name = "my_package.centred:Centred"

The trainer asks the object, never for its class. A step calls, in this order, `keep_groups`, `shaped_reward`,
`advantages`, and for each optimiser step `denominator` and, for each micro-batch, `loss`.

Letters: G attempts of a group, S trajectories, K sampled tokens of one trajectory, M of several. Statistics are over
trajectories, never over contexts: how often a context was rewritten changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from pydantic import Field, model_validator

from mem1.algorithms.losses import Loss, clipped_surrogate
from mem1.configuration import Config
from mem1.errors import UserError
from mem1.records import Group, Metric, Task, Trajectory
from mem1.registry import register

if TYPE_CHECKING:
    from torch import Tensor


class CriticConfig(Protocol):
    """Settings of a critic, for the trainer; each is explained where `mem1.algorithms.ppo.Ppo` has it."""

    @property
    def critic(self) -> Literal["head", "separate"]: ...

    @property
    def critic_learning_rate(self) -> float: ...

    @property
    def critic_warmup(self) -> int: ...

    @property
    def critic_rate_warmup(self) -> int | None: ...

    @property
    def value_grad_scale(self) -> float: ...

    @property
    def value_clip(self) -> float | None: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attempt:
    """One scored attempt at a task, before the first update on it."""

    trajectory: Trajectory
    """`trajectory.reward` is the raw reward, the environment's."""
    shaped_reward: float
    """The raw reward after `Algorithm.shaped_reward`."""
    kl_penalty_K: Tensor | None = None
    """KL penalty subtracted from the reward of each sampled token; None without a penalty in the reward."""
    values_K: Tensor | None = None
    """The critic's values; None: no critic."""

    @property
    def kl_penalty(self) -> float:
        """What it takes from the rewards of all tokens."""
        return 0.0 if self.kl_penalty_K is None else float(self.kl_penalty_K.sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Advantages:
    """Advantages of one attempt."""

    advantages_K: Tensor
    returns_K: Tensor | None = None
    """Targets of the critic; None: no critic."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossInputs:
    """S trajectories of a micro-batch with M sampled tokens, in their order."""

    trajectories: Sequence[Trajectory]
    logprobs_M: Tensor
    """The policy's, with gradient."""
    old_logprobs_M: Tensor
    """The old policy's, from before the first update on this rollout."""
    advantages_M: Tensor
    weights_M: Tensor | None = None
    """Importance weights; None: 1."""


class Algorithm(Config):
    """Base of all algorithms. A subclass must define `group_advantages`, `step_advantages` or `advantages`."""

    one_update_per_rollout: ClassVar[bool] = False
    """True: the gradient is right for the first update only, as nothing corrects for the policy's change."""
    imitates: ClassVar[bool] = False
    """True: kept attempts are demonstrations, so neither importance weights nor a KL penalty in the reward apply."""
    needs_whole_trajectories: ClassVar[bool] = False
    """True: the loss is no sum over tokens, so a trajectory must not be cut between micro-batches."""

    name: str = ""
    """The name or dotted path of the class in a recipe; filled in where Python code leaves it out."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        return register.algorithm.with_name(cls, data)

    @property
    def compares_attempts(self) -> bool:
        """Whether an attempt's advantage depends on the other attempts at its task, of which it needs one."""
        return True

    @property
    def pays_kl(self) -> bool:
        """Whether a KL penalty in the reward reaches the advantages."""
        return not self.imitates

    @property
    def min_attempts_per_task(self) -> int:
        """Fewest scorable attempts at a task from which the algorithm can learn."""
        return 2 if self.compares_attempts else 1

    @property
    def min_attempts_per_step(self) -> int:
        """Fewest scorable attempts of a step, over all tasks."""
        return self.min_attempts_per_task

    @property
    def draws(self) -> int:
        """Number of draws of tasks for a step; each but the first replaces the groups of equal rewards."""
        return 1

    @property
    def critic_config(self) -> CriticConfig | None:
        """Settings of the critic; None: the algorithm needs none."""
        return None

    def check(self, task: Task, measured: Callable[[], Mapping[str, Metric]]) -> None:
        """Raises UserError where attempts at such a task lack what it needs; called before anything is sampled.

        measured    the metrics of an attempt, by name
        """

    def policy_steps(self, steps: int) -> int:
        """How many of the first `steps` steps train the policy."""
        return steps

    def keep_groups(self, groups: Sequence[Group]) -> list[Group]:
        """The groups to learn from; tokens of the others do not count in the denominator."""
        return list(groups)

    def shaped_reward(self, reward: float, trajectory: Trajectory) -> float:
        """The reward that advantages are made of; the raw `reward` unless overridden."""
        return reward

    def group_advantages(self, rewards_G: Sequence[float]) -> Sequence[float]:
        """Advantage of each attempt at one task, from their shaped rewards."""
        raise NotImplementedError(f"{type(self).__name__} must define group_advantages, step_advantages or advantages")

    def step_advantages(self, rewards_G_by_group: Sequence[Sequence[float]]) -> Sequence[Sequence[float]]:
        """Advantage of each attempt of a step, by group."""
        return [self.group_advantages(rewards_G) for rewards_G in rewards_G_by_group]

    def advantages(self, groups: Sequence[Sequence[Attempt]]) -> list[list[Advantages | None]]:
        """Advantages of the sampled tokens of each attempt, by group; None: the attempt is left out.

        Here one number a trajectory, on all its sampled tokens, however many contexts they are spread over. The KL
        penalties of its tokens are subtracted from its reward before it is compared with others. Attempts that earned
        the same and are compared with one another alone keep their rewards: their penalties differ by the luck of
        sampling, which a division by the standard deviation would turn into advantages.
        """
        rewards_G_by_group = [
            [x.shaped_reward - x.kl_penalty if subtract else x.shaped_reward for x in group]
            for group, subtract in zip(groups, self._rewards_differ(groups), strict=True)
        ]
        found = self.step_advantages(rewards_G_by_group)
        whose, due = f"group_advantages or step_advantages of {type(self).__name__}", "a number for each attempt"
        return [
            [Advantages(advantages_K=constant(a, x.trajectory)) for a, x in zip(advantages, group, strict=True)]
            for advantages, group in zip(one_for_each(found, groups, whose, due), groups, strict=True)
        ]

    def _rewards_differ(self, groups: Sequence[Sequence[Attempt]]) -> list[bool]:
        """Per group, whether its attempts are compared with something else than attempts of the same shaped reward."""
        return [not self.compares_attempts or len({x.shaped_reward for x in group}) > 1 for group in groups]

    def loss(self, inputs: LossInputs, *, denominator: float) -> Loss:
        """Loss of a micro-batch; `denominator` is that of the whole optimiser step.

        It has no gradient where advantages are 0: turns (trajectories, if they must be whole) that have no other may be
        left out of `inputs`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define loss, or extend ClippedAlgorithm, which has one")

    def denominator(self, trajectories: Sequence[Trajectory]) -> float:
        """Divisor of the loss of an optimiser step on these trajectories, those without gradient included."""
        return float(sum(t.num_completion_tokens for t in trajectories))

    def metrics(self, *, groups: int, attempts: int, kept: int) -> dict[str, float]:
        """Metrics of this algorithm alone, given how many groups and attempts were drawn and attempts kept."""
        return {}

    def rehearsal(self) -> Algorithm:
        """The same algorithm, with settings under which a single step on few attempts trains every network."""
        return self


class ClippedAlgorithm(Algorithm):
    """PPO's clipped surrogate over the sampled tokens of the step."""

    clip_low: float = Field(default=0.2, gt=0)
    """The ratio to the old policy earns nothing below 1 - clip_low."""
    clip_high: float = Field(default=0.2, gt=0)
    """The ratio to the old policy earns nothing above 1 + clip_high."""

    def loss(self, inputs: LossInputs, *, denominator: float) -> Loss:
        return clipped_surrogate(
            inputs.logprobs_M,
            inputs.old_logprobs_M,
            inputs.advantages_M,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            denominator=denominator,
            weights_M=inputs.weights_M,
        )


def one_for_each(found: Any, wanted: Sequence[Sequence[object]], whose: str, due: str) -> list[list[Any]]:
    """What a plug-in returned: lists as long as those of `wanted`. Raises UserError where it is not."""
    try:
        lists = [list(values) for values in found]
    except TypeError:
        lists = []
    if [len(values) for values in lists] != (sizes := [len(values) for values in wanted]):
        raise UserError(f"{whose} returned {found!r:.80}, where lists of {sizes} are due: {due}")
    return lists


def has_variance(group: Group) -> bool:
    """Whether the raw rewards of the scorable attempts differ; attempts whose tool failed have no reward."""
    return len({t.reward for t in group.trajectories if t.ended.scorable}) > 1


def constant(advantage: float, trajectory: Trajectory) -> Tensor:
    """A trajectory's one advantage on all its sampled tokens, (K,)."""
    import torch

    return torch.full((trajectory.num_completion_tokens,), advantage)
