"""Advantages as a sum of channels: what is compared, how it is normalised, and the tokens that it lands on.

    [rl.algorithm]
    name = "channels"
    channels = [{ name = "objectives" }, { name = "memory_length", weight = 0.1 }]

| channel | compares, within a group | lands on |
|---|---|---|
| outcome | the rewards of attempts | all tokens of the attempt |
| objectives | for each question, who answered it | the turns that work on this question |
| memory_length | the memory written by attempts that were right | the memory |

With `name = "ppo"` a channel is a reward: what each turn earned by itself, paid at the last token that it lands on.

Each channel is normalised by itself and never together with another: a z-score of their sum would let the one that
varies most decide. With the channel `outcome` alone this is `grpo`, to the digit. The objectives of a turn are those
whose titles its query names, or the query before it, whose result it reads; an answer works on all. One number for a
whole attempt makes what was right about one question pay for what was wrong about another, the more so the more
questions there are.

Sources: GRPO (arXiv 2402.03300) for the normalisation; credit for parts of an outcome is as old as reward decomposition
(Russell & Zimdars 2003). A length penalty on right attempts alone, as those of wrong ones say nothing about what memory
is worth keeping.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from mem1.algorithms.base import Advantages, Attempt, ClippedAlgorithm, one_for_each
from mem1.algorithms.group import centred_advantages, normalised_advantages
from mem1.configuration import Config
from mem1.configuration.by_name import ByName
from mem1.errors import UserError
from mem1.memory import memory_spans
from mem1.protocol import ANSWER, SUMMARY
from mem1.records import UNSCORED, Ended, Metric, Question, Task, Trajectory, Turn, per_objective
from mem1.registry import register
from mem1.scoring import normalize, whole_words

if TYPE_CHECKING:
    from torch import Tensor

Where = Literal["all", "memory", "action"]
"""Tokens of a turn: all that were sampled, its state and notes (or its summary), or its action."""
ByTurn = list[float]
"""A number for each turn of an attempt."""


class Channel(Config):
    """Base of all channels. A subclass defines `by_turn`."""

    name: str = ""
    weight: float = 1.0
    tokens: Where = "all"
    """Where it lands; the other tokens get 0 from it."""
    scale: bool = True
    """Divide by the standard deviation; False: subtract the mean alone."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        return register.channel.with_name(cls, data)

    def check(self, task: Task, measured: Mapping[str, Metric]) -> None:
        """Raises UserError where attempts at such a task lack what it needs; `measured` are the metrics of one."""

    def by_turn(self, attempts_G: Sequence[Attempt]) -> list[ByTurn]:
        """For each attempt at one task, the normalised number of each of its turns."""
        raise NotImplementedError(f"{type(self).__name__} must define by_turn")

    def rewards(self, attempt: Attempt) -> ByTurn:
        """For `ppo`: what each turn of the attempt earned, in units of reward; not every channel can say."""
        raise NotImplementedError(f"{type(self).__name__} compares attempts; it has no rewards")

    @property
    def has_rewards(self) -> bool:
        return type(self).rewards is not Channel.rewards

    @property
    def demanding(self) -> bool:
        """Whether it needs what not every task has."""
        return type(self).check is not Channel.check

    def normalised(self, values: Sequence[float]) -> Sequence[float]:
        """Less their mean, over their standard deviation; 0 where there is nothing to compare with."""
        if len(values) < 2:
            return (0.0,) * len(values)
        return normalised_advantages(values) if self.scale else centred_advantages(values)


class Outcome(Channel):
    """The reward of the attempt, its KL penalties subtracted, on every turn."""

    memory_limit: int | None = Field(default=None, ge=0)
    """Most memory tokens that a turn may write; an attempt that writes more has the reward 0. None: any number."""

    def by_turn(self, attempts_G: Sequence[Attempt]) -> list[ByTurn]:
        counts = [not self._overflows(x.trajectory) for x in attempts_G]
        differ = len({x.shaped_reward if c else 0.0 for c, x in zip(counts, attempts_G, strict=True)}) > 1
        rewards = [
            (x.shaped_reward if c else 0.0) - (x.kl_penalty if differ else 0.0)
            for c, x in zip(counts, attempts_G, strict=True)
        ]
        return [[a] * len(x.trajectory.turns) for a, x in zip(self.normalised(rewards), attempts_G, strict=True)]

    def rewards(self, attempt: Attempt) -> ByTurn:
        """All at the end; the KL penalty of a token is taken at the token."""
        earned = 0.0 if self._overflows(attempt.trajectory) else attempt.shaped_reward
        return [*[0.0] * (len(attempt.trajectory.turns) - 1), earned][: len(attempt.trajectory.turns)]

    def _overflows(self, attempt: Trajectory) -> bool:
        limit = math.inf if self.memory_limit is None else self.memory_limit
        return any(len(places(turn, "memory")) > limit for turn in attempt.turns)


