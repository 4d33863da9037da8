"""Text environments of Gymnasium: seeds are tasks, what `reset` shows is the prompt, the return is the reward.

GymnasiumTasks(id="my_package:Maze-v0").source("train", extended(PAPER, "act")).tasks(objectives=1, count=2, seed=0)
->  [Task(id="my_package:Maze-v0 81026543", prompt="You stand in a hall ...", turn_limit=20), ...]
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

from pydantic import Field

from mem1.envs.base import Environment, Observation, Outcome, TaskSource
from mem1.envs.replayed import EpisodeFailed, ReplayedEnvironment, check_episodes, measured, one_task, said
from mem1.envs.tasks import TasksConfig
from mem1.errors import UserError
from mem1.protocol import ACT, Tags
from mem1.records import Metric, Task
from mem1.registry import load
from mem1.scoring import number
from mem1.tasks.compose import Split
from mem1.tasks.prompts import PromptChoice

log = logging.getLogger(__name__)

SEEDS = 1 << 29
"""Seeds of each part of the tasks: training has those below it, then come development and test."""
_TEXTS = 100
"""Tasks whose prompts a tokenizer is trained on."""


class GymnasiumTasks(TasksConfig):
    """Episodes of a Gymnasium environment whose observations are texts, and whose actions are texts or names."""

    kind: str = "gymnasium"
    rewards: ClassVar[tuple[str, ...]] = ("return",)
    prompts: ClassVar[tuple[str, str, str]] = ("episode", "episode", "tools-episode")
    asks: ClassVar[tuple[str, ...]] = (ACT,)
    reward: str = "return"
    """return: the sum of the environment's rewards; or one of your own, as package.module:name."""
    id: str
    """Id for `gymnasium.make`, such as my_package:Maze-v0; or package.module:name of a function or class that makes the
    environment."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the environment."""
    actions: list[str] = Field(default_factory=list)
    """Names of discrete actions, in order; empty: their numbers."""
    turn_limit: int = Field(default=20, ge=1, le=10_000)
    """Largest number of actions in an episode."""
    prompt: PromptChoice | None = None
    """Text at the head of every context. None: as [protocol] and these tasks need it."""
    evaluated: Literal["test", "development"] = "test"
    """Which seeds an evaluation uses; neither occurs in training."""
    live: int = Field(default=256, ge=1, le=100_000)
    """Environments kept for open attempts; where there are more attempts, actions are repeated in new ones."""

    def source(self, split: Split, tags: Tags) -> TaskSource:
        """The tasks of one half of the seeds. Raises UserError for an environment that is not one of texts."""
        check_episodes(tags)
        source = GymnasiumSource(self, split, tags)
        made = source.make()
        try:
            made.close()
        except Exception as error:  # whatever a stranger's environment raises
            log.warning("tasks.id = %r: close() fails, which is passed over: %s", self.id, said(error))
        return source

    def development(self) -> GymnasiumTasks:
        return self.model_copy(update={"evaluated": "development"})

    def expert(self, tasks: Sequence[Task], environment: Environment, tags: Tags, *, seed: int) -> Callable[[str], str]:
        raise UserError(
            "a Gymnasium environment has no expert; give demonstrations as sft.trajectories, or train by [rl] alone"
        )

    def texts(self, tags: Tags) -> Iterable[str]:
        yield from self.actions
        for task in self.source("train", tags).tasks(objectives=1, count=_TEXTS, seed=0):
            yield task.prompt

    def turns(self, objectives: int) -> int:
        return self.turn_limit

    def measured(self, source: TaskSource, task: Task, tags: Tags) -> Mapping[str, Metric]:
        return measured(self.wrap_environment(source.environment), task)


