"""Tasks of a verifiers environment, an installed package: its prompts, replies, stops, tools and scores.

VerifiersTasks(taskset="reverse-text").source("train", extended(PAPER, "act")).tasks(objectives=1, count=1, seed=0)
->  [Task(id="reverse-text 5f1c0d3be2a7", prompt="Reverse the text character-by-character. ...", turn_limit=10)]
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

from pydantic import Field

from mem1.envs.base import Environment, TaskSource
from mem1.envs.replayed import EpisodeFailed, ReplayedEnvironment, check_episodes, measured, one_task, said
from mem1.envs.tasks import TasksConfig
from mem1.envs.verifiers.episodes import Play, Stage
from mem1.envs.verifiers.messages import Tool, call, explained, shown
from mem1.errors import UserError
from mem1.protocol import ACT, Tags
from mem1.records import Metric, Task
from mem1.tasks.compose import Split
from mem1.tasks.prompts import PromptChoice

_TEXTS = 1000
"""Tasks whose prompts a tokenizer is trained on."""


class VerifiersTasks(TasksConfig):
    """Episodes of an environment of verifiers 0.4."""

    kind: str = "verifiers"
    rewards: ClassVar[tuple[str, ...]] = ("verifiers",)
    prompts: ClassVar[tuple[str, str, str]] = ("episode", "episode", "tools-episode")
    asks: ClassVar[tuple[str, ...]] = (ACT,)
    reward: str = "verifiers"
    """verifiers: the environment's; or one of your own, as package.module:name."""
    taskset: str = Field(min_length=1)
    """Id of an installed package, or of a module in the current folder, that exports a `Taskset`."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keys of its configuration."""
    evaluation_args: dict[str, Any] | None = None
    """`args` for the tasks of evaluations, such as another split; None: a share of the tasks is kept for them."""
    evaluation_share: float = Field(default=0.2, gt=0, lt=1)
    """Share of the tasks that training does not see, where there are no `evaluation_args`."""
    env: dict[str, Any] = Field(default_factory=dict)
    """Keys of the environment: `id`, where the package does not bring one, its agents and its own."""
    agent: str = ""
    """The agent that the policy plays; empty: the only one."""
    most_tasks: int = Field(default=1000, ge=2)
    """Tasks taken from an infinite set."""
    turn_limit: int = Field(default=10, ge=1, le=10_000)
    """Largest number of replies and tool calls in an episode; the environment may end it sooner."""
    prompt: PromptChoice | None = None
    """Text at the head of every context. None: as [protocol] and these tasks need it."""
    list_tools: bool = True
    """Explain the environment's tools in the prompt; a model that calls tools is told of them by its template."""
    timeout_s: float = Field(default=600, gt=0)
    """Seconds that the environment may take for a reply, or for its score."""
    live: int = Field(default=128, ge=1, le=100_000)
    """Episodes kept for open attempts; where there are more attempts, actions are repeated in new ones."""
    threads: int = Field(default=16, ge=1, le=1000)
    """Episodes that go on at the same time."""

    def source(self, split: Split, tags: Tags) -> TaskSource:
        """The tasks of one half. Raises UserError for an environment that cannot be played."""
        check_episodes(tags)
        source = VerifiersSource(self, split, tags)
        _ = source.tasks_by_id
        return source

    def expert(self, tasks: Sequence[Task], environment: Environment, tags: Tags, *, seed: int) -> Callable[[str], str]:
        raise UserError(
            "an environment of verifiers has no expert; give demonstrations as sft.trajectories, or train by [rl] alone"
        )

    def texts(self, tags: Tags) -> Iterable[str]:
        source = VerifiersSource(self, "train", tags)
        yield explained(source.tools)
        for task in itertools.islice(source.tasks_by_id.values(), _TEXTS):
            yield shown(_messages(task.data))
            yield json.dumps(task.data.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False)

    def turns(self, objectives: int) -> int:
        return self.turn_limit

    def measured(self, source: TaskSource, task: Task, tags: Tags) -> Mapping[str, Metric]:
        return measured(self.wrap_environment(source.environment), task)

    def settings(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """What verifiers calls the configuration of the environment."""
        return {**self.env, "taskset": {**args, "id": self.taskset}}


@dataclass(frozen=True)
class VerifiersSource(TaskSource):
    """One half of an environment's tasks."""

    config: VerifiersTasks
    half: Split
    tags: Tags

    @cached_property
    def environment(self) -> ReplayedEnvironment:
        by_name = {tool["function"]["name"]: tool for tool in self.tools}
        return ReplayedEnvironment(
            self._begin,
            live=self.config.live,
            threads=self.config.threads,
            tools=self.tools,
            called=lambda name, argument: call(by_name[name], argument),
        )

    @cached_property
    def tools(self) -> list[Tool]:
        """The tools of the environment, as chat completions describe them; empty: there are none."""
        stage, some = self._stage, next(iter(self.tasks_by_id.values()))
        if stage.plain and not some.toolsets(some.config) and not stage.env.taskset.toolsets(stage.env.taskset.config):
            return []
        try:
            play = stage.begin(some, self.config.timeout_s)
        except EpisodeFailed as error:
            raise UserError(f"tasks.taskset = {self.config.taskset!r}: {error}") from error
        tools = play.tools
        play.close()
        return tools

    @cached_property
    def tasks_by_id(self) -> dict[str, Any]:
        """verifiers' tasks of this half by the ids of ours, without repetitions."""
        config = self.config
        own = _loaded(config, config.args)
        if config.evaluation_args is not None:
            evaluated = _loaded(config, config.evaluation_args)
            own = evaluated if self.half == "evaluation" else {k: t for k, t in own.items() if k not in evaluated}
        else:
            order = sorted(own)  # of digests, hence at random, and the same for everybody
            cut = max(1, round(config.evaluation_share * len(order)))
            own = {name: own[name] for name in (order[:cut] if self.half == "evaluation" else order[cut:])}
        if not own:
            raise UserError(f"tasks.taskset = {config.taskset!r} has no tasks for {self.half}; give it more, or others")
        return own

    def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
        """Tasks in a seeded order: each is used once before any is repeated."""
        check_episodes(self.tags, objectives)
        rng, names = random.Random(f"verifiers/{self.half}/{seed}"), list(self.tasks_by_id)
        drawn = [name for _ in range(-(-count // len(names))) for name in rng.sample(names, len(names))][:count]
        return [self._task(name) for name in drawn]

    @property
    def _stage(self) -> Stage:
        config = self.config
        evaluated = self.half == "evaluation" and config.evaluation_args is not None
        return _stage(config, json.dumps(config.evaluation_args if evaluated else config.args, sort_keys=True))

    def _begin(self, task: Task) -> Play:
        if task.id not in self.tasks_by_id:
            raise UserError(f"task {task.id!r} is none of the {self.half} tasks of {self.config.taskset!r}")
        return self._stage.begin(self.tasks_by_id[task.id], self.config.timeout_s)

    def _task(self, name: str) -> Task:
        config, task, play = self.config, self.tasks_by_id[name], None
        try:
            if self._stage.plain:
                text = shown(_messages(task.data))
            else:
                play = self._stage.begin(task, config.timeout_s)
                text = play.opening
        except EpisodeFailed as error:
            raise UserError(f"tasks.taskset = {config.taskset!r}, task {name!r}: {error}") from error
        tools = explained(self.tools) if config.list_tools else ""
        ours = one_task(
            name,
            "\n\n".join(filter(None, (text, tools))),
            turn_limit=config.turn_limit,
            prompt=config.own_prompt(self.tags),
            tags=self.tags,
        )
        if play is not None:
            self.environment.offer(ours, play)
        return ours


def _messages(data: Any) -> list[dict[str, Any]]:
    """The messages that verifiers' task begins with."""
    prompt = data.prompt or []
    system = [] if data.system_prompt is None else [{"role": "system", "content": data.system_prompt}]
    said_first = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [m.model_dump() for m in prompt]
    return [*system, *said_first]


@lru_cache(maxsize=8)
def _made_stage(key: str, seat: str) -> Stage:
    try:
        import verifiers.v1  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(
            f'tasks.kind = "verifiers" needs verifiers 0.4 and Python 3.11 ({error}): pip install '
            "'mem1-agents[verifiers]'"
        ) from error
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    return Stage(json.loads(key), seat)


def _stage(config: VerifiersTasks, args: str) -> Stage:
    """Both halves share one, where they have the same arguments."""
    return _made_stage(json.dumps(config.settings(json.loads(args)), sort_keys=True), config.agent)


def _loaded(config: VerifiersTasks, args: Mapping[str, Any]) -> dict[str, Any]:
    """verifiers' tasks by ids made of their contents, but for their number and name in the set."""
    stage = _stage(config, json.dumps(args, sort_keys=True))
    taskset = stage.env.taskset
    try:
        tasks = list(taskset if taskset.bounded else taskset.take(config.most_tasks))
    except Exception as error:  # whatever a stranger's package raises
        raise UserError(f"the tasks of {config.taskset!r} cannot be loaded: {said(error)}") from error
    return {f"{config.taskset} {_digest(task)}": task for task in tasks}


def _digest(task: Any) -> str:
    # a name says where a task stands, such as train-3; None as in sets without names, so that their ids stay
    written = json.dumps({**task.data.model_dump(mode="json", exclude={"idx"}), "name": None}, sort_keys=True)
    return hashlib.sha256(written.encode()).hexdigest()[:12]
