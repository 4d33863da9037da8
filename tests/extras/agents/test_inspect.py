"""An agent of Inspect with a memory: bounded, valid, the same answer; streaming, several samples at once."""

# pyright: reportMissingImports=false

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agent_servers import AgentServer, agent_server, facts
from agent_servers import look as looked

pytest.importorskip("inspect_ai.agent", reason="needs mem1-agents[inspect]")
from inspect_ai import Task, eval
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    ContentImage,
    ContentReasoning,
    ContentText,
    get_model,
)
from inspect_ai.tool import Tool, ToolCall, tool

from mem1.extras.agents.conversation import Conversation
from mem1.extras.agents.inspect import KIND, MemoryCompaction, recall
from mem1.messages import Bounds, Event, Reading, fold

TURNS = 20


@pytest.fixture(autouse=True)
def no_download(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inspect counts with tiktoken, which fetches its vocabulary."""
    words = SimpleNamespace(encode=lambda text, **_: list(range(-(-len(text) // 4))))
    monkeypatch.setattr("tiktoken.get_encoding", lambda name: words)


@tool
def look() -> Tool:
    async def execute(place: str) -> str:
        """Looks a place up.

        Args:
            place: Its name.
        """
        return looked(place)

    return execute


def run(server: AgentServer, folder: Path, *names: str, tools: Any = (), **more: Any) -> list[Any]:
    model = get_model("openai-api/local/model", base_url=server.url, api_key="none", stream=True, memoize=False)
    samples = [Sample(f"Find the facts of {name}.") for name in names]
    task = Task(dataset=samples, solver=react(tools=[look(), *tools], **more))
    (log,) = eval(task, model=model, log_dir=str(folder), display="none", retry_on_error=0)
    assert log.status == "success", log.error
    assert log.samples is not None
    return log.samples


def test_an_agent_with_a_memory_stays_bounded_and_gives_the_same_answer(tmp_path: Path):
    events: list[Event] = []
    memory = MemoryCompaction(threshold=4_000, bounds=Bounds(result=200), on_event=events.append)
    with agent_server(TURNS) as plain, agent_server(TURNS) as folding:
        (without,) = run(plain, tmp_path, "oslo")
        (having,) = run(folding, tmp_path, "oslo", tools=[recall()], compaction=memory)
    assert plain.refused == folding.refused == []
    assert without.output.completion == having.output.completion == facts("oslo", TURNS)
    assert max(plain.lengths) == 2 + 3 * TURNS and max(folding.lengths) < max(plain.lengths) / 2
    assert max(folding.sizes) < 4_000 + 1_000 < max(plain.sizes) / 2
    assert folding.asked == [event.kind for event in events].count("state") >= 3
    assert folding.streamed == len(folding.requests)
    assert all(request["tools"] == folding.requests[0]["tools"] for request in folding.requests)
    answers = [message for message in having.messages if isinstance(message, ChatMessageTool)]
    assert len([message for message in answers if message.function == "look"]) == 2 * TURNS  # the log is whole
    (recalled,) = [message for message in answers if message.function == "recall"]
    assert "end-of-oslo" in recalled.text


def test_samples_that_share_a_strategy_do_not_mix(tmp_path: Path):
    memory = MemoryCompaction(threshold=3_000, bounds=Bounds(result=200))
    names = ["oslo", "rome", "bonn", "lima"]
    with agent_server(10) as server:
        samples = run(server, tmp_path, *names, tools=[recall()], compaction=memory)
    assert server.refused == [] and server.asked > 0
    for name, sample in zip(names, samples, strict=True):
        assert sample.output.completion == facts(name, 10)
        recalled = [m for m in sample.messages if isinstance(m, ChatMessageTool) and m.function == "recall"]
        assert all(f"end-of-{name}" in message.text for message in recalled)


@pytest.mark.parametrize("why", ["length", "content_filter"])
def test_a_state_that_came_to_no_end_is_none(why: str, tmp_path: Path):
    events: list[Event] = []
    memory = MemoryCompaction(threshold=4_000, bounds=Bounds(handles=False), on_event=events.append)
    with agent_server(6, states_end=why) as server:
        model = get_model("openai-api/local/model", base_url=server.url, api_key="none", memoize=False)
        task = Task(dataset=[Sample("Find the facts of oslo.")], solver=react(tools=[look()], compaction=memory))
        eval(task, model=model, log_dir=str(tmp_path), display="none", retry_on_error=0)
    assert server.refused == [] and server.asked >= 1 and {event.kind for event in events} == {"no_state"}


class Writer:
    """Notes which fact a result has."""

    def write(self, reading: Reading, /) -> list[str]:
        return re.findall(r"fact-\w+-\d+", reading.exchange)


def test_all_notes_of_a_writer_and_what_they_were_written_about_are_recalled(tmp_path: Path):
    handles = {8: "notes", 9: "Fact-oslo-0", 10: "nothing like it"}

    def plan(name: str, turn: int) -> list[tuple[str, dict[str, Any]]]:
        handle = handles.get(turn)
        return [("look", {"place": f"{name}-{turn}"}) if handle is None else ("recall", {"handle": handle})]

    memory = MemoryCompaction("fold(2)", threshold=1_500, bounds=Bounds(state=50), writer=Writer())
    with agent_server(12, plan=plan) as server:
        (sample,) = run(server, tmp_path, "oslo", tools=[recall()], compaction=memory)
    assert server.refused == [] and server.asked == 0
    answers = [message for message in sample.messages if isinstance(message, ChatMessageTool)]
    notes, about, unknown = [message.text for message in answers if message.function == "recall"]
    assert [f"fact-oslo-{turn}" for turn in range(6)] == notes.splitlines()[:6]
    assert looked("oslo-0") in about and unknown == "error: no result has the handle 'nothing like it'"


def test_messages_come_back_as_the_same_objects_and_those_that_change_keep_their_fields():
    def call(id: str) -> list[ToolCall]:
        return [ToolCall(id=id, function="look", arguments={"place": id})]

    image = ContentImage(image="data:image/png;base64,AAAA")
    own = [
        ChatMessageSystem(content="You look."),
        ChatMessageUser(content=[ContentText(text="Find it."), image], id="u"),
        ChatMessageAssistant(content=[ContentReasoning(reasoning="hm", signature="s")], tool_calls=call("c1")),
        ChatMessageTool(content=looked("x"), tool_call_id="c1", function="look", id="t"),
        ChatMessageAssistant(content="", tool_calls=call("c2")),
        ChatMessageTool(content=[ContentText(text="y"), image], tool_call_id="c2", function="look"),
    ]
    conversation = Conversation.of(KIND, own)
    assert all(a is b for a, b in zip(conversation.written(fold(conversation.read, "full")), own, strict=True))
    masked = conversation.written(fold(conversation.read, "archive(1)"))
    assert [a is b for a, b in zip(masked, own, strict=True)] == [True, True, True, False, True, True]
    assert masked[3].text.startswith("[result of look") and masked[3].id == "t" and own[3].text == looked("x")
    noted = conversation.written(fold(conversation.read, "notes"))
    assert noted[1].id == "u" and noted[1].content[:2] == own[1].content
