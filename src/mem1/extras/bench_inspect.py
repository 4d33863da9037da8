"""The benchmark as a task of Inspect: its tasks, its one tool with the limit of calls, its scorer.

    inspect eval mem1/bench --model openai-api/local/qwen -T suite=quick -T families=chain -T 'memory=fold(1)'
    (log,) = eval(bench("quick", memory="fold(1)", threshold=8_000), model="openai-api/local/qwen")
    save_result(Path("result.json"), result_of(log))      for `mem1 bench compare`

Another solver finds the tool in `TaskState.tools`. Documentation: docs/memory/frameworks.md.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from mem1.agent.tools import ToolFailed
from mem1.bench.results import CANARY, TASKS, Attempt, Result, Spent
from mem1.bench.scores import cell_weights
from mem1.bench.suites import Drawn, native_tasks
from mem1.bench.tools import Tools
from mem1.errors import UserError
from mem1.messages import Bounds
from mem1.protocol import ACT
from mem1.records import Ended, per_objective
from mem1.records import Task as OurTask
from mem1.version import __version__

try:
    from anyio import to_thread
    from inspect_ai import Task, task
    from inspect_ai.agent import AgentState, as_solver, react
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.event import ModelEvent
    from inspect_ai.log import EvalLog, EvalSample
    from inspect_ai.model import ChatMessageAssistant
    from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, grouped, metric, scorer
    from inspect_ai.solver import Generate, Solver, TaskState, solver
    from inspect_ai.tool import ToolDef, ToolError
    from inspect_ai.util import store

    from mem1.extras.agents.inspect import MemoryCompaction
except ImportError as error:
    raise UserError(
        f"the benchmark for Inspect needs inspect-ai ({error}): pip install 'mem1-agents[inspect]'"
    ) from error

_MADE, _OVER = "mem1:answer", "mem1:over"
"""Keys of the sample's store: the answer that calls have made up, and how the attempt ended before another."""
_TURNS = 2
"""Turns beside those with a call, as in `mem1 bench`."""


@task
def bench(
    suite: str = "quick",
    seed: int = 0,
    families: str | list[str] = "",
    memory: str = "full",
    threshold: int = 8_000,
) -> Task:
    """The tasks of a suite; `families` as a list or separated by commas, none: all.

    `memory`: a memory of `mem1.memory`, which folds when a prompt exceeds `threshold` tokens; full: none. Raises
    UserError for what the suite does not have.
    """
    families = families if isinstance(families, str) else ",".join(families)
    drawn = native_tasks(suite, seed, families)
    samples = [_sample(cell, one) for cell, one in drawn.values()]
    return Task(
        dataset=MemoryDataset(samples, name=f"{suite}-seed{seed}"),
        setup=with_tool(suite, seed, families),
        solver=worker(memory, threshold),
        scorer=right(suite, seed, families),
        version=TASKS,
        metadata={"suite": suite, "seed": seed, "memory": memory, "mem1": __version__, "canary": CANARY},
    )


def _sample(drawn: Drawn, ours: OurTask) -> Sample:
    gold = "; ".join(f"Q{number} {question.answers[0]}" for number, question in enumerate(ours.questions, start=1))
    metadata = {"family": drawn.cell.family, "level": drawn.cell.level, "objectives": ours.objectives}
    return Sample(id=ours.id, input=ours.prompt, target=gold, metadata={**metadata, "turns": _most_turns(drawn, ours)})


def _most_turns(drawn: Drawn, ours: OurTask) -> int:
    return Tools(drawn, ours).left + _TURNS


