"""Tasks of mem1 as an environment of verifiers, with a memory for its agent (docs/extending/verifiers.md).

    # atlas_tasks.py, a module in the current folder or of a package of yours
    from mem1.extras.verifiers import MemoryEnv, MemoryLoop, RecipeTaskset
    __all__ = ["MemoryEnv", "MemoryLoop", "RecipeTaskset"]

    vf-eval atlas_tasks --env.taskset.objectives 2 --env.agent.harness.memory "fold(4)"

The actions of the recipe's tags are tools, its answer is the agent's last message, or in a shop and the like what the
actions have made up, and our scorer is the reward.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import Any, Literal
from weakref import WeakValueDictionary

from mem1.api import load_recipe
from mem1.envs.base import Action
from mem1.errors import UserError
from mem1.messages import RECALL_TOOL, Memory
from mem1.policy.protocol import resolve
from mem1.protocol import Tags
from mem1.records import Task, per_objective, task_from_json, task_to_json
from mem1.tasks.prompts import render

try:
    import verifiers.v1 as vf

    from mem1.envs.verifiers.chat_loop import ChatLoop, ChatLoopConfig, Send
except ImportError as error:
    raise UserError(
        f'tasks for verifiers need verifiers 0.4 and Python 3.11 ({error}): pip install "mem1-agents[verifiers]"'
    ) from error

__all__ = ["MemoryEnv", "MemoryLoop", "RecipeTaskset"]

ASKED = (
    "Answer every question. Search for what you need. Then reply with all answers, each as short as possible and "
    "labelled with the number of its question, separated by semicolons: Q1 ...; Q2 ..."
)
BEGUN = "Do what is described below, by calling the tool act, until it is done."


class Drawn(vf.BaseConfig):
    """Which tasks are drawn."""

    recipe: str = "atlas-quick"
    """A recipe's file, or a shipped one, whose [tasks] and [protocol] are used."""
    overrides: list[str] = []  # noqa: RUF012  # pydantic copies it
    """Keys of the recipe to change, such as tasks.worlds=2."""
    split: Literal["train", "evaluation"] = "evaluation"
    objectives: int = 1
    """Questions per task."""
    tasks: int = 100
    seed: int = 0


class ToolsConfig(Drawn, vf.SharedToolsetConfig):
    pass


class RecipeConfig(Drawn, vf.TasksetConfig):
    pass


class Progress(vf.State):
    """What an attempt has done."""

    ours: dict[str, Any] = {}  # noqa: RUF012
    """Our task."""
    history: list[tuple[str, str]] = []  # noqa: RUF012
    answer: str = ""
    """The answer that actions made up, such as purchases."""
    ended: bool = False

    @property
    def over(self) -> bool:
        """Whether no more actions are taken."""
        return self.ended or len(self.history) >= self.ours["turn_limit"]


class RecipeData(vf.TaskData):
    ours: dict[str, Any]
    """Our task."""


class RecipeTask(vf.Task[RecipeData, Progress]):
    """Scored by our environment."""

    source: Any
    """Our tasks; given by the taskset, with the tags."""
    tags: Tags

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        trace.state.ours = self.data.ours

    @vf.stop
    async def over(self, trace: vf.Trace) -> bool:
        return trace.state.over

    @vf.reward
    async def scored(self, trace: vf.Trace) -> float:
        said = trace.last_reply if self.tags.answers else ""
        answer = said or trace.state.answer
        outcome = self.source.environment.score(task_from_json(self.data.ours), answer)
        for name, value in outcome.metrics.items():
            values = per_objective(value)
            trace.record_metric(name, sum(values) / len(values))
        return outcome.reward


