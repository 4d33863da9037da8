"""The first example of each framework's documentation with a memory in it, against providers that refuse strictly.

    create_agent("openai:gpt-5.5", [look], system_prompt=...)     as documented; the address is in the environment
    create_agent(..., middleware=[MemoryMiddleware("fold(3)")])   the only change

Each ends with all facts, is never refused, sends folded prompts, and keeps a whole record of its own. The provider
signs its thoughts and wants them back as they were.
"""

# pyright: reportMissingImports=false

import asyncio
import inspect
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agent_replies import Said, chat
from agent_servers import AgentServer, agent_server, facts
from agent_servers import look as looked
from chat_servers import chat_server
from server_replies import Reply
from servers import app_in_a_thread

from mem1.extras.proxy.app import Limits, Proxy
from mem1.extras.proxy.upstream import Upstream
from mem1.messages import Bounds, Memory
from mem1.messages.transcript import ASK

TURNS = 8
TASK = "Find the facts of oslo."
BOUNDS = Bounds(result=200)
OPENAI, CLAUDE = "openai:gpt-5.5", "anthropic:claude-sonnet-5-5"
Plan = Callable[[str, int], list[tuple[str, dict[str, Any]]]]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Where the clients of the providers find their server; Inspect counts with words that it need not fetch."""

    def at(url: str) -> None:
        for name, value in {
            "OPENAI_BASE_URL": url,
            "OPENAI_API_KEY": "none",
            "ANTHROPIC_BASE_URL": url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": "none",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
        }.items():
            monkeypatch.setenv(name, value)
        words = SimpleNamespace(encode=lambda text, **_: list(range(-(-len(text) // 4))))
        with_words = pytest.importorskip("tiktoken")
        monkeypatch.setattr(with_words, "get_encoding", lambda name: words)
        monkeypatch.setattr(with_words, "encoding_for_model", lambda name: words)

    return at


@contextmanager
def provider(environment: Callable[[str], None], plan: Plan | None = None, **script: Any) -> Iterator[AgentServer]:
    with agent_server(TURNS, thinks=True, plan=plan, **script) as server:
        environment(server.url)
        yield server
    assert server.refused == []
    assert server.asked >= 1  # a state was written, by the agent's own model
    last = json.dumps(server.requests[-1])
    assert "Known: fact-oslo-0, " in last and "call_oslo_0_0" not in last and f"call_oslo_{TURNS - 1}_0" in last


def look(place: str) -> str:
    """Looks a place up."""
    return looked(place)


@pytest.mark.parametrize("model", [OPENAI, "openai:responses", CLAUDE])
def test_langchain_invoked_and_streamed(model: str, environment: Callable[[str], None]):
    pytest.importorskip("langchain.agents.middleware", reason="needs mem1-agents[langchain]")
    from langchain.agents import create_agent
    from langchain.chat_models import init_chat_model
    from langchain_core.messages import AIMessage
    from langgraph.checkpoint.memory import InMemorySaver

    from mem1.extras.agents.langchain import MemoryMiddleware

    with provider(environment) as server:
        agent = create_agent(
            init_chat_model(OPENAI, use_responses_api=True) if model == "openai:responses" else model,
            tools=[look],
            system_prompt="You are a helpful assistant",
            middleware=[MemoryMiddleware("fold(3)", bounds=BOUNDS)],
            checkpointer=InMemorySaver(),
        )
        asked = {"messages": [{"role": "user", "content": TASK}]}
        config: Any = {"configurable": {"thread_id": "1"}, "recursion_limit": 100}
        agent.invoke(asked, config)
        again: Any = {"configurable": {"thread_id": "2"}, "recursion_limit": 100}
        said = "".join(
            chunk.text
            for chunk, metadata in agent.stream(asked, again, stream_mode="messages")
            if isinstance(chunk, AIMessage) and metadata["langgraph_node"] == "model"
        )
        records = [agent.get_state(each).values["messages"] for each in (config, again)]
    assert said == facts("oslo", TURNS) and server.streamed >= TURNS + 1
    for record in records:
        calls = [call["name"] for m in record if isinstance(m, AIMessage) for call in m.tool_calls]
        assert record[-1].text == said and len(record) == 2 + TURNS + len(calls)
        assert calls.count("look") == 2 * TURNS and calls.count("recall") == 1


def deep_plan(name: str, turn: int) -> list[tuple[str, dict[str, Any]]]:
    """An agent that looks for oslo's facts, keeps a file and hands those of rome to a sub-agent."""
    looks: list[tuple[str, dict[str, Any]]] = [("look", {"place": f"{name}-{2 * turn + part}"}) for part in (0, 1)]
    if name != "oslo":
        return looks
    task = {"description": "Find the facts of rome.", "subagent_type": "general-purpose"}
    more = {0: ("write_file", PLAN), 3: ("task", task), 6: ("read_file", {"file_path": "/plan.md"})}
    return [*looks, *([more[turn]] if turn in more else [])]


