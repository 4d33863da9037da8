"""An agent of a framework that does not exist, with a memory as the adapters have it, whose model gives three useless
replies in ten: nothing is raised, no reply of no use becomes a state, the answer is right."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
from faults import ANSWER, BAD_CALLS, CALL, EMPTY, TASK, FaultyModel, search
from scripted import said
from strict_forms import refused

from mem1.extras.agents.conversation import Conversation, Kind, memory_of
from mem1.messages import Event

RUNS = 20


@dataclass(frozen=True)
class Note:
    """A message of the framework."""

    role: str
    text: str
    calls: tuple[Any, ...] = ()
    answers: str = ""


def read(note: Note) -> dict[str, Any]:
    if note.role == "tool":
        return {"role": "tool", "tool_call_id": note.answers, "content": note.text}
    return {"role": note.role, "content": note.text, **({"tool_calls": [*note.calls]} if note.calls else {})}


KIND = Kind(
    read=read,
    copied=lambda note, changed: replace(note, text=changed["content"]),
    made=lambda message: Note(message["role"], message["content"], answers=message.get("tool_call_id", "")),
)


def ran(call: Any) -> Note:
    """The result of a call, as frameworks give it to a model that calls badly."""
    try:
        text = {"search": search}[call["function"]["name"]](**json.loads(call["function"]["arguments"]))
    except (KeyError, ValueError) as error:
        text = f"error: {error}"
    return Note("tool", text, answers=call["id"])


def play(model: FaultyModel, policy: str, events: list[Event]) -> str:
    """The answer. The framework asks again where a reply says nothing, and runs what is called."""
    memory = memory_of(policy, {"on_event": events.append})
    own = [Note("user", TASK)]

    def complete(messages: list[Any]) -> dict[str, Any]:
        sent = [read(note) for note in found.written(messages)]
        assert refused("chat", sent) == "" and CALL[:20] not in str(sent)
        return model.completion(sent)["choices"][0]["message"]

    for _ in range(200):
        found = Conversation.of(KIND, own)
        message = complete(memory.prompt(found.read, write=complete))
        calls, content = message.get("tool_calls", ()), message["content"] or ""
        if calls:
            own += [Note("assistant", content or "", tuple(calls)), *map(ran, calls)]
        elif isinstance(content, str) and "fact" in content:
            return content
    return "no answer"


@pytest.mark.parametrize("policy", ["fold(2)", "fold(1)", "summary(300)"])
def test_three_bad_replies_in_ten_reach_neither_the_answer_nor_a_state(policy: str):
    events: list[Event] = []
    for seed in range(RUNS):
        model = FaultyModel(Random(seed), faults=(*EMPTY, said(CALL[:40]), *BAD_CALLS))
        assert play(model, policy, events) == ANSWER, seed
    kinds = [event.kind for event in events]
    assert kinds.count("no_state") > RUNS / 4 and kinds.count("state") > RUNS, set(kinds)
