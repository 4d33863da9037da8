"""Agents of three frameworks at the endpoint: the same attempt whoever asks, streams, sub-agents and parallel tools.

`make test-frameworks` runs it.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache, reduce
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from chat_templates import QWEN25_LIKE, tokenizer_with
from endpoints import CALL, END, SEARCH, attempt, in_order
from worlds import SAMPLING, SMALL, shelf, task

pytest.importorskip("langchain.agents.middleware", reason="needs mem1-agents[langchain]")
pytest.importorskip("langchain_openai")
pytest.importorskip("agents", reason="needs mem1-agents[openai-agents]")
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, OpenAI

from mem1.dialogue import NativeDialogue
from mem1.endpoint.client import act
from mem1.endpoint.rollout import AgentRollout
from mem1.endpoint.runs import AgentConfig
from mem1.engines.chat_messages import ChatMessages
from mem1.engines.local import LocalEngine
from mem1.packing import pack
from mem1.policy.folders import SHIPPED
from mem1.policy.policy import load_policy
from mem1.policy.tiny_model import new_model
from mem1.protocol import PAPER
from mem1.recipe.model import TinyModel
from mem1.records import Ended, Group, Task, Trajectory
from mem1.rollout import Budget
from mem1.training.checks import once_check, reencoded_share
from mem1.training.verify import verify

set_tracing_disabled(True)
ENTRIES = ("atlas_openai:run", "atlas_langchain:run", "atlas_agents_sdk:run")


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))


def test_the_same_attempts_are_made_with_any_framework():
    policy = load_policy(SHIPPED)
    source = SMALL.source("train", PAPER)
    tasks = [t for t in source.tasks(objectives=2, count=2, seed=0) for _ in range(3)]
    engine = LocalEngine(policy.model, policy.codec, PAPER.stop_strings)
    made: dict[str, list[Trajectory]] = {}
    for entry in ENTRIES:
        rollout = AgentRollout(
            agent=AgentConfig(entry=entry),
            engine=engine,
            dialogue=NativeDialogue(ChatMessages.in_tags(policy.codec, PAPER), PAPER),
            environment=source.environment,
            budget=Budget(completion_per_objective=8, completion_extra=32),
        )
        made[entry] = rollout(tasks, sampling=SAMPLING)
        assert once_check([(pack(made[entry]), made[entry])]).passed and reencoded_share(made[entry]) == 0
    said = {
        entry: [[(turn.context_ids, turn.completion_ids) for turn in t.turns] for t in attempts]
        for entry, attempts in made.items()
    }
    assert said[ENTRIES[0]] == said[ENTRIES[1]] == said[ENTRIES[2]]
    assert max(len(t.turns) for t in made[ENTRIES[0]]) > 2
    assert {t.ended for t in made[ENTRIES[0]]} <= {Ended.ANSWERED, Ended.OUT_OF_TURNS}


def test_each_framework_reads_a_streamed_reply():
    two = f"See.\n{CALL.format('a')}\n{CALL.format('b')}{END}"
    ask: list[Any] = [{"role": "user", "content": "Who?"}]
    asked = [("search", {"query": "a"}), ("search", {"query": "b"})]

    @function_tool
    def search(query: str) -> str:
        """Searches."""
        return "A city."

    async def streamed(url: str) -> str:
        model = OpenAIChatCompletionsModel("policy", AsyncOpenAI(base_url=url, api_key="any"))
        result = Runner.run_streamed(Agent(name="A", model=model, tools=[search]), "Who?")
        async for _ in result.stream_events():
            pass
        return str(result.final_output)

    with attempt(in_order(two, two, two, f"Anne.{END}")) as at:
        url = str(at.client.base_url)
        client = OpenAI(base_url=url, api_key="any")
        with client.chat.completions.stream(model="policy", messages=ask, tools=cast(Any, [SEARCH])) as stream:
            said = stream.get_final_completion().choices[0].message
        calls = cast(Any, said.tool_calls or [])
        assert said.content == "See."
        assert [(c.function.name, json.loads(c.function.arguments)) for c in calls] == asked
        chat = ChatOpenAI(model="policy", base_url=url, api_key=cast(Any, "any"), stream_usage=True)
        whole: Any = reduce(lambda one, two: one + two, chat.bind_tools([SEARCH]).stream(ask))
        assert whole.text == "See." and [(c["name"], c["args"]) for c in whole.tool_calls] == asked
        assert whole.usage_metadata["output_tokens"] == len(at.recording._turns[1].completion_ids)
        assert asyncio.run(streamed(url)) == "Anne."
        turns = at.turns
    assert [turn.action for turn in turns] == ["calls", "calls", "calls", "answer"]
    assert 3 in {number for number, *_ in turns[3].context_origins}


def call(name: str, **arguments: str) -> str:
    written = ", ".join(f'"{key}": "{value}"' for key, value in arguments.items())
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{{written}}}}}\n</tool_call>'


def said_to(context: str) -> str:
    """What the policy of the test says: a lead asks two researchers at once, who each search twice at once."""
    newest = context.rpartition("<|im_start|>user")[2]
    if "You lead." in context:
        asked = f"{call('research', topic='Oslo')}\n{call('research', topic='Rome')}"
        return "Oslo and Rome." if "<tool_response>" in newest else f"I ask two.\n{asked}"
    if "<tool_response>" in newest:
        return "It is a city."
    topic = re.findall(r"Find out about (\w+)", context)[-1]
    return f"{call('search', query=topic)}\n{call('search', query=topic + ' again')}"


FREE = 3
"""Sampled tokens at the head of each answer; the rest is written for the model."""


class Scripted(LocalEngine):
    """A model that says what `said_to` says, with its own log-probabilities, letter by letter."""

    def __init__(self, model: Any, chat: ChatMessages) -> None:
        @cache
        def written(context: tuple[int, ...]) -> list[int]:
            text = said_to(chat.codec.decode(context))
            return [i for letter in text for i in chat.codec.encode(letter)] + [*chat.codec.encode(chat.end)]

        def steered(context: Sequence[int], sampled: Sequence[int], drawn: int, budget: int) -> int:
            ids = written(tuple(context))
            if chat.codec.decode(ids).startswith("It is") and len(sampled) < FREE:
                return drawn if chat.codec.decode((drawn,)).isalpha() else ids[0]
            return ids[len(sampled)]

        super().__init__(model, chat.codec, chat.stop_strings, steering=steered)


def lead(task: Task, base_url: str) -> str:
    """A lead that hands topics to researchers, agents of their own; LangChain runs parallel calls in threads."""
    model = ChatOpenAI(model="policy", base_url=base_url, api_key=cast(Any, "any"), max_retries=0)

    @tool
    def search(query: str) -> str:
        """Searches."""
        return act(base_url, "search", query)

    @tool
    def research(topic: str) -> str:
        """Finds out about a topic."""
        agent: Any = create_agent(model, [search], system_prompt="You find out.")
        done = agent.invoke({"messages": [{"role": "user", "content": f"Find out about {topic}."}]})
        assert sum(isinstance(message, ToolMessage) for message in done["messages"]) == 2
        return done["messages"][-1].text

    agent: Any = create_agent(model, [research], system_prompt="You lead.")
    return agent.invoke({"messages": [{"role": "user", "content": task.prompt}]})["messages"][-1].text


def test_every_token_of_sub_agents_and_parallel_tools_is_trained_exactly_once():
    tokenizer, codec = tokenizer_with(QWEN25_LIKE)
    chat = ChatMessages.of(tokenizer, codec, where="the test")
    shape = TinyModel(hidden_size=32, layers=2, heads=2, feed_forward=48, max_positions=4096)
    model = new_model(shape, vocab_size=codec.vocab_size, seed=0)
    with torch.no_grad():
        model.get_parameter("model.norm.weight").mul_(0.3)
    rollout = AgentRollout(
        agent=AgentConfig(entry=f"{__name__}:lead"),
        engine=Scripted(model, chat),
        dialogue=NativeDialogue(chat, PAPER),
        environment=shelf("It is a city."),
        budget=Budget(completion_extra=400),
    )
    tasks = [task("Oslo", turns=20)] * 2
    attempts = rollout(tasks, sampling=SAMPLING)
    assert [(t.ended, t.answer, t.detail) for t in attempts] == [(Ended.ANSWERED, "Oslo and Rome.", "")] * 2
    for one in attempts:
        assert Counter(turn.action for turn in one.turns) == {"calls": 3, "answer": 3}
        answers = [turn for turn in one.turns if turn.action == "answer"]
        assert all(any(number for number, *_ in turn.context_origins) for turn in answers)
    assert once_check([(pack(attempts), attempts)]).measured == 0 and reencoded_share(attempts) == 0
    paths = [turn.context_ids + turn.completion_ids for one in attempts for turn in one.turns]
    distinct = {path[:stop] for path in paths for stop in range(1, len(path) + 1)}
    assert len(pack(attempts)) == len(distinct) < sum(map(len, paths)) / 2  # what is shared is stored once
    checks = {check.name: check for check in verify(model, [Group(trajectories=tuple(attempts))])}
    assert checks["sampler and trainer, largest"].measured < 1e-4 and checks["tokens trained exactly once"].passed
    assert not [name for name, check in checks.items() if check.failed]
