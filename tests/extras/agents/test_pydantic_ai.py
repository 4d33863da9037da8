"""An agent of pydantic-ai with a memory: bounded, valid, the same answer; streaming, approval, several at once."""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from agent_servers import AgentServer, agent_server, facts, look

pytest.importorskip("pydantic_ai.capabilities", reason="needs mem1-agents[pydantic-ai]")
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    BinaryContent,
    DeferredToolRequests,
    DeferredToolResults,
    NativeOutput,
    PromptedOutput,
    Tool,
    ToolOutput,
    UsageLimits,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext, ModelRequestParameters
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition

from mem1.extras.agents import pydantic_ai as adapter
from mem1.extras.agents.pydantic_ai import MemoryCapability
from mem1.messages import Bounds, Event, fold
from mem1.messages.sessions import keys_of

TURNS = 20
ASK = "Find the facts of {}."
LIMITS = UsageLimits(request_limit=100)


class Answer(BaseModel):
    answer: str


class Place(BaseModel):
    place: str


def agent(server: AgentServer, capabilities: list[Any], tools: Any = (look,), **more: Any) -> Agent[Any, Any]:
    model = OpenAIChatModel("model", provider=OpenAIProvider(base_url=server.url, api_key="none"))
    given = {"instructions": "You look places up.", **more}
    return Agent(model, tools=tools, capabilities=capabilities, **given)


def recalled(messages: list[ModelMessage]) -> list[ToolReturnPart]:
    parts = [part for message in messages for part in message.parts]
    return [part for part in parts if isinstance(part, ToolReturnPart) and part.tool_name == "recall"]


def test_an_agent_with_a_memory_stays_bounded_and_gives_the_same_answer():
    events: list[Event] = []

    async def streamed(made: Agent[Any, Any]) -> Any:
        async with made.run_stream(ASK.format("oslo"), usage_limits=LIMITS) as result:
            text = [piece async for piece in result.stream_text(delta=True)]
            usage: Any = result.usage  # a method before 2.0
            return "".join(text), result.all_messages(), usage if hasattr(usage, "input_tokens") else usage()

    with agent_server(TURNS) as plain, agent_server(TURNS) as folding:
        without, log, _ = asyncio.run(streamed(agent(plain, [])))
        memory = MemoryCapability("fold(4)", bounds=Bounds(result=200), on_event=events.append)
        having, whole, usage = asyncio.run(streamed(agent(folding, [memory])))
    assert plain.refused == folding.refused == []
    assert without == having == facts("oslo", TURNS)
    assert max(plain.lengths) >= 1 + 3 * TURNS and max(folding.lengths) <= 2 + 3 * 5 + 2
    assert max(folding.sizes) < max(plain.sizes) / 5
    assert folding.asked == 4 == [event.kind for event in events].count("state")
    assert folding.streamed == TURNS + 1
    assert len(whole) == len(log) and "end-of-oslo" in str(recalled(whole)[0].content)  # the log is whole
    assert all(request["tools"] == folding.requests[0]["tools"] for request in folding.requests)
    assert usage.input_tokens == sum(folding.sizes) + 100 * len(folding.sizes)  # states are counted


def test_runs_that_share_a_capability_do_not_mix():
    names = ["oslo", "rome", "bonn", "lima"]

    async def run(server: AgentServer) -> list[Any]:
        made = agent(server, [MemoryCapability("fold(2)", bounds=Bounds(result=200))])
        return await asyncio.gather(*[made.run(ASK.format(name), usage_limits=LIMITS) for name in names])

    with agent_server(6) as server:
        results = asyncio.run(run(server))
    assert server.refused == []
    for name, result in zip(names, results, strict=True):
        assert result.output == facts(name, 6)
        assert f"end-of-{name}" in str(recalled(result.all_messages())[0].content)


def test_agents_whose_instructions_differ_have_states_of_their_own():
    memory, asked = MemoryCapability("fold(2)"), list[int]()
    with agent_server(6) as server:
        for tenant in ("ACME", "Globex", "ACME"):
            made = agent(server, [memory], instructions=f"You work for {tenant}.")
            assert made.run_sync(ASK.format("oslo"), usage_limits=LIMITS).output == facts("oslo", 6)
            asked.append(server.asked)
    assert asked[0] > 0 and asked == [asked[0], 2 * asked[0], 2 * asked[0]]


@pytest.mark.parametrize(
    "part",
    [
        lambda own: UserPromptPart(["Look.", BinaryContent(own.encode(), media_type="image/png")]),
        lambda own: RetryPromptPart(own, tool_call_id="call"),
        lambda own: ToolReturnPart("look", ["A map.", BinaryContent(own.encode(), media_type="image/png")], "call"),
    ],
)
def test_files_and_feedback_tell_conversations_apart(part: Any):
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)

    def key(own: str) -> str:
        made = replace(part(own), timestamp=at)
        history = [
            ModelRequest([UserPromptPart("Look.", timestamp=at)]),
            ModelResponse([ToolCallPart("look", {}, "call")]),
        ]
        return keys_of(adapter._conversation([*history, ModelRequest([made])]).read)[-1]

    assert key("4711") == key("4711") != key("1234")


def test_calls_that_wait_for_a_person():
    with agent_server(4) as server:
        tools = [Tool(look, requires_approval=True)]
        made = agent(server, [MemoryCapability("fold(1)")], tools, output_type=[str, DeferredToolRequests])
        result = made.run_sync(ASK.format("oslo"))
        while isinstance(result.output, DeferredToolRequests):
            given = DeferredToolResults(approvals={call.tool_call_id: True for call in result.output.approvals})
            result = made.run_sync(message_history=result.all_messages(), deferred_tool_results=given)
    assert server.refused == [] and server.asked == 3 and result.output == facts("oslo", 4)