PLAN = {"file_path": "/plan.md", "content": "fact-plan-1"}
ALL = ", ".join(sorted([*facts("oslo", TURNS).split(", "), "fact-plan-1", *facts("rome", TURNS).split(", ")]))


@pytest.mark.parametrize("model", [OPENAI, CLAUDE])
def test_deepagents_with_a_file_and_a_sub_agent(model: str, environment: Callable[[str], None]):
    pytest.importorskip("deepagents")
    from deepagents import create_deep_agent
    from langchain_core.messages import AIMessage

    from mem1.extras.agents.langchain import MemoryMiddleware

    memory = MemoryMiddleware("fold(3)", bounds=BOUNDS)
    with provider(environment, deep_plan) as server:
        agent = create_deep_agent(
            model=model,
            tools=[look],
            system_prompt="You are an expert researcher.",
            subagents=[
                {
                    "name": "general-purpose",
                    "description": "Researches one place.",
                    "system_prompt": "You are a researcher.",
                    "tools": [look],
                    "middleware": [memory],
                }
            ],
            middleware=[memory],
        )
        result = agent.invoke({"messages": [{"role": "user", "content": TASK}]})
    assert result["messages"][-1].text == ALL and "fact-plan-1" in str(result["files"]["/plan.md"])
    calls = [call["name"] for m in result["messages"] if isinstance(m, AIMessage) for call in m.tool_calls]
    assert calls.count("look") == 2 * TURNS and {"write_file", "task", "read_file", "recall"} < {*calls}
    assert len(result["messages"]) == 2 + TURNS + len(calls)
    assert server.asked == 4  # two states of the agent, two of the sub-agent
    rome = [json.dumps(request) for request in server.requests if "call_rome_7_0" in json.dumps(request)]
    assert len(rome) == 1 and "call_rome_0_0" not in rome[0]


def test_a_memory_replaces_the_summaries_of_deepagents_and_leaves_its_own_memory_files(
    environment: Callable[[str], None],
):
    deepagents = pytest.importorskip("deepagents")
    if "memory" not in inspect.signature(deepagents.create_deep_agent).parameters:
        pytest.skip("deepagents without memory files")
    from langchain.chat_models import init_chat_model

    from mem1.extras.agents.langchain import MemoryMiddleware

    with provider(environment, deep_plan) as server:
        model = init_chat_model(CLAUDE, profile={"max_input_tokens": 4_000})  # its own summaries would begin at 3,400
        made: Any = deepagents.create_deep_agent(
            model=model,
            tools=[look],
            memory=["/AGENTS.md"],
            middleware=[
                MemoryMiddleware("fold(3)", name="SummarizationMiddleware", bounds=BOUNDS),
                MemoryMiddleware("full"),
            ],
        )
        rules = {"/AGENTS.md": {"content": "Answer in order.", "encoding": "utf-8"}}
        result = made.invoke({"messages": [{"role": "user", "content": TASK}], "files": rules})
    assert result["messages"][-1].text == ALL
    assert server.asked == 4  # its general sub-agent has the memory too
    agents = [request for request in server.requests if "Answer in order." in json.dumps(request["system"])]
    assert len(agents) == TURNS + 1 + 2
    assert all("summar" not in json.dumps(request["messages"]) for request in server.requests)


