"""The benchmark in verifiers: the tool with its limit, our scorer, and the memory of the agent."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verifiers.v1")

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
from bench_suites import SMALL
from chat_servers import Reply, chat_server

from mem1.bench.suites import Drawing
from mem1.errors import UserError
from mem1.extras.bench_verifiers import Chosen, _drawn
from mem1.messages.transcript import ASK
from mem1.records import Task

PAGE = Path(__file__).parents[2] / "docs" / "bench.md"
Behave = Callable[[list[dict[str, Any]]], dict[str, Any]]
"""Messages -> the model's message."""


def ours(family: str) -> list[Task]:
    """The tasks of a family, drawn here."""
    drawing = Drawing(SMALL, seed=0, native=True)
    return [task for cell in SMALL.cells if cell.family == family for task in drawing.of(cell).tasks]


def search(number: int) -> dict[str, Any]:
    function = {"name": "search", "arguments": json.dumps({"query": f"founder {number}"})}
    return {"content": None, "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}]}


def attempt(behave: Behave, folder: Path, monkeypatch: pytest.MonkeyPatch, *, family: str, memory: str = "") -> Any:
    """The last task of the family, attempted by this model through the module of the page."""
    module = PAGE.read_text("utf-8").split('title="bench_tasks.py"\n')[1].split("```")[0]
    (folder / "bench_tasks.py").write_text(module, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "bench_tasks", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, sys.path)]))
    taskset = {"id": "bench_tasks", "suite": "bench_suites:SMALL", "families": family}
    config = vf.resolve_env_config({"taskset": taskset, "agent": {"harness": {"id": "bench_tasks", "memory": memory}}})
    env = vf.load_environment(config)
    tasks = list(env.taskset)
    assert [(task.data.name, task.data.prompt) for task in tasks] == [(task.id, task.prompt) for task in ours(family)]

    def answer(body: dict[str, Any], number: int) -> Reply:
        message = {"role": "assistant", **behave(body["messages"])}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        reply = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        return Reply(body=json.dumps(reply).encode())

    async def episode(url: str) -> Any:
        async with env.serving():
            client = vf.EvalClientConfig(base_url=url, api_key_var="NONE")
            return await env.run_episode(tasks[-1], vf.ModelContext(model="m", client=client))

    with chat_server(answer) as server:
        done = asyncio.run(episode(server.url))
    (trace,) = done.traces
    assert done.ok and not trace.errors, trace.errors
    return trace


def gold(task: Task) -> str:
    return "; ".join(f"Q{number} {question.answers[0]}" for number, question in enumerate(task.questions, start=1))


@pytest.mark.parametrize("memory", ["", "fold(2)"])
def test_right_answers_are_worth_their_share(memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    task = ours("chain")[-1]
    asked: list[int] = []

    def behave(messages: list[dict[str, Any]]) -> dict[str, Any]:
        if str(messages[-1]["content"]).startswith(ASK):
            return {"content": "Nothing yet."}
        asked.append(sum(message["role"] == "tool" for message in messages))
        return search(len(asked)) if len(asked) < 5 else {"content": gold(task).split(";")[0]}

    trace = attempt(behave, tmp_path, monkeypatch, family="chain", memory=memory)
    assert trace.reward == 1 / task.objectives
    assert [argument for _, argument in trace.state.history] == [f"founder {number}" for number in (1, 2, 3, 4)]
    assert max(asked) == 4 if not memory else max(asked) < 4
    left = [str(message.content).split()[0] for message in trace.tool_messages]
    assert f"[{task.turn_limit - 2}" in left and f"[{task.turn_limit - 5}" in left


def test_no_search_is_answered_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    task = ours("independent")[-1]
    trace = attempt(lambda messages: search(len(messages)), tmp_path, monkeypatch, family="independent")
    results = [str(message.content) for message in trace.tool_messages]
    assert trace.reward == 0 and len(trace.state.history) == task.turn_limit - 1
    last, refused = results[task.turn_limit - 2 : task.turn_limit]
    assert last.startswith("[No searches are left") and refused.startswith("error: no searches are left")
    assert len(results) <= task.turn_limit + 1


def test_a_family_that_the_suite_lacks_is_one_line():
    with pytest.raises(UserError, match="has no family 'none'"):
        _drawn(Chosen(families="none"))