class Measured(Channel):
    """Base of channels that read a metric of the environment, or of the agent."""

    metric: str = "em"
    """Its name."""

    def check(self, task: Task, measured: Mapping[str, Metric]) -> None:
        if self.metric not in measured and UNSCORED not in measured:
            raise UserError(
                f"the channel {self.name} reads the metric {self.metric!r}, which attempts at these tasks do not have; "
                f"they have: {', '.join(measured) or 'none'}. Set its metric to one of them, or leave the channel out"
            )

    def measurements(self, attempts_G: Sequence[Attempt]) -> list[tuple[float, ...]]:
        """The metric of each attempt, empty where it ended before it was measured.

        Raises UserError, as `check` does, where attempts that came to their end do not have it: only an agent shows
        what it measures by running.
        """
        found = [x.trajectory.per_objective(self.metric) for x in attempts_G]
        for attempt, scores in zip((x.trajectory for x in attempts_G), found, strict=True):
            if attempt.task is not None and (scores or (attempt.ended is Ended.ANSWERED and not any(found))):
                self.check(attempt.task, attempt.metrics)
        return found


class Objectives(Measured):
    """Question by question: attempt i gets (r_ij - mean_j) / std_j on the turns that work on question j."""

    def check(self, task: Task, measured: Mapping[str, Metric]) -> None:
        super().check(task, measured)
        value = measured.get(self.metric, (0.0,) * task.objectives)
        if (size := len(per_objective(value))) != task.objectives:
            raise UserError(
                f"the channel {self.name} needs the metric {self.metric!r} of each question, but task {task.id!r} has "
                f"{task.objectives} and {size} of it; set its metric to another, or leave the channel out"
            )

    def by_turn(self, attempts_G: Sequence[Attempt]) -> list[ByTurn]:
        scores = self.measurements(attempts_G)
        size = max((x.trajectory.task.objectives for x in attempts_G if x.trajectory.task is not None), default=0)
        padded = [(*of_one, *(0.0,) * (size - len(of_one))) for of_one in scores]  # one that measured nothing
        by_objective = [self.normalised([of_one[j] for of_one in padded]) for j in range(size)]
        found: list[ByTurn] = []
        for i, attempt in enumerate(attempts_G):
            advantages = [of_objective[i] for of_objective in by_objective]
            found.append([_mean([advantages[j] for j in worked]) for worked in worked_on(attempt.trajectory)])
        return found


class MemoryLength(Measured):
    """Minus the memory tokens that an attempt writes a turn, compared among attempts that were right."""

    tokens: Where = "memory"
    least: float = Field(default=1.0, ge=0, le=1)
    """Smallest mean of it, over questions, with which an attempt takes part; 0: all do, as in published penalties."""

    def by_turn(self, attempts_G: Sequence[Attempt]) -> list[ByTurn]:
        right = [i for i, scores in enumerate(self.measurements(attempts_G)) if _mean(scores) >= self.least]
        by_attempt = [[len(places(turn, "memory")) for turn in attempts_G[i].trajectory.turns] for i in right]
        lengths = [-_mean(of_one) for of_one in by_attempt]
        advantages = dict(zip(right, self.normalised(lengths), strict=True))
        return [[advantages.get(i, 0.0)] * len(x.trajectory.turns) for i, x in enumerate(attempts_G)]

    def rewards(self, attempt: Attempt) -> ByTurn:
        """Minus the memory tokens of the turn."""
        (scores,) = self.measurements([attempt])
        taken = _mean(scores) >= self.least
        return [-float(len(places(turn, "memory"))) if taken else 0.0 for turn in attempt.trajectory.turns]


SomeChannels = Annotated[
    tuple[Annotated[Channel, ByName(register.channel, key="name")], ...],
    BeforeValidator(lambda given: tuple(given) if isinstance(given, list) else given),
    Field(min_length=1),
]


def check_channels(channels: Sequence[Channel], task: Task, measured: Callable[[], Mapping[str, Metric]]) -> None:
    """`Channel.check` of each; an attempt is measured only if one of them needs anything."""
    demanding = [channel for channel in channels if channel.demanding]
    metrics = measured() if demanding else {}
    for channel in demanding:
        channel.check(task, metrics)


