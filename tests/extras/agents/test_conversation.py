"""What the adapters for agent frameworks share, and what they say where a framework is missing; needs no framework."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest
from agent_servers import look

from mem1.errors import UserError
from mem1.extras.agents.conversation import Conversation, Kind, ending_in, finished, memory_of
from mem1.messages import Bounds, Reading, fold


@dataclass(frozen=True)
class Note:
    """A message of a framework that does not exist."""

    role: str
    text: str
    calls: tuple[str, ...] = ()
    answers: str = ""
    kept: object = None


def read(note: Note) -> dict[str, Any]:
    if note.role == "tool":
        return {"role": "tool", "tool_call_id": note.answers, "content": note.text}
    calls = [{"id": id, "type": "function", "function": {"name": "look", "arguments": "{}"}} for id in note.calls]
    return {"role": note.role, "content": note.text, **({"tool_calls": calls} if calls else {})}


KIND = Kind(
    read=read,
    copied=lambda note, changed: replace(note, text=changed["content"]),
    made=lambda message: Note(message["role"], message["content"], answers=message.get("tool_call_id", "")),
)
OWN = [
    Note("user", "Find it.", kept="id"),
    Note("assistant", "I look.", calls=("a", "b")),
    Note("tool", look("x"), answers="a", kept="artifact"),
    Note("tool", look("y"), answers="b"),
    Note("assistant", "", calls=("c",)),
    Note("tool", look("z"), answers="c"),
]


def test_what_stays_is_the_frameworks_own_object_and_what_changes_a_copy_of_it():
    found = Conversation.of(KIND, OWN)
    shown = found.written(fold(found.read, "archive(1)"))
    assert [a is b for a, b in zip(shown, OWN, strict=True)] == [True, True, False, False, True, True]
    assert shown[2].kept == "artifact" and shown[2].text.startswith("[result of look")
    assert OWN[2].text == look("x")
    noted = found.written(fold(found.read, "notes"))
    assert noted[0].kept == "id" and noted[0].text.startswith("Find it.") and noted[1:] == OWN[4:]
    answered = Conversation.of(KIND, [*OWN[:2], Note("user", "Go on.")])
    made = answered.written(fold(answered.read))
    assert [note.answers for note in made[2:4]] == ["a", "b"] and made[4] is answered.own[2]


def test_a_shortened_result_is_found_again_and_read_on_from_where_it_was_cut():
    found, memory = Conversation.of(KIND, OWN), memory_of("full", {})
    short = found.written(fold(found.read, bounds=Bounds(result=100)))[5].text
    name = short.partition('recall("')[2][:9]
    start = int(short.partition("start=")[2].partition(")")[0])
    assert found.recall(memory, name) == look("z") and found.recall(memory, name, start) == look("z")[start:]
    with pytest.raises(UserError, match="no result has the handle"):
        found.recall(memory, "r00000000")


class Notes:
    """A writer that notes what a result begins with."""

    def write(self, reading: Reading, /) -> list[str]:
        return [line.partition("] ")[2][:9] for line in reading.exchange.splitlines() if line.startswith("[result")]


def test_a_writer_beside_the_agent_writes_its_states_and_its_notes_are_recalled():
    memory, found = memory_of("constant", {"writer": Notes()}), Conversation.of(KIND, OWN)
    shown = memory.prompt(found.read, write=lambda _: pytest.fail("the model was asked"), owner="instructions")
    assert found.written(shown) == OWN and memory.flush(20)
    folded = found.written(memory.prompt(found.read, owner="instructions"))
    note = look("y")[:9].strip()
    assert note in folded[0].text and folded[0].kept == "id" and folded[1:] == OWN[4:]
    asks = Conversation.of(KIND, [*OWN, Note("assistant", "", calls=("d",))])
    assert look("y") in asks.recall(memory, note) and note in asks.recall(memory, "notes")


def test_a_writer_of_ones_own_is_refused():
    assert memory_of("archive(1)", {"bounds": Bounds(result=60)}).shows_handles
    with pytest.raises(UserError, match="the agent's own model writes its states"):
        memory_of("fold(1)", {"write": print})


@pytest.mark.parametrize(
    ("module", "framework", "extra"),
    [
        ("langchain", "langchain.agents.middleware", "langchain"),
        ("pydantic_ai", "pydantic_ai", "pydantic-ai"),
        ("openai_agents", "agents", "openai-agents"),
        ("inspect", "inspect_ai.model", "inspect"),
    ],
)
def test_a_missing_framework_is_named_with_what_to_install(
    module: str, framework: str, extra: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, framework, None)
    monkeypatch.delitem(sys.modules, f"mem1.extras.agents.{module}", raising=False)
    with pytest.raises(UserError, match=rf"pip install 'mem1-agents\[{extra}\]'"):
        importlib.import_module(f"mem1.extras.agents.{module}")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"finish_reason": "length"}, "cut off"),
        ({"stop_reason": "model_context_window_exceeded"}, "cut off"),
        ({"done_reason": "length"}, "cut off"),
        ({"stopReason": "max_tokens"}, "cut off"),  # Bedrock
        ({"stopReason": "guardrail_intervened"}, "filter"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "cut off"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "filter"),
    ],
)
def test_why_a_state_came_to_no_end_is_read_in_the_words_of_all_providers(answer: dict[str, Any], why: str):
    said = {"role": "assistant", "content": "Known so far: the por"}
    with pytest.raises(UserError, match=why):
        finished(said, ending_in(answer), memory_of("fold(1)", {}))
    whole = {"finish_reason": "stop", "status": "completed", "incomplete_details": None}
    assert finished(said, ending_in(whole), memory_of("fold(1)", {})) is said