class RecipeTools(vf.Toolset[ToolsConfig, Progress]):
    """The actions of the tags, in a process of its own that all attempts share."""

    TOOL_PREFIX = None

    async def setup(self) -> None:
        self._turns: WeakValueDictionary[Any, asyncio.Lock] = WeakValueDictionary()
        source, _ = await asyncio.to_thread(_drawn, self.config)
        self.environment = await asyncio.to_thread(lambda: source.environment)

    def register(self, mcp: Any) -> None:
        for kind in resolve(load_recipe(self.config.recipe, *self.config.overrides)).tags.action_tags:
            if (tool := getattr(self, kind, None)) is not None:
                mcp.add_tool(self._in_turn(self._with_state(tool)), name=kind, description=tool.__doc__)

    def _in_turn(self, tool: Callable[..., Any]) -> Callable[..., Any]:
        """Calls of one attempt wait for one another: verifiers keeps the state that was written last, whole."""

        @wraps(tool)
        async def called(*args: Any, **kwargs: Any) -> Any:
            attempt = self._state_channel()
            async with self._turns.setdefault(attempt, asyncio.Lock()):
                return await tool(*args, **kwargs)

        return called

    @vf.tool
    async def search(self, query: str) -> str:
        """Searches the documents and returns the best passages."""
        return await self._observed("search", query)

    @vf.tool
    async def open(self, address: str) -> str:
        """Opens a page by its address; a number after the address opens a later piece of it."""
        return await self._observed("open", address)

    @vf.tool
    async def act(self, action: str) -> str:
        """Takes one action in the environment and returns what it shows then."""
        return await self._observed("act", action)

    async def _observed(self, kind: str, argument: str) -> str:
        state = self.state
        if state.over:
            raise RuntimeError(f"the episode is over after {len(state.history)} actions; no more are taken")
        action = Action(task_from_json(state.ours), kind, argument, tuple((k, a) for k, a in state.history))
        (reply,) = await asyncio.to_thread(self.environment.observe, [action])
        if reply.failed is not None:
            raise RuntimeError(reply.failed)
        state.history = [*state.history, (kind, argument)]
        state.answer, state.ended = reply.answer or state.answer, reply.ended
        return reply.text


class RecipeTaskset(vf.Taskset[RecipeTask, RecipeConfig]):
    """The tasks of a recipe."""

    @classmethod
    def toolsets(cls, config: RecipeConfig) -> list[vf.Toolset]:
        return [RecipeTools(ToolsConfig(**{name: getattr(config, name) for name in Drawn.model_fields}))]

    def load(self) -> list[RecipeTask]:
        config = self.config
        source, tags = _drawn(config)
        tasks = source.tasks(objectives=config.objectives, count=config.tasks, seed=config.seed)
        return [self._task(task, source, tags) for task in tasks]

    def _task(self, ours: Task, source: Any, tags: Tags) -> RecipeTask:
        questions = render("plain", ours.questions, tags)
        prompt = f"{ASKED if tags.answers else BEGUN}\n\n{questions}"
        task = RecipeTask(RecipeData(name=ours.id, prompt=prompt, ours=task_to_json(ours)), self.config.task)
        task.source, task.tags = source, tags
        return task


class MemoryLoopConfig(ChatLoopConfig):
    memory: str = ""
    """Memory of the agent, such as fold(4): see mem1.messages. Empty: the model sees all messages."""


class MemoryLoop(ChatLoop, vf.Harness[MemoryLoopConfig]):
    """The chat loop, with a memory between the conversation and the model."""

    def remembering(self) -> tuple[Send, Sequence[Any], Any]:
        if not self.config.memory:
            return super().remembering()
        memory = Memory(self.config.memory)

        async def send(messages: list[Any], ask: Any) -> Any:
            return await ask(await memory.aprompt(messages, write=ask))

        return send, [RECALL_TOOL] if memory.shows_handles else [], memory.recall


class MemoryEnvConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class MemoryEnv(vf.SingleAgentEnv, vf.Env[MemoryEnvConfig]):
    """One agent, which runs on this machine: it executes nothing but our tools."""


def _drawn(config: Drawn) -> tuple[Any, Tags]:
    return _source(config.recipe, tuple(config.overrides), config.split)


@lru_cache(maxsize=4)
def _source(name: str, overrides: tuple[str, ...], split: Literal["train", "evaluation"]) -> tuple[Any, Tags]:
    recipe = load_recipe(name, *overrides)
    if recipe.tasks.reward_function is not None:
        raise UserError(
            f"tasks.reward = {recipe.tasks.reward!r} needs an attempt of ours; use one of the environment's"
        )
    speaks = resolve(recipe)
    return speaks.tasks.source(split, speaks.tags), speaks.tags


if __name__ == "__main__":
    RecipeTools.run()
