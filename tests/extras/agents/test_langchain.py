"""An agent of LangChain with a memory: bounded, valid, the same answer; streaming, approval, several at once."""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from agent_servers import AgentServer, agent_server, facts, look

pytest.importorskip("langchain.agents.middleware", reason="needs mem1-agents[langchain]")
pytest.importorskip("langchain_openai")
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import BaseModel

from mem1.extras.agents.conversation import Conversation
from mem1.extras.agents.langchain import KIND, MemoryMiddleware
from mem1.messages import Bounds, Event, fold

TURNS = 20


def agent(server: AgentServer, middleware: list[Any], **more: Any) -> Any:
    model = ChatOpenAI(model="model", base_url=server.url, api_key="none", streaming=True, stream_usage=True)
    return create_agent(model, [look], middleware=middleware, **{"system_prompt": "You look places up.", **more})


def model_of(server: AgentServer, api: str) -> Any:
    if api != "anthropic":
        given: Any = {"use_responses_api": True} if api == "responses" else {}
        return ChatOpenAI(model="model", base_url=server.url, api_key="none", **given)
    anthropic = pytest.importorskip("langchain_anthropic")
    return anthropic.ChatAnthropic(model="claude", base_url=server.url.removesuffix("/v1"), api_key="none")


def task(name: str = "oslo") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"Find the facts of {name}."}]}


LIMIT: dict[str, Any] = {"recursion_limit": 200}


def test_an_agent_with_a_memory_stays_bounded_and_gives_the_same_answer():
    events: list[Event] = []
    with agent_server(TURNS) as plain, agent_server(TURNS) as folding:
        without = agent(plain, []).invoke(task(), LIMIT)["messages"]
        memory = MemoryMiddleware("fold(4)", bounds=Bounds(result=200), on_event=events.append)
        having = agent(folding, [memory]).invoke(task(), LIMIT)["messages"]
    assert plain.refused == folding.refused == []
    assert without[-1].text == having[-1].text == facts("oslo", TURNS)
    assert max(plain.lengths) == 2 + 3 * TURNS and max(folding.lengths) <= 2 + 3 * 5 + 1 + 1
    assert max(folding.sizes) < max(plain.sizes) / 5
    assert folding.asked == 4 and folding.streamed == TURNS + 1 + 4
    assert [event.kind for event in events].count("state") == 4
    recalled = [m for m in having if isinstance(m, ToolMessage) and m.name == "recall"]
    assert len(having) == len(without) + 1 and "end-of-oslo" in str(recalled[0].content)  # the log is whole
    alone = [call for m in having if isinstance(m, AIMessage) for call in m.tool_calls if call["name"] == "look"]
    assert len(alone) == 2 * TURNS
    assert all(request["tools"] == folding.requests[0]["tools"] for request in folding.requests)


def test_states_are_not_streamed_to_the_user_and_an_awaited_agent_folds_too():
    async def run(server: AgentServer) -> tuple[str, list[str]]:
        text, seen = "", []
        async for chunk, metadata in agent(server, [MemoryMiddleware("fold(3)")]).astream(
            task(), LIMIT, stream_mode="messages"
        ):
            if metadata["langgraph_node"] == "model" and chunk.text:
                text += chunk.text
                seen.append(chunk.text)
        return text, seen

    with agent_server(8) as server:
        text, seen = asyncio.run(run(server))
    assert server.refused == [] and server.asked == 2 and server.streamed == 8 + 1 + 2
    assert text == facts("oslo", 8) and len(seen) == 16


def test_conversations_that_share_a_middleware_do_not_mix():
    with agent_server(8) as server:
        shared = agent(server, [MemoryMiddleware("fold(2)", bounds=Bounds(result=200))])
        names = ["oslo", "rome", "bonn", "lima"]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda name: shared.invoke(task(name), LIMIT)["messages"], names))
    assert server.refused == []
    for name, messages in zip(names, found, strict=True):
        assert messages[-1].text == facts(name, 8)
        (recalled,) = [m for m in messages if isinstance(m, ToolMessage) and m.name == "recall"]
        assert f"end-of-{name}" in str(recalled.content)


def test_agents_whose_system_prompts_differ_have_states_of_their_own():
    memory, asked = MemoryMiddleware("fold(2)"), list[int]()
    with agent_server(6) as server:
        for tenant in ("ACME", "Globex", "ACME"):
            agent(server, [memory], system_prompt=f"You work for {tenant}.").invoke(task(), LIMIT)
            asked.append(server.asked)
    assert asked[0] > 0 and asked == [asked[0], 2 * asked[0], 2 * asked[0]]