def rehearsed(channels: Sequence[Channel]) -> tuple[Channel, ...]:
    """The outcome, and what works on the tasks that stand in for the recipe's: they may measure other things."""
    return (Outcome(), *(channel for channel in channels if not channel.demanding))


class Channels(ClippedAlgorithm):
    """The weighted sum of some channels; the clipped surrogate."""

    channels: SomeChannels

    def advantages(self, groups: Sequence[Sequence[Attempt]]) -> list[list[Advantages | None]]:
        return [[Advantages(advantages_K=a_K) for a_K in self._of_group(group)] for group in groups]

    @property
    def pays_kl(self) -> bool:
        """The outcome's alone is made of rewards from which it is subtracted."""
        return any(isinstance(channel, Outcome) for channel in self.channels)

    def check(self, task: Task, measured: Callable[[], Mapping[str, Metric]]) -> None:
        check_channels(self.channels, task, measured)

    def rehearsal(self) -> Channels:
        """With the outcome besides: what random attempts write may differ in nothing that the other channels see."""
        return self.model_copy(update={"channels": rehearsed(self.channels)})

    def _of_group(self, attempts_G: Sequence[Attempt]) -> Iterator[Tensor]:
        import torch

        turns, due = [x.trajectory.turns for x in attempts_G], "of each attempt a number for each turn"
        by_channel = [
            one_for_each(channel.by_turn(attempts_G), turns, f"by_turn of {type(channel).__name__}", due)
            for channel in self.channels
        ]
        for i, attempt in enumerate(attempts_G):
            parts: list[Tensor] = []
            for number, turn in enumerate(attempt.trajectory.turns):
                a_K = torch.zeros(len(turn.completion_ids))
                for channel, by_turn in zip(self.channels, by_channel, strict=True):
                    a_K[places(turn, channel.tokens)] += channel.weight * by_turn[i][number]
                parts.append(a_K)
            yield torch.cat(parts) if parts else torch.zeros(0)


def paid(channels: Sequence[Channel], attempt: Attempt) -> Tensor:
    """(K,) the weighted rewards of the channels, each at the last token of its turn on which the channel lands.

    Where a channel lands on no token of a turn, the last one sampled by then; without any, the reward goes nowhere.
    """
    import torch

    rewards_K = torch.zeros(attempt.trajectory.num_completion_tokens)
    for channel in channels:
        start = 0
        for turn, reward in zip(attempt.trajectory.turns, channel.rewards(attempt), strict=True):
            stop = start + len(turn.completion_ids)
            last = max((start + place for place in places(turn, channel.tokens)), default=stop - 1)
            if last >= 0:
                rewards_K[last] += channel.weight * reward
            start = stop
    return rewards_K


def places(turn: Turn, where: Where) -> list[int]:
    """Positions of these tokens in the completion of the turn, in order."""
    if where == "all" or (where == "memory" and turn.action == SUMMARY):
        return list(range(len(turn.completion_ids)))
    action = turn.completion_spans.get("action", (0, 0))
    wanted = [action] if where == "action" else memory_spans(turn)
    return sorted(set(chain.from_iterable(range(start, stop) for start, stop in wanted)))


def worked_on(trajectory: Trajectory) -> list[list[int]]:
    """For each turn, the questions (from 0) that it works on: those whose titles its query names, or the query before
    it; all of them for an answer, and where none is named. Where an environment says which turn reads what a question
    is about (`Question.read_at`), the questions of this turn alone.

    Raises ValueError for an attempt without its task.
    """
    if trajectory.task is None:
        raise ValueError("a trajectory has no task, so its questions are not known; keep the task when rolling out")
    questions = trajectory.task.questions
    if any(question.read_at is not None for question in questions):
        turns = range(1, len(trajectory.turns) + 1)
        return [[j for j, question in enumerate(questions) if question.read_at == number] for number in turns]
    found: list[list[int]] = []
    before: list[int] = []
    for turn in trajectory.turns:
        named = [] if turn.action in (ANSWER, SUMMARY) else _named(turn.content, questions)
        together = sorted({*before, *named})
        found.append(list(range(len(questions))) if turn.action == ANSWER or not together else together)
        before = before if turn.action == SUMMARY else named  # a summary has no result of its own
    return found


def _named(query: str, questions: Sequence[Question]) -> list[int]:
    words = whole_words(query)
    return [
        number
        for number, question in enumerate(questions)
        if any(whole_words(title) in words for title in question.titles if normalize(title))
    ]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