@pytest.mark.parametrize(
    "wanted", [Answer, [Answer, Place], ToolOutput(Answer), PromptedOutput(Answer), NativeOutput(Answer)]
)
def test_an_output_type_does_not_keep_the_model_from_writing_states(wanted: Any):
    answer = Answer(answer=facts("oslo", 5))
    events: list[Event] = []
    in_text = isinstance(wanted, PromptedOutput | NativeOutput)
    with agent_server(5, answer=answer.model_dump_json() if in_text else None) as server:
        prompted = {"instructions": None} if isinstance(wanted, PromptedOutput) else {}  # or two system messages
        made = agent(server, [MemoryCapability("fold(1)", on_event=events.append)], output_type=wanted, **prompted)
        result = made.run_sync(ASK.format("oslo"))
    assert server.refused == [] and server.asked == 4 and result.output == answer
    assert [event.kind for event in events].count("state") == 4 and max(server.lengths) < 1 + 3 * 5


@pytest.mark.parametrize("chosen", ["tool", "native", "prompted"])
def test_an_output_type_whose_mode_the_model_chooses_leaves_the_state_a_text(chosen: str):
    """Models in front of several others leave the mode open; they are none of the three."""

    class Choosing(WrapperModel):
        def prepare_request(self, model_settings: Any, model_request_parameters: Any) -> Any:
            if model_request_parameters.output_mode == "auto":
                model_request_parameters = model_request_parameters.with_default_output_mode(chosen)
            return super().prepare_request(model_settings, model_request_parameters)

    made = agent(AgentServer(1), [], output_type=Answer)
    tool = ToolDefinition(name="final_result")
    parameters = ModelRequestParameters(output_mode="auto", output_tools=[tool], allow_text_output=False)
    for model, mode in ((Choosing(made.model), chosen), (FallbackModel(made.model, made.model), "tool")):
        context = ModelRequestContext(
            model=model, messages=[], model_settings=None, model_request_parameters=parameters
        )
        _, asked = adapter._for_state(context, 100)
        assert asked.allow_text_output and asked.output_object is None
        assert asked.output_mode == ("tool" if mode == "tool" else "text")


@pytest.mark.filterwarnings("ignore:.*RetryPromptPart")
@pytest.mark.parametrize("why", ["length", "content_filter"])
def test_a_state_that_came_to_no_end_is_none(why: str):
    events: list[Event] = []
    with agent_server(6, states_end=why) as server:
        made = agent(server, [MemoryCapability("fold(1)", on_event=events.append)])
        result = made.run_sync(ASK.format("oslo"), usage_limits=LIMITS)
    assert server.refused == [] and server.asked >= 2 and result.output == facts("oslo", 6)
    assert max(server.lengths) == 2 + 3 * 6 and {event.kind for event in events} == {"no_state"}


def test_messages_come_back_as_the_same_objects_and_those_that_change_keep_their_fields():
    image = BinaryContent(b"x", media_type="image/png")
    own: list[ModelMessage] = [
        ModelRequest([SystemPromptPart("You look."), UserPromptPart(["Find it.", image])]),
        ModelResponse(
            [ThinkingPart("hm", signature="s"), TextPart("I look."), ToolCallPart("look", {"place": "x"}, "c1")]
        ),
        ModelRequest([ToolReturnPart("look", look("x"), "c1", metadata={"kept": True}), UserPromptPart("Go on.")]),
        ModelResponse([ToolCallPart("look", "{}", "c2"), ToolCallPart("look", "{}", "c3")]),
        ModelRequest(
            [
                RetryPromptPart("no place", tool_name="look", tool_call_id="c2"),
                ToolReturnPart("look", [image, "y"], "c3"),
            ]
        ),
    ]

    def folded(policy: str, bounds: Bounds = Bounds()) -> list[ModelMessage]:  # noqa: B008
        conversation = adapter._conversation(own)
        return adapter._messages(conversation.written(fold(conversation.read, policy, bounds=bounds)), own)

    assert all(a is b for a, b in zip(folded("full"), own, strict=True))
    masked = folded("archive(1)")
    assert [a is b for a, b in zip(masked, own, strict=True)] == [True, True, False, True, True]
    result, prompt = masked[2].parts
    assert isinstance(result, ToolReturnPart) and str(result.content).startswith("[result of look")
    assert result.metadata == {"kept": True} and prompt is own[2].parts[1]
    noted = folded("notes")
    assert isinstance(noted[0], ModelRequest) and noted[0].parts == own[0].parts
    assert len(noted) == 4 and "- look(" in str(noted[1].parts[-1].content)  # type: ignore[union-attr]
    (files,) = [part.content for part in folded("full", Bounds(images=0))[4].parts if isinstance(part, ToolReturnPart)]
    assert isinstance(files, str) and "image dropped" in files


@pytest.mark.parametrize("text", ["I look it up.\n</think>\n\nI search.", "</think>\nI search."])
def test_a_thought_that_a_server_left_in_the_text_is_not_shown_again(text: str):
    seen: list[list[ModelMessage]] = []

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(messages)
        if len(messages) > 3:
            return ModelResponse(parts=[TextPart("Oslo")])
        return ModelResponse(parts=[TextPart(text), ToolCallPart("look", {"place": "Oslo"})])

    made = Agent(FunctionModel(model), tools=[look], capabilities=[MemoryCapability("window(4)")])
    assert made.run_sync("Capital of Norway?").output == "Oslo"
    shown = [part for part in seen[-1][1].parts if isinstance(part, TextPart | ToolCallPart)]
    assert [type(part) for part in shown] == [TextPart, ToolCallPart] and shown[0].content.strip() == "I search."
