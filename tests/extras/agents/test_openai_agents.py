"""An agent of the OpenAI Agents SDK with a memory: bounded, valid, the same answer; streaming, approval, several."""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from agent_servers import AgentServer, agent_server, facts
from agent_servers import look as looked

pytest.importorskip("agents.run", reason="needs mem1-agents[openai-agents]")
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
    handoff,
    set_tracing_disabled,
)
from agents.run import CallModelData, ModelInputData
from openai import AsyncOpenAI
from pydantic import BaseModel

from mem1.errors import UserError
from mem1.extras.agents.conversation import Conversation
from mem1.extras.agents.openai_agents import KIND, AgentMemory
from mem1.messages import Bounds, Event, fold

TURNS = 20
ASK = "Find the facts of {}."


@pytest.fixture(autouse=True)
def no_tracing() -> Iterator[None]:
    set_tracing_disabled(True)
    yield


@function_tool
def look(place: str) -> str:
    """Looks a place up."""
    return looked(place)


def agent(server: AgentServer, *tools: Any, kind: Any = OpenAIResponsesModel, **more: Any) -> Agent:
    model = kind(model="model", openai_client=AsyncOpenAI(base_url=server.url, api_key="none"))
    given = {"instructions": "You look places up.", **more}
    return Agent(name="Looker", model=model, tools=[look, *tools], **given)


@pytest.mark.parametrize("kind", [OpenAIResponsesModel, OpenAIChatCompletionsModel])
def test_an_agent_with_a_memory_stays_bounded_and_gives_the_same_answer(kind: Any):
    events: list[Event] = []
    memory = AgentMemory("fold(4)", bounds=Bounds(result=200), on_event=events.append)

    async def streamed(server: AgentServer, tools: list[Any], config: RunConfig | None) -> Any:
        result = Runner.run_streamed(
            agent(server, *tools, kind=kind), ASK.format("oslo"), max_turns=50, run_config=config
        )
        text = ""
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                text += event.data.delta
        assert text == result.final_output  # states are not streamed
        return result

    with agent_server(TURNS) as plain, agent_server(TURNS) as folding:
        without = asyncio.run(streamed(plain, [], None))
        having = asyncio.run(streamed(folding, [memory.recall], memory.run_config()))
    assert plain.refused == folding.refused == []
    assert without.final_output == having.final_output == facts("oslo", TURNS)
    assert max(plain.lengths) >= 1 + 3 * TURNS and max(folding.lengths) <= 2 + 4 * 5 + 2
    assert max(folding.sizes) < max(plain.sizes) / 5
    assert folding.asked == 4 == [event.kind for event in events].count("state")
    assert folding.streamed == TURNS + 1
    items = having.to_input_list()  # the log is whole
    assert len(items) == len(without.to_input_list()) + 2
    (recalled,) = [item for item in items if str(item.get("call_id", "")).endswith("_2") and "output" in item]
    assert "end-of-oslo" in str(recalled["output"])
    assert all(request["tools"] == folding.requests[0]["tools"] for request in folding.requests)


def test_runs_that_share_a_memory_do_not_mix_and_settings_of_the_run_hold_for_states():
    memory = AgentMemory("fold(2)", bounds=Bounds(result=200))

    async def run(server: AgentServer) -> list[Any]:
        made = agent(server, memory.recall)
        config = memory.run_config(RunConfig(model_settings=ModelSettings(temperature=0.25)))
        names = ["oslo", "rome", "bonn", "lima"]
        return await asyncio.gather(*[Runner.run(made, ASK.format(name), run_config=config) for name in names])

    with agent_server(6) as server:
        results = asyncio.run(run(server))
    assert server.refused == [] and {request["temperature"] for request in server.requests} == {0.25}
    for name, result in zip(["oslo", "rome", "bonn", "lima"], results, strict=True):
        assert result.final_output == facts(name, 6)
        (recalled,) = [
            item for item in result.to_input_list() if str(item.get("call_id", "")).endswith("_2") and "output" in item
        ]
        assert f"end-of-{name}" in str(recalled["output"])


