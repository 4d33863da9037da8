"""Our tasks as an environment of verifiers: their agent searches, its memory folds, our scorer scores."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verifiers.v1")

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
from chat_servers import Reply, chat_server

from mem1.errors import UserError
from mem1.extras.verifiers import Drawn, Progress, RecipeConfig, RecipeTaskset, RecipeTools, ToolsConfig, _drawn
from mem1.messages.transcript import ASK

TASKS = {
    "id": "atlas_tasks",
    "overrides": ["tasks.worlds=1", "tasks.entities=40", "tasks.questions_per_world=20"],
    "objectives": 2,
    "tasks": 3,
}
DRAWN: dict[str, Any] = {key: value for key, value in TASKS.items() if key != "id"}
PAGE = Path(__file__).parents[2] / "docs" / "extending" / "verifiers.md"
ASKED: list[list[Any]] = []
"""Messages of each request."""


def answers(gold: dict[str, str]) -> Any:
    """A model that searches four times and then gives the gold answers; asked for a state, it writes one."""

    def behave(body: dict[str, Any], number: int) -> Reply:
        messages = body["messages"]
        ASKED.append(messages)
        done = sum(message["role"] == "tool" for message in messages)
        if str(messages[-1]["content"]).startswith(ASK):
            return said({"content": "Nothing yet."})
        assert next(tool["function"]["name"] for tool in body["tools"]) == "search"
        written = sum(ASK not in str(asked[-1]["content"]) for asked in ASKED)
        if written > 4 or done > 4:
            (found,) = [answer for question, answer in gold.items() if question in str(messages)]
            return said({"content": found})
        function = {"name": "search", "arguments": json.dumps({"query": f"founder {number}"})}
        return said({"content": None, "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}]})

    return behave


def said(message: dict[str, Any]) -> Reply:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    return Reply(body=json.dumps(body).encode())


async def episode(env: Any, task: Any, url: str) -> Any:
    async with env.serving():
        client = vf.EvalClientConfig(base_url=url, api_key_var="NONE")
        return await env.run_episode(task, vf.ModelContext(model="m", client=client))


@pytest.mark.parametrize("memory", ["", "fold(2)"])
def test_an_agent_of_verifiers_searches_and_is_scored_by_us(
    memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ASKED.clear()
    module = PAGE.read_text("utf-8").split('title="atlas_tasks.py"\n')[1].split("```")[0]
    (tmp_path / "atlas_tasks.py").write_text(module, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "atlas_tasks", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    config = vf.resolve_env_config({"taskset": TASKS, "agent": {"harness": {"id": "atlas_tasks", "memory": memory}}})
    env = vf.load_environment(config)
    tasks = list(env.taskset)
    source, _ = _drawn(Drawn(**DRAWN))
    ours = {task.id: task for task in source.tasks(objectives=2, count=3, seed=0)}
    assert [task.data.name for task in tasks] == list(ours)
    questions = ours[tasks[0].data.name].questions
    gold = {tasks[0].data.prompt[-60:]: "; ".join(f"Q{i} {q.answers[0]}" for i, q in enumerate(questions, 1))}
    with chat_server(answers(gold)) as server:
        done = asyncio.run(episode(env, tasks[0], server.url))
    (trace,) = done.traces
    assert done.ok and not trace.errors, trace.errors
    assert trace.reward == 2 and trace.metrics["em"] == 1 and trace.metrics["f1"] == 1
    assert len(trace.state.history) == 4 and all(kind == "search" for kind, _ in trace.state.history)
    results = [message.content for message in trace.tool_messages]
    assert len(results) >= 4 and all(" is " in str(result) for result in results)
    states = sum(str(asked[-1]["content"]).startswith(ASK) for asked in ASKED)
    assert (states > 0) == bool(memory)
    longest = max(sum(message["role"] == "tool" for message in asked) for asked in ASKED)
    assert longest == 4 if not memory else longest < 4


def test_answers_are_read_as_the_benchmark_reads_them():
    task = RecipeTaskset(RecipeConfig(**DRAWN)).load()[0]
    first, second = (question["answers"][0] for question in task.data.ours["questions"])
    reward = partial(rewarded_for, task)
    right = f"Q1 {first}; Q2 {second}"
    assert reward(right) == 2
    assert reward(f"<think>\nQ1 is found.\n</think>\n\n{right}") == 2
    assert reward(f"Here you are:\n\n**Q1**: {first}\n- Q2: {second}") == 2
    assert reward("nothing") == 0


def rewarded_for(task: Any, reply: str, bought: str = "") -> float:
    trace = SimpleNamespace(
        state=SimpleNamespace(answer=bought), last_reply=reply, record_metric=lambda name, value: None
    )
    return asyncio.run(task.scored(trace))


def test_in_a_shop_purchases_are_scored_and_no_words():
    (task,) = RecipeTaskset(RecipeConfig(recipe="webshop-quick", overrides=["tasks.products=150"], tasks=1)).load()
    asin = task.data.ours["questions"][0]["answers"][0]
    purchase = json.dumps([{"asin": asin, "price": 0.0, "options": {}}])
    assert rewarded_for(task, "Sorry, I found nothing.") == rewarded_for(task, purchase) == 0
    assert rewarded_for(task, "I bought it.", bought=purchase) > 0


def test_calls_that_are_made_at_the_same_time_all_count_and_none_is_taken_beyond_the_limit():
    ours = RecipeTaskset(RecipeConfig(**DRAWN)).load()[0].data.ours

    class Tools(RecipeTools):
        kept = Progress(ours={**ours, "turn_limit": 3})

        async def _pull_state(self) -> Progress:
            return self.kept.model_copy(deep=True)

        async def _push_state(self, before: bytes) -> None:
            Tools.kept = self.state

    found: dict[str, Any] = {}

    async def search(*queries: str) -> list[Any]:
        tools = Tools(ToolsConfig(**DRAWN))
        await tools.setup()
        tools.register(SimpleNamespace(add_tool=lambda tool, *, name, description: found.update({name: tool})))
        return await asyncio.gather(*(found["search"](query) for query in queries), return_exceptions=True)

    *texts, refused = asyncio.run(search("a", "b", "c", "d"))
    assert Tools.kept.history == [("search", "a"), ("search", "b"), ("search", "c")] and Tools.kept.over
    assert all(isinstance(text, str) for text in texts)
    assert str(refused) == "the episode is over after 3 actions; no more are taken"


def rewarded(task: Any, trajectory: Any) -> float:
    return 1.0


def test_a_recipe_that_does_not_fit_is_one_line():
    with pytest.raises(UserError, match="no-such"):
        _drawn(Drawn(recipe="no-such"))
    with pytest.raises(UserError, match="needs an attempt of ours"):
        _drawn(Drawn(overrides=[f"tasks.reward={__name__}:rewarded"]))
