"""Scripts that take the benchmark, in tags and as a chat model: for calibration, for tests, and to estimate its cost.

    script_of(drawn, drawn.tasks)                   text of a context -> completion in tags (`TasksConfig.expert`)
    scripted_chat(drawn, state=200)                 (messages, tools) -> a chat completion, counted at four characters

As a chat model the script reads what the messages hold, as one text in tags, and answers in the model's form:

    user: the task, <memory>...</memory>            the prompt, <IS> ... </IS>
    assistant: notes, search("Moru Kest")           <IS> notes </IS> <query> Moru Kest </query>
    tool: [3 searches left] Moru Kest is ...        <info> [HINT] You have 4 turns left ... </info>
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mem1.bench.chat import ChatPlayer, Complete
from mem1.bench.suites import Drawn
from mem1.engines.base import Script
from mem1.memory import STATE, memory_policy
from mem1.messages import Bounds
from mem1.messages.transcript import ASK, Message, texts
from mem1.net.spending import Usage
from mem1.prices import PriceClass
from mem1.protocol import ANSWER, NOTE, SUMMARY, observation, parse, tagged
from mem1.records import Task, Turn

_MEMORY = re.compile(r"\s*<memory>\n(.*)\n</memory>\Z", re.DOTALL)
_LEFT = re.compile(r"\[(?:(\d+) \w+ left|No \w+ are left[^\]]*)\]\n|error: no \w+ are left")
_MANY = 1_000
"""Turns left where a result that was dropped does not say how many."""
_LINE = 60
"""Tokens of what is noted in a turn whose notes stay."""
_PLACE = 30
"""Tokens of a note that say where the solver is, beside those of its memory."""


def remembers(drawn: Drawn) -> bool:
    """Whether the scripted solver of these tasks can be given a memory of some size."""
    return "memory" in type(drawn.config).model_fields


def script_of(drawn: Drawn, tasks: Sequence[Task], memory: int | None = None) -> Script:
    """The scripted solver of these tasks: text of a context -> completion. `memory`: tokens of its notes; None: any."""
    config = drawn.config
    if memory is not None and remembers(drawn):
        config = config.model_copy(update={"memory": memory})
    return config.expert(tasks, drawn.environment, drawn.tags, seed=0)


def scripted_player(
    name: str, *, state: int | None, prices: PriceClass | None = None, at_a_time: int = 1
) -> ChatPlayer:
    """The script as a chat agent, whose states have at most `state` tokens; None: as many as any model's."""
    bounds = Bounds(handles=False) if state is None else Bounds(handles=False, state=state)
    about = {"kind": "script", "state": state, "speaks": "messages"}
    return ChatPlayer(
        name,
        about,
        lambda drawn, memory: scripted_chat(drawn, memory, bounds.state),
        prices=prices,
        bounds=bounds,
        at_a_time=at_a_time,
    )


def scripted_chat(drawn: Drawn, memory: str = "full", state: int = Bounds().state) -> Complete:
    """The scripted solver as a chat model that calls the tool of these tasks.

    It writes down what its memory would lose otherwise: nothing where results stay or the model will be asked for a
    state, which has at most `state` tokens; what a result has just shown where the notes stay; else all that it knows.
    """
    asks = memory_policy(memory).asks
    each = _LINE if NOTE in asks else 0 if asks & {STATE, SUMMARY} else _lost(memory, state)
    works, writes = (script_of(drawn, drawn.tasks, tokens) for tokens in (each, state - _PLACE))

    def complete(messages: list[Message], tools: list[Message]) -> tuple[Mapping[str, Any], Usage]:
        wants_state = texts(messages[-1]["content"]).startswith(ASK)
        script, seen = (writes, messages[:-1]) if wants_state else (works, messages)
        said = parse(script(in_tags(seen, drawn)), drawn.tags)
        if wants_state:
            message: dict[str, Any] = {"role": "assistant", "content": said.state or "nothing yet"}
        elif said.kind == ANSWER:
            message = {"role": "assistant", "content": said.content}
        else:
            notes = f"<note>{said.state}</note>" if NOTE in asks else said.state or None
            message = {"role": "assistant", "content": notes, "tool_calls": [_call(said.content, tools)]}
        return {"choices": [{"message": message, "finish_reason": "stop"}]}, Usage()

    return complete


def _lost(memory: str, state: int) -> int:
    """Tokens that the script writes with each turn, for a memory that asks for nothing."""
    said = (0,) * state
    turns = [Turn(context_ids=(0,), completion_ids=said) for _ in range(_MANY)]
    oldest = next((kept for kept in memory_policy(memory).select(turns).kept if kept.turn is turns[0]), None)
    if oldest is None:
        return state - _PLACE
    return 0 if oldest.result else _LINE


def in_tags(messages: Sequence[Message], drawn: Drawn) -> str:
    """The messages as one text in tags; the newest state of the memory stands behind the task."""
    tags, action = drawn.tags, drawn.tags.action_tags[drawn.action]
    parts: list[str] = []
    for message in messages:
        text = texts(message.get("content"))
        if message["role"] == "user":
            state = _MEMORY.search(text)
            parts.append(text if state is None else text[: state.start()])
            parts += [] if state is None else [f" <{tags.state}> {state[1]} </{tags.state}>"]
        elif message["role"] == "assistant":
            text = text.removeprefix("<note>").removesuffix("</note>")
            parts += [f" <{tags.state}> {text} </{tags.state}>"] if text else []
            for call in message.get("tool_calls", ()):
                (argument,) = json.loads(call["function"]["arguments"]).values()
                parts.append(f" <{action}> {argument} </{action}>")
        else:
            left = _LEFT.match(text)
            turns = _MANY if left is None else int(left[1] or 0) + 1
            inside, _ = observation(text if left is None else text[left.end() :], turns, tags)
            parts.append(f" {tagged(inside, tags)}")
    return "".join(parts)


def _call(argument: str, tools: Sequence[Message]) -> dict[str, Any]:
    function = tools[0]["function"]
    (parameter,) = function["parameters"]["properties"]
    return {"function": {"name": function["name"], "arguments": json.dumps({parameter: argument})}}
