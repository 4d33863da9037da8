"""A memory around the model of smolagents: steps as exchanges, messages that stay, images, what a model lacks."""

# pyright: reportMissingImports=false

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("smolagents", reason="needs mem1-agents[smolagents]")
from PIL import Image
from smolagents import CodeAgent
from smolagents.models import ChatMessage, MessageRole, Model, TokenUsage

from mem1.errors import UserError
from mem1.extras.agents.conversation import Conversation
from mem1.extras.agents.smolagents import KIND, MemoryModel, pieces_of
from mem1.messages import Bounds, Event, fold
from mem1.messages.transcript import ASK


def message(role: MessageRole, text: str) -> ChatMessage:
    return ChatMessage(role=role, content=[{"type": "text", "text": text}])


def step(number: int, image: Any = None) -> list[ChatMessage]:
    seen = [ChatMessage(role=MessageRole.USER, content=[{"type": "image", "image": image}])] if image else []
    return [
        message(MessageRole.ASSISTANT, f"Thought {number}"),
        message(MessageRole.TOOL_CALL, f"Calling tools: {number}"),
        *seen,
        message(MessageRole.TOOL_RESPONSE, f"Observation: {number} " + "long " * 300),
        message(MessageRole.TOOL_RESPONSE, f"Error: {number}"),
    ]


START = [message(MessageRole.SYSTEM, "You act."), message(MessageRole.USER, "Find it.")]


class Scripted(Model):
    """Repeats how many states it was asked for; it cannot stream."""

    def __init__(self, raw: Any = None) -> None:
        super().__init__(model_id="scripted")
        self.raw = raw
        self.sent: list[list[ChatMessage]] = []
        self.asked = 0

    def generate(self, messages: list[ChatMessage], **kwargs: Any) -> ChatMessage:
        self.sent.append(messages)
        self.asked += ASK in str(messages[-1].content)
        usage = TokenUsage(input_tokens=1_000, output_tokens=10)
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"State {self.asked}", token_usage=usage, raw=self.raw)


def test_a_step_is_an_exchange_and_what_stays_are_the_same_messages():
    own = [*START, *step(1), *step(2, Image.new("RGB", (4, 4), "red")), message(MessageRole.ASSISTANT, "Done.")]
    conversation = Conversation.of(KIND, list(pieces_of(own)))
    assert [each["role"] for each in conversation.read] == [
        *("system", "user", "assistant", "tool", "assistant", "tool", "assistant")
    ]
    whole = [m for piece in conversation.written(fold(conversation.read, "full")) for m in piece.messages]
    assert len(whole) == len(own) and all(a is b for a, b in zip(whole, own, strict=True))
    bounds = Bounds(result=100, handles=False)
    cut = [m for piece in conversation.written(fold(conversation.read, "full", bounds=bounds)) for m in piece.messages]
    assert [m.role for m in cut[4:6]] == [MessageRole.TOOL_RESPONSE, MessageRole.ASSISTANT]
    assert len(str(cut[4].content)) < 800 and "Observation: 1" in str(cut[4].content) and len(cut[4].content) == 1
    assert cut[7].role == MessageRole.TOOL_RESPONSE and [b["type"] for b in cut[7].content] == ["image", "text"]


def test_an_error_before_the_model_said_anything_is_no_answer_to_it():
    own = [*START, message(MessageRole.TOOL_RESPONSE, "Error: no server"), *step(1)]
    read = Conversation.of(KIND, list(pieces_of(own))).read
    assert [each["role"] for each in read] == ["system", "user", "user", "assistant", "tool"]


def test_a_state_stands_in_the_one_text_of_the_task():
    model = Scripted()
    memory = MemoryModel(model, "fold(1)")
    said = memory.generate([*START, *step(1), *step(2)])
    assert said.content == "State 1" and model.asked == 1
    (text,) = model.sent[-1][1].content  # type: ignore[misc]
    assert text["text"].startswith("Find it.") and "State 1" in text["text"]
    assert "Thought 1" not in str(model.sent[-1]) and "Thought 2" in str(model.sent[-1])


@pytest.mark.parametrize("ended", ["length", "content_filter"])
@pytest.mark.parametrize("kept", [dict, lambda **given: SimpleNamespace(**given)])
def test_a_state_that_came_to_no_end_is_none(kept: Any, ended: str):
    events: list[Event] = []
    model = Scripted(raw=kept(choices=[kept(finish_reason=ended)]))
    MemoryModel(model, "fold(1)", on_event=events.append).generate([*START, *step(1), *step(2)])
    assert model.asked >= 1 and {event.kind for event in events} == {"no_state"}
    assert "State" not in str(model.sent[-1]) and "Thought 1" in str(model.sent[-1])


def test_an_agent_with_a_memory_is_not_saved_as_one_that_nobody_can_read():
    with pytest.raises(UserError, match="save it with its own model"):
        CodeAgent(tools=[], model=MemoryModel(Scripted(), "fold(1)")).to_dict()


def test_equal_images_are_one_conversation_though_they_are_other_objects():
    model = Scripted()
    memory = MemoryModel(model, "fold(1)")
    for colour in ("red", "red", "blue"):
        task = ChatMessage(
            role=MessageRole.USER,
            content=[
                {"type": "text", "text": "Find it."},
                {"type": "image", "image": Image.new("RGB", (4, 4), colour)},
            ],
        )
        memory.generate([START[0], task, *step(1), *step(2)])
    assert model.asked == 2
    assert [block["type"] for block in model.sent[-1][1].content] == ["text", "image", "text"]  # type: ignore[union-attr]


def test_it_streams_and_copies_as_its_model_does():
    memory = MemoryModel(Scripted(), "fold(1)")
    assert not hasattr(memory, "generate_stream") and memory.model_id == "scripted"
    assert copy.copy(memory).memory is memory.memory


def test_a_memory_with_handles_is_refused():
    with pytest.raises(UserError, match=r"no tool for the handles that archive\(3\) names.* such as fold\(4\)$"):
        MemoryModel(Scripted(), "archive(3)")
    with pytest.raises(UserError, match=r"names: give Bounds\(handles=False\)$"):
        MemoryModel(Scripted(), "fold(4)", writer=SimpleNamespace(write=print))