@pytest.mark.parametrize("model", ["openai-chat:gpt-5.5", "openai-responses:gpt-5.5", CLAUDE])
def test_pydantic_ai(model: str, environment: Callable[[str], None]):
    pytest.importorskip("pydantic_ai.capabilities", reason="needs mem1-agents[pydantic-ai]")
    from pydantic_ai import Agent, RunContext
    from pydantic_ai.messages import ModelResponse

    from mem1.extras.agents.pydantic_ai import MemoryCapability

    with provider(environment) as server:
        agent = Agent(
            model,
            deps_type=str,
            system_prompt="You look places up. Use the player's name.",
            capabilities=[MemoryCapability("fold(3)", bounds=BOUNDS)],
        )

        @agent.tool_plain
        def look(place: str) -> str:
            """Looks a place up."""
            return looked(place)

        @agent.tool
        def get_player_name(ctx: RunContext[str]) -> str:
            """Get the player's name."""
            return ctx.deps

        result = agent.run_sync(TASK, deps="Anne")
    assert result.output == facts("oslo", TURNS)
    responses = [message for message in result.all_messages() if isinstance(message, ModelResponse)]
    calls = [call.tool_name for response in responses for call in response.tool_calls]
    assert len(responses) == TURNS + 1 and calls.count("look") == 2 * TURNS and calls.count("recall") == 1
    assert len(result.all_messages()) == 2 * TURNS + 2
    assert server.asked == 2


@pytest.mark.parametrize("api", ["responses", "chat_completions"])
def test_the_openai_agents_sdk_with_a_session(api: Any, environment: Callable[[str], None], tmp_path: Path):
    pytest.importorskip("agents.run", reason="needs mem1-agents[openai-agents]")
    from agents import Agent, Runner, SQLiteSession, function_tool, set_default_openai_api
    from pydantic import BaseModel

    from mem1.extras.agents.openai_agents import AgentMemory

    class Place(BaseModel):
        name: str
        known: str

    memory = AgentMemory("fold(3)", bounds=BOUNDS)

    @function_tool
    def look(place: str) -> Place:
        return Place(name=place, known=looked(place))

    agent = Agent(name="Hello world", instructions="You are a helpful agent.", tools=[look, memory.recall])

    async def main() -> Any:
        session = SQLiteSession("conversation_123", tmp_path / "kept.sqlite")
        result = await Runner.run(agent, input=TASK, session=session, run_config=memory.run_config())
        return result, await session.get_items()

    with provider(environment) as server:
        set_default_openai_api(api)
        try:
            result, kept = asyncio.run(main())
        finally:
            set_default_openai_api("responses")
    assert result.final_output == facts("oslo", TURNS)
    thoughts = TURNS + 1 if api == "responses" else 0
    assert len(kept) == len(result.to_input_list()) == 1 + 2 * (2 * TURNS + 1) + thoughts + 1
    assert server.asked == 2


@pytest.mark.parametrize("model", ["openai/gpt-5.5", "anthropic/claude-sonnet-5-5"])
def test_inspect(model: str, environment: Callable[[str], None], tmp_path: Path):
    pytest.importorskip("inspect_ai.agent", reason="needs mem1-agents[inspect]")
    from inspect_ai import Task, eval, task
    from inspect_ai.agent import react
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ChatMessageTool
    from inspect_ai.scorer import includes
    from inspect_ai.tool import tool

    from mem1.extras.agents.inspect import MemoryCompaction, recall

    @tool
    def look():
        async def execute(place: str):
            """Looks a place up.

            Args:
                place: Its name.
            """
            return looked(place)

        return execute

    @task
    def places():
        return Task(
            dataset=[Sample(input=TASK, target=facts("oslo", TURNS))],
            solver=react(
                prompt="You look places up.",
                tools=[look(), recall()],
                compaction=MemoryCompaction(threshold=2_500, bounds=BOUNDS),
            ),
            scorer=includes(),
        )

    with provider(environment) as server:
        (log,) = eval(places(), model=model, log_dir=str(tmp_path), display="none", retry_on_error=0)
    assert log.status == "success", log.error
    (sample,) = log.samples
    assert sample.scores["includes"].value == "C" and sample.output.completion == facts("oslo", TURNS)
    answers = [message for message in sample.messages if isinstance(message, ChatMessageTool)]
    assert [message.function for message in answers].count("look") == 2 * TURNS
    assert server.asked == 2