def test_agents_whose_instructions_differ_have_states_of_their_own():
    memory, asked = AgentMemory("fold(2)"), list[int]()
    with agent_server(6) as server:
        for tenant in ("ACME", "Globex", "ACME"):
            made = agent(server, instructions=f"You work for {tenant}.")
            result: Any = Runner.run_sync(made, ASK.format("oslo"), run_config=memory.run_config())
            assert result.final_output == facts("oslo", 6)
            asked.append(server.asked)
    assert asked[0] > 0 and asked == [asked[0], 2 * asked[0], 2 * asked[0]]


def test_calls_that_wait_for_a_person_and_a_filter_that_the_run_already_has():
    @function_tool(name_override="look", needs_approval=True)
    def asked(place: str) -> str:
        """Looks a place up."""
        return looked(place)

    seen: list[int] = []

    def counting(data: CallModelData) -> ModelInputData:
        seen.append(len(data.model_data.input))
        return data.model_data

    with agent_server(4) as server:
        made = agent(server)
        made.tools = [asked]
        config = AgentMemory("fold(1)").run_config(RunConfig(call_model_input_filter=counting))
        result: Any = Runner.run_sync(made, ASK.format("oslo"), run_config=config)
        while result.interruptions:
            state = result.to_state()
            for waiting in result.interruptions:
                state.approve(waiting)
            result = Runner.run_sync(made, state, run_config=config)
    assert server.refused == [] and server.asked == 3
    assert result.final_output == facts("oslo", 4) and len(seen) == 5 and seen[-1] >= 1 + 4 * 4


def test_an_output_type_and_a_demand_for_calls_do_not_keep_the_model_from_writing_states():
    class Answer(BaseModel):
        answer: str

    answer = Answer(answer=facts("oslo", 5))
    with agent_server(5, answer=answer.model_dump_json()) as server:
        made = agent(server, output_type=Answer, model_settings=ModelSettings(tool_choice="required"))
        other = Agent(name="Other")
        made.handoffs = [other, handoff(Agent(name="Never"), is_enabled=lambda context, agent: False)]
        result = Runner.run_sync(made, ASK.format("oslo"), run_config=AgentMemory("fold(1)").run_config())
    assert server.refused == [] and server.asked == 4 and result.final_output == answer
    for request in server.requests:
        assert [tool["name"] for tool in request["tools"]] == ["look", "transfer_to_other"]


class CutOff(OpenAIResponsesModel):
    """Of whose texts the end is missing, as earlier versions of the SDK give them on."""

    async def get_response(self, *given: Any, **named: Any) -> Any:
        response = await super().get_response(*given, **named)
        for item in response.output:
            if item.type == "message":
                item.status = "incomplete"
        return response


@pytest.mark.parametrize(("kind", "ended"), [(OpenAIResponsesModel, "length"), (CutOff, "stop")])
def test_a_state_that_came_to_no_end_is_none(kind: Any, ended: str):
    events: list[Event] = []
    with agent_server(6, states_end=ended) as server:
        memory = AgentMemory("fold(1)", on_event=events.append)
        result = Runner.run_sync(agent(server, kind=kind), ASK.format("oslo"), run_config=memory.run_config())
    assert server.refused == [] and server.asked >= 2 and result.final_output == facts("oslo", 6)
    assert {event.kind for event in events} == {"no_state"}


def test_an_agent_without_the_tool_for_handles_is_named():
    with agent_server(1) as server, pytest.raises(UserError, match=r"'Looker' lacks .* add memory\.recall"):
        Runner.run_sync(agent(server), "Find it.", run_config=AgentMemory(bounds=Bounds(result=100)).run_config())


def test_items_come_back_as_the_same_objects():
    own: list[Any] = [
        {"role": "user", "content": "Find it."},
        {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "signed"},
        {"type": "function_call", "id": "fc", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "long " * 300},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c2", "output": "y"},
    ]
    conversation = Conversation.of(KIND, own)
    masked = conversation.written(fold(conversation.read, "archive(1)", form="responses"))
    assert [a is b for a, b in zip(masked, own, strict=True)] == [True, True, True, False, True, True]
    assert set(masked[3]) == set(own[3]) and masked[3]["output"].startswith("[result of look")
