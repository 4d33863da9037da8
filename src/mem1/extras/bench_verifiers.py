"""The benchmark as an environment of verifiers: its tasks, its one tool with the limit of calls, its scorer.

    # bench_tasks.py, a module in the current folder or of a package of yours
    from mem1.extras.bench_verifiers import BenchTaskset, MemoryEnv, MemoryLoop
    __all__ = ["BenchTaskset", "MemoryEnv", "MemoryLoop"]

    vf-eval bench_tasks --env.taskset.families chain --env.agent.harness.memory "fold(4)"

The reward of an attempt is the share of the objectives that are right. Documentation: docs/bench.md.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
from typing import Any

from mem1.agent.tools import ToolFailed
from mem1.bench.suites import Drawn, native_tasks
from mem1.bench.tools import Tools, answers_in
from mem1.extras.verifiers import MemoryEnv, MemoryLoop
from mem1.protocol import ACT
from mem1.records import Task

import verifiers.v1 as vf  # isort: skip  (mem1.extras.verifiers says what is missing)

__all__ = ["BenchTaskset", "MemoryEnv", "MemoryLoop"]

_REFUSED = 2
"""Calls beyond the limit with which an attempt is over, as in `mem1 bench`."""


class Chosen(vf.BaseConfig):
    """Which tasks are drawn."""

    suite: str = "quick"
    """quick, standard or full; or package.module:NAME."""
    seed: int = 0
    """0: the public tasks; any other: fresh ones."""
    families: str = ""
    """Separated by commas; none: all."""


class BenchToolsConfig(Chosen, vf.SharedToolsetConfig):
    pass


class BenchConfig(Chosen, vf.TasksetConfig):
    pass


class Progress(vf.State):
    """What an attempt has done."""

    task: str = ""
    history: list[tuple[str, str]] = []  # noqa: RUF012
    calls: int = 0
    """Those that were refused, too."""
    answer: str = ""
    """The answer that calls have made up, such as purchases."""
    over: bool = False


class BenchData(vf.TaskData):
    family: str
    level: int
    objectives: int
    most_calls: int


class BenchTask(vf.Task[BenchData, Progress]):
    """Scored by our environment."""

    drawn: Drawn
    ours: Task

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        trace.state.task = self.ours.id

    @vf.stop
    async def over(self, trace: vf.Trace) -> bool:
        return trace.state.over or trace.state.calls >= self.data.most_calls

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        made = trace.state.answer
        answer = made if made or self.drawn.action == ACT else _answer(trace)
        if not answer:
            return 0.0
        em = self.drawn.environment.score(self.ours, answer).metrics["em"]
        return sum(em) / len(em) if isinstance(em, tuple) else em


def _answer(trace: vf.Trace) -> str:
    """The last message, unless it calls the tool."""
    messages = trace.assistant_messages
    return "" if not messages or messages[-1].tool_calls else answers_in(trace.last_reply)


class BenchTools(vf.Toolset[BenchToolsConfig, Progress]):
    """The tools of the chosen families, in a process of its own that all attempts share."""

    TOOL_PREFIX = None

    async def setup(self) -> None:
        self.tasks = await asyncio.to_thread(_drawn, self.config)

    def register(self, mcp: Any) -> None:
        for kind in dict.fromkeys(drawn.action for drawn, _ in _drawn(self.config).values()):
            tool = getattr(self, kind)
            mcp.add_tool(self._with_state(tool), name=kind, description=tool.__doc__)

    @vf.tool
    async def search(self, query: str) -> str:
        """Searches the passages."""
        return await self._called("search", "query", query)

    @vf.tool
    async def act(self, action: str) -> str:
        """Takes one action in the shop: search[words] or click[text]."""
        return await self._called("act", "action", action)

    async def _called(self, kind: str, parameter: str, argument: str) -> str:
        state = self.state
        state.calls += 1
        drawn, task = self.tasks[state.task]
        if kind != drawn.action:
            return f"error: this task has no {kind}; call {drawn.action}"
        tools = Tools(drawn, task, history=state.history)
        try:
            seen = await asyncio.to_thread(tools.call, {parameter: argument})
        except ToolFailed as failure:
            return f"error: {failure}"
        if tools.broken is not None:
            raise tools.broken
        state.history = tools.history
        state.answer, state.over = tools.answer or state.answer, state.over or tools.over is not None
        return seen


class BenchTaskset(vf.Taskset[BenchTask, BenchConfig]):
    """The tasks of a suite."""

    @classmethod
    def toolsets(cls, config: BenchConfig) -> list[vf.Toolset]:
        return [BenchTools(BenchToolsConfig(**{name: getattr(config, name) for name in Chosen.model_fields}))]

    def load(self) -> list[BenchTask]:
        return [self._task(drawn, ours) for drawn, ours in _drawn(self.config).values()]

    def _task(self, drawn: Drawn, ours: Task) -> BenchTask:
        data = BenchData(
            name=ours.id,
            prompt=ours.prompt,
            family=drawn.cell.family,
            level=drawn.cell.level,
            objectives=ours.objectives,
            most_calls=Tools(drawn, ours).left + _REFUSED,
        )
        task = BenchTask(data, self.config.task)
        task.drawn, task.ours = drawn, ours
        return task


def _drawn(chosen: Chosen) -> dict[str, tuple[Drawn, Task]]:
    return native_tasks(chosen.suite, chosen.seed, chosen.families)


if __name__ == "__main__":
    BenchTools.run()