@solver
def with_tool(suite: str, seed: int, families: str) -> Solver:
    """Gives the sample its tool: `search`, or `act` in a shop."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        drawn, ours = native_tasks(suite, seed, families)[str(state.sample_id)]
        state.tools = [*state.tools, _tool(drawn, Tools(drawn, ours)).as_tool()]
        return state

    return solve


def _tool(drawn: Drawn, tools: Tools) -> ToolDef:
    (parameter,) = tools.declared["parameters"]["required"]

    async def called(argument: str) -> str:
        try:
            seen = await to_thread.run_sync(tools.call, {parameter: argument})
        except ToolFailed as failure:
            raise ToolError(str(failure)) from failure
        if tools.broken is not None:
            raise tools.broken
        if tools.over is not None:
            store().set(_OVER, str(tools.over[0]))
        store().set(_MADE, tools.answer)
        return seen

    async def search(query: str) -> str:
        return await called(query)

    async def act(action: str) -> str:
        return await called(action)

    described = tools.declared["parameters"]["properties"][parameter]["description"]
    execute: Callable[..., Any] = act if drawn.action == ACT else search
    return ToolDef(
        execute,
        name=tools.declared["name"],
        description=tools.declared["description"],
        parameters={parameter: described},
    )


@solver
def worker(memory: str = "full", threshold: int = 8_000) -> Solver:
    """Calls the tool until it answers, is out of turns, or has bought everything; with a memory."""
    compaction = None
    if memory != "full":
        compaction = MemoryCompaction(memory, threshold=threshold, bounds=Bounds(handles=False))

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        async def goes_on(agent: AgentState) -> bool:
            replies = sum(message.role == "assistant" for message in agent.messages)
            called = bool(agent.output.message.tool_calls)
            return called and replies < state.metadata["turns"] and not store().get(_OVER)

        agent = react(tools=state.tools, prompt=None, submit=False, on_continue=goes_on, compaction=compaction)
        return await as_solver(agent)(state, generate)

    return solve


@metric
def area() -> Metric:
    """Area under accuracy over log2 N, families and levels weighed alike: the score of `mem1 bench`."""

    def value(scores: list[SampleScore]) -> float:
        cells: dict[tuple[str, int, int], list[float]] = {}
        for score in scores:
            about = score.sample_metadata or {}
            cells.setdefault((about["family"], about["level"], about["objectives"]), []).append(score.score.as_float())
        return sum(weight * sum(cells[cell]) / len(cells[cell]) for cell, weight in cell_weights(cells).items())

    return value


@scorer(metrics=[grouped(area(), "family")])
def right(suite: str, seed: int, families: str) -> Scorer:
    """Share of the objectives that are right, by our scorer; 0 without an answer."""

    async def score(state: TaskState, target: Target) -> Score:
        drawn, ours = native_tasks(suite, seed, families)[str(state.sample_id)]
        made = state.store.get(_MADE, "")
        answer = made if made or drawn.action == ACT else _answer(state)
        found: list[float] = [0.0] * ours.objectives
        if answer:
            found = list(per_objective(drawn.environment.score(ours, answer).metrics["em"]))
        return Score(value=sum(found) / len(found), answer=answer, metadata={"right": found})

    return score


def _answer(state: TaskState) -> str:
    """The last message, unless it calls the tool."""
    unanswered = not state.output.choices or state.output.message.tool_calls
    return "" if unanswered or state.store.get(_OVER) else state.output.completion


def result_of(log: EvalLog) -> Result:
    """What Inspect measured, as a result of `mem1 bench`: for `mem1 bench compare` and its page.

    Its name is the model's. A sample that failed has nothing right. Raises UserError for the log of another task.
    """
    about = log.eval.metadata or {}
    if "canary" not in about or log.samples is None:
        raise UserError(f"{log.location} is not a log of mem1's benchmark with its samples")
    return Result(
        model=log.eval.model,
        about={"kind": "inspect", "threshold": log.eval.task_args.get("threshold", 8_000)},
        suite=about["suite"],
        seed=about["seed"],
        version=about["mem1"],
        tasks=cast(int, log.eval.task_version),
        attempts=tuple(_attempt(sample, about["memory"]) for sample in log.samples if sample.epoch == 1),
    )


def _attempt(sample: EvalSample, memory: str) -> Attempt:
    used = list(sample.model_usage.values())
    cached = sum(one.input_tokens_cache_read or 0 for one in used)
    output = sum(one.output_tokens for one in used)
    prompts = sum(one.total_tokens - one.output_tokens for one in used)
    calls = [event.output.usage for event in sample.events if isinstance(event, ModelEvent) and event.output.usage]
    about = sample.metadata
    score = next(iter((sample.scores or {}).values()), None)
    right = (score.metadata or {}).get("right") if score is not None else None
    replies = [message for message in sample.messages if message.role == "assistant"]
    return Attempt(
        task=str(sample.id),
        family=about["family"],
        level=about["level"],
        objectives=about["objectives"],
        memory=memory,
        right=tuple(right or [0.0] * about["objectives"]),
        ended=_ended(sample, score),
        detail=sample.error.message[:300] if sample.error is not None else "",
        turns=len(replies),
        searches=sum(message.role == "tool" and message.error is None for message in sample.messages),
        tokens=Spent(fresh=max(prompts - cached, 0), cached=cached, output=output),
        peak=max((usage.total_tokens for usage in calls), default=0),
        seconds=sample.total_time or 0.0,
    )


def _ended(sample: EvalSample, score: Score | None) -> str:
    if sample.error is not None:
        return str(Ended.ENGINE_FAILED)
    if over := sample.store.get(_OVER):
        return over
    if sample.output.choices and sample.output.stop_reason in ("max_tokens", "model_length"):
        return str(Ended.OUT_OF_TOKENS)
    said = any(isinstance(last, ChatMessageAssistant) and not last.tool_calls for last in sample.messages[-1:])
    if said or (score is not None and score.answer):
        return str(Ended.ANSWERED)
    return str(Ended.OUT_OF_TURNS)