@pytest.mark.parametrize("kind", ["ToolCallingAgent", "CodeAgent"])
@pytest.mark.parametrize("stream", [False, True])
def test_smolagents(kind: str, stream: bool):
    smolagents = pytest.importorskip("smolagents", reason="needs mem1-agents[smolagents]")
    from mem1.extras.agents.smolagents import MemoryModel

    asked, sent = list[str](), list[dict[str, Any]]()

    def behave(body: dict[str, Any], number: int) -> Reply:
        """A model that calls tools in its own texts or in calls, and knows what it was sent."""
        sent.append(body)
        shown = json.dumps(body["messages"])
        known = sorted({*re.findall(r"fact-oslo-\d+", shown)})
        if ASK in json.dumps(body["messages"][-1]):
            asked.append(body.get("tool_choice", "none"))
            return chat(Said(f"Known: {', '.join(known)}."), 100, stream=bool(body.get("stream")))
        turn = len(sent) - len(asked) - 1
        final = {"answer": ", ".join(known)}
        if kind == "CodeAgent":
            code = f"print(look('oslo-{turn}'))" if turn < TURNS else f"final_answer({final['answer']!r})"
            said = Said(f"Thought: go on.\n<code>\n{code}\n</code>")
        elif turn < TURNS:
            looks = [(f"call_{turn}_{n}", "look", {"place": f"oslo-{2 * turn + n}"}) for n in (0, 1)]
            said = Said(calls=looks)
        else:
            said = Said(calls=[("call_final", "final_answer", final)])
        return chat(said, 100, stream=bool(body.get("stream")))

    @smolagents.tool
    def look(place: str) -> str:
        """Looks a place up.

        Args:
            place: Its name.
        """
        return looked(place)

    with chat_server(behave) as server:
        model = smolagents.OpenAIModel(model_id="gpt-4o", api_base=server.url, api_key="none")
        agent = getattr(smolagents, kind)(
            tools=[look], model=MemoryModel(model, "fold(3)"), stream_outputs=stream, verbosity_level=0
        )
        answer = agent.run(TASK)
    found = TURNS if kind == "CodeAgent" else 2 * TURNS
    assert answer == ", ".join(sorted(f"fact-oslo-{number}" for number in range(found)))
    assert server.refused == []
    assert asked == (["none"] if kind == "CodeAgent" else ["auto"]) * 2
    texts = [json.dumps(body["messages"]) for body in sent]
    assert "Known: fact-oslo-0, " in texts[-1] and "end-of-oslo-0" not in texts[-1] and "Observation:" in texts[-1]
    assert max(map(len, texts)) - len(texts[0]) < 4.5 * (len(texts[1]) - len(texts[0]))
    record = "".join(str(step.observations) for step in agent.memory.steps if isinstance(step, smolagents.ActionStep))
    assert {int(number) for number in re.findall(r"end-of-oslo-(\d+)", record)} == {*range(found)}  # it is whole


def test_the_claude_agent_sdk_through_the_proxy(tmp_path: Path):
    pytest.importorskip("claude_agent_sdk")
    from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, create_sdk_mcp_server, query, tool

    @tool("look", "Looks a place up", {"place": str})
    async def look(args: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": looked(args["place"])}]}

    async def ask(url: str) -> list[Any]:
        options = ClaudeAgentOptions(
            mcp_servers={"places": create_sdk_mcp_server("places", tools=[look])},
            allowed_tools=["mcp__places__look"],
            cwd=tmp_path,
            env={
                "HOME": str(tmp_path),
                "ANTHROPIC_BASE_URL": url,
                "ANTHROPIC_API_KEY": "none",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            },
        )
        return [message async for message in query(prompt=TASK, options=options)]

    def memory_of(form: str, on_event: Any) -> Memory:
        return Memory("fold(3)", form=form, on_event=on_event, bounds=Bounds(handles=False))

    with provider(lambda url: None, tool="mcp__places__look") as server:
        proxy = Proxy(Upstream(server.url, state_s=60), memory_of, events=None, limits=Limits())
        with app_in_a_thread(proxy, accepts=None) as url:
            (end,) = [message for message in asyncio.run(ask(url)) if isinstance(message, ResultMessage)]
    assert end.result == facts("oslo", TURNS) and not end.is_error
    assert server.asked == 2 and len(server.requests) == TURNS + 1 + 2
    (session,) = (tmp_path / ".claude" / "projects").rglob("*.jsonl")
    kept = session.read_text("utf-8")
    assert all(f'end-of-oslo-{number}"' in kept for number in range(2 * TURNS))  # its record is whole