def test_calls_that_wait_for_a_person_stay_and_a_second_task_follows():
    with agent_server(4) as server:
        ask = HumanInTheLoopMiddleware(interrupt_on={"look": True})
        made = agent(server, [MemoryMiddleware("fold(1)"), ask], checkpointer=InMemorySaver())
        config: Any = {"configurable": {"thread_id": "1"}, **LIMIT}
        state = made.invoke(task(), config)
        while "__interrupt__" in state:
            decisions = [{"type": "approve"}] * len(state["__interrupt__"][0].value["action_requests"])
            state = made.invoke(Command(resume={"decisions": decisions}), config)
        assert state["messages"][-1].text == facts("oslo", 4)
        again = made.invoke({"messages": [HumanMessage("Once more, please.")]}, config)
        while "__interrupt__" in again:
            again = made.invoke(
                Command(
                    resume={
                        "decisions": [{"type": "approve"}] * len(again["__interrupt__"][0].value["action_requests"])
                    }
                ),
                config,
            )
    assert server.refused == [] and facts("oslo", 4) in again["messages"][-1].text


class Answer(BaseModel):
    answer: str


@pytest.mark.parametrize("strategy", [ProviderStrategy, ToolStrategy])
def test_a_response_format_does_not_keep_the_model_from_writing_states(strategy: Any):
    answer = Answer(answer=facts("oslo", 5))
    with agent_server(5) as server:
        server.answer = answer.model_dump_json() if strategy is ProviderStrategy else None
        found = agent(server, [MemoryMiddleware("fold(1)")], response_format=strategy(Answer)).invoke(task(), LIMIT)
    assert found["structured_response"] == answer
    assert server.asked == 4 and len(server.requests) == 5 + 1 + 4 and server.refused == []


def test_a_model_that_writes_no_state_goes_on_with_the_whole_conversation():
    events: list[Event] = []
    with agent_server(6, writes=False) as server:
        made = agent(server, [MemoryMiddleware("fold(1)", on_event=events.append)])
        messages = made.invoke(task(), LIMIT)["messages"]
    assert server.refused == [] and server.asked >= 2
    assert messages[-1].text == facts("oslo", 6) and max(server.lengths) == 2 + 3 * 6
    assert {event.kind for event in events} == {"no_state"} and events[0].why == "a call of look"


@pytest.mark.parametrize(
    ("api", "why"),
    [
        *((api, why) for api in ("chat", "responses", "anthropic") for why in ("length", "content_filter")),
        ("anthropic", "model_context_window_exceeded"),
    ],
)
def test_a_state_that_came_to_no_end_is_none(api: str, why: str):
    events: list[Event] = []
    with agent_server(6, states_end=why) as server:
        memory = MemoryMiddleware("fold(1)", on_event=events.append)
        made = create_agent(model_of(server, api), [look], middleware=[memory], system_prompt="You look places up.")
        messages = made.invoke(task(), LIMIT)["messages"]
    assert server.refused == [] and server.asked >= 2 and messages[-1].text == facts("oslo", 6)
    whole = {"chat": 2 + 3 * 6, "responses": 2 + 4 * 6, "anthropic": 1 + 2 * 6}
    assert max(server.lengths) == whole[api] and {event.kind for event in events} == {"no_state"}


def test_messages_come_back_as_the_same_objects_and_those_that_change_keep_their_fields():
    thinking = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "I look."}]
    own = [
        SystemMessage("You look places up.", id="s"),
        HumanMessage([{"type": "text", "text": "Find it."}], id="u"),
        AIMessage(thinking, id="a", tool_calls=[{"name": "look", "args": {"place": "x"}, "id": "c1"}]),
        ToolMessage(look("x"), tool_call_id="c1", name="look", id="t", artifact={"kept": True}, status="error"),
        AIMessage("", id="b", tool_calls=[{"name": "look", "args": {"place": "y"}, "id": "c2"}]),
        ToolMessage(
            [{"type": "text", "text": "y"}, {"type": "image_url", "image_url": {"url": "data:,"}}], tool_call_id="c2"
        ),
    ]
    conversation = Conversation.of(KIND, own)
    assert all(a is b for a, b in zip(conversation.written(fold(conversation.read, "full")), own, strict=True))
    masked = conversation.written(fold(conversation.read, "archive(1)"))
    assert [a is b for a, b in zip(masked, own, strict=True)] == [True, True, True, False, True, True]
    assert masked[3].content.startswith("[result of look") and own[3].content == look("x")
    assert masked[3].artifact == {"kept": True} and masked[3].id == "t" and masked[3].status == "error"
    # Anthropic refuses an open turn that lost the thoughts it began with: of this exchange the result alone goes
    thought, result = conversation.written(fold(conversation.read, "notes"))[2:4]
    assert thought is own[2] and result.content.endswith("was dropped]")
    unsigned = Conversation.of(KIND, [*own[:2], own[2].model_copy(update={"content": "I look."}), *own[3:]])
    noted = unsigned.written(fold(unsigned.read, "notes"))
    assert len(noted) == 4 and noted[1].id == "u" and noted[1].content[0] == {"type": "text", "text": "Find it."}
    dead = Conversation.of(KIND, [*own[:3], HumanMessage("Go on.")])
    result, again = dead.written(fold(dead.read, "full"))[3:]
    assert isinstance(result, ToolMessage) and result.tool_call_id == "c1" and again is dead.own[3]