@dataclass(frozen=True)
class GymnasiumSource(TaskSource):
    """Episodes whose seeds are those of one half."""

    config: GymnasiumTasks
    half: Split
    tags: Tags

    @cached_property
    def environment(self) -> ReplayedEnvironment:
        def begin(task: Task) -> GymnasiumEpisode:
            name, _, seed = task.id.rpartition(" ")
            if name != self.config.id or not seed.isdecimal():
                raise UserError(f"task {task.id!r} is none of the environment {self.config.id!r}")
            return GymnasiumEpisode(self.make(), int(seed), self.config.actions)

        return ReplayedEnvironment(begin, live=self.config.live)

    def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
        """Tasks of different seeds of this half."""
        check_episodes(self.tags, objectives)
        part = 0 if self.half == "train" else 1 if self.config.evaluated == "development" else 2
        rng = random.Random(f"gymnasium/{self.half}/{seed}")
        return [self._task(part * SEEDS + drawn) for drawn in rng.sample(range(SEEDS), count)]

    def make(self) -> Any:
        """A new environment. Raises UserError where it cannot be made or is not one of texts."""
        config = self.config
        try:
            import gymnasium
            from gymnasium.spaces import Discrete, Text
        except ImportError as error:
            raise UserError(
                f'tasks.kind = "gymnasium" needs gymnasium ({error}): pip install "mem1-agents[gymnasium]"'
            ) from error
        try:
            if all(part.isidentifier() for part in config.id.replace(":", ".").split(".")) and ":" in config.id:
                made = load(config.id)(**config.args)
            else:
                made = gymnasium.make(config.id, disable_env_checker=True, **config.args)
            observations, actions = made.observation_space, made.action_space
        except UserError:
            raise
        except Exception as error:  # whatever a stranger's environment raises
            raise UserError(
                f"tasks.id = {config.id!r} cannot be made: {said(error)}; the id is one that gymnasium knows, "
                "my_package:Name-v0, or package.module:name of a function that makes it"
            ) from error
        if not isinstance(observations, Text):
            raise UserError(
                f"tasks.id = {config.id!r}: its observations are {observations}, not Text; name a function that wraps "
                "it in an environment whose observations are texts (docs/extending/gymnasium.md)"
            )
        if not isinstance(actions, Text | Discrete):
            raise UserError(f"tasks.id = {config.id!r}: its actions are {actions}; they must be Text or Discrete")
        if isinstance(actions, Discrete) and config.actions and len(config.actions) != actions.n:
            raise UserError(f"tasks.actions names {len(config.actions)} actions, but {config.id!r} has {actions.n}")
        if len(set(config.actions)) < len(config.actions) or (config.actions and not isinstance(actions, Discrete)):
            raise UserError(
                "tasks.actions must be different names of discrete actions; leave it out where there are none"
            )
        return made

    def _task(self, seed: int) -> Task:
        config = self.config
        try:
            episode = GymnasiumEpisode(self.make(), seed, config.actions)
        except EpisodeFailed as error:
            raise UserError(f"tasks.id = {config.id!r}, seed {seed}: {error}") from error
        text = episode.shown if not episode.names else f"{episode.shown}\nActions: {', '.join(episode.names)}"
        task = one_task(
            f"{config.id} {seed}",
            text,
            turn_limit=config.turn_limit,
            prompt=config.own_prompt(self.tags),
            tags=self.tags,
        )
        self.environment.offer(task, episode)
        return task


class GymnasiumEpisode:
    """One episode of an environment of its own."""

    def __init__(self, environment: Any, seed: int, names: Sequence[str]) -> None:
        """Raises EpisodeFailed where the environment does."""
        self._environment: Any = environment
        self.over = False
        self._return, self._steps = 0.0, 0
        space = environment.action_space
        numbers = range(int(space.start), int(space.start) + int(space.n)) if hasattr(space, "n") else ()
        self.names: Mapping[str, int] = dict(zip(names or map(str, numbers), numbers, strict=True))
        """Discrete actions by name; empty: actions are texts."""
        self.shown = self._called(lambda: environment.reset(seed=seed), "reset", "observation, info")[0]
        """What `reset` showed."""

    def act(self, action: str) -> Observation:
        """One step; an action that the environment does not have is answered with those that it has."""
        space = self._environment.action_space
        chosen: Any = self.names.get(action.strip()) if self.names else action
        if self.names and chosen is None:
            listed = ", ".join(self.names)
            return Observation(text=f"There is no action {action.strip()[:80]!r}. The actions are: {listed}.")
        if not self.names and not space.contains(chosen):
            return Observation(text=f"This is no action that the environment accepts: it must be one of {space}.")
        text, reward, terminated, truncated, _ = self._called(
            lambda: self._environment.step(chosen), "step", "observation, reward, terminated, truncated, info"
        )
        try:
            self._return, self._steps = self._return + number(reward), self._steps + 1
        except ValueError as error:
            raise EpisodeFailed(f"the reward of its action {action!r:.80} is {error}") from error
        self.over = bool(terminated or truncated)
        return Observation(text=text)

    def end(self) -> Outcome:
        self.close()
        if not math.isfinite(self._return):
            raise EpisodeFailed(f"its rewards add up to {self._return}")
        return Outcome(self._return, {"steps": float(self._steps)})

    def close(self) -> None:
        made, self._environment = self._environment, None
        if made is not None:
            with suppress(Exception):  # it is over, and what it showed and gave is known
                made.close()

    def _called(self, call: Callable[[], Any], method: str, values: str) -> Any:
        try:
            result = call()
        except Exception as error:  # whatever a stranger's environment raises
            raise EpisodeFailed(said(error)) from error
        if not isinstance(result, tuple) or len(result) != values.count(",") + 1:
            raise EpisodeFailed(f"its {method} returned {' '.join(repr(result).split())[:80]}, not ({values})")
        if not isinstance(result[0], str):
            raise EpisodeFailed(f"its observation is a {type(result[0]).__name__}, not a text")
        return result
