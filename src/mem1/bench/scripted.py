"""Scripts that take the benchmark, in tags and as a chat model: for calibration, for tests, and to estimate its cost.

    script_of(drawn, drawn.tasks)                   text of a context -> completion in tags (`TasksConfig.expert`)
    scripted_chat(drawn, state=200)                 (messages, tools) -> a chat completion, counted at four characters

As a chat model the script reads what the messages hold, as one text in tags, and answers in the model's form:

    user: the task, <memory>...</memory>            the prompt, <IS> ... </IS>
    assistant: notes, search("Moru Kest")           <IS> notes </IS> <query> Moru Kest </query>
    tool: [3 searches left] Moru Kest is ...        <info> [HINT] You have 4 turns left ... </info>

What a run will cost is estimated by it before anything is asked:

    estimates(suite, ["full", "fold(8)"], seed=0, prices=price_class("hosted-90"))
    ->  [Estimated(memory="full", tasks=240, fresh=410_000, cached=1_400_000, output=60_000, cost=2.6), ...]

It goes through the real agent and memory, at four characters a token. Of each cell it plays a few tasks and counts them
as often as there are tasks. Of cells whose tasks are long it plays none: what grows with every turn grows with the
square of N, so they are extrapolated from the two largest of their family that are played.

    N = 8: 20,000 = 8 a + 64 b, N = 16: 72,000 = 16 a + 256 b       N = 32: 32 a + 1024 b = 272,000

A model that thinks writes more than the script, and one that searches more reads more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mem1.bench.chat import ChatPlayer, Complete
from mem1.bench.results import Attempt
from mem1.bench.suites import Cell, Drawing, Drawn, Suite
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
_PLAYED = 8
"""Objectives that are played of a cell, about; two tasks at least."""
_LONGEST = 60
"""Turns of a task from which on cells are extrapolated, where two smaller ones are there."""
_MEASURED = ("calls", "fresh", "cached", "output", "cost")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """All tasks of a suite under one memory."""

    memory: str
    tasks: int
    calls: float
    """Replies to turns; states come on top."""
    fresh: float
    """Prompt tokens that no cache serves."""
    cached: float
    output: float
    cost: float | None
    """In the unit of the prices; None: there are none."""

    @property
    def input(self) -> float:
        """All prompt tokens."""
        return self.fresh + self.cached


def estimates(suite: Suite, memories: Sequence[str], *, seed: int, prices: PriceClass | None = None) -> list[Estimated]:
    """One for each memory."""
    drawing = Drawing(suite, seed=seed, native=True)
    player = scripted_player("script", state=None, prices=prices)

    def played(cell: Cell, memory: str) -> dict[str, float]:
        drawn = drawing.of(cell)
        most = max(2, _PLAYED // cell.objectives)
        tasks = drawn.tasks[: min(most, suite.asked(cell))]
        return _mean([played.attempt for played in player.attempts(drawn, tasks, memory, lambda: False)])

    found = []
    for memory in memories:
        sizes: dict[tuple[str, int], dict[int, dict[str, float]]] = {}
        total = dict.fromkeys(_MEASURED, 0.0)
        for cell in sorted(suite.cells, key=lambda cell: cell.objectives):
            smaller = sizes.setdefault((cell.family, cell.level), {})
            turns = _at(cell.objectives, {n: means["calls"] for n, means in smaller.items()}) if smaller else 0
            if cell.objectives not in smaller and (turns <= _LONGEST or len(smaller) < 2):
                smaller[cell.objectives] = played(cell, memory)
            for name in _MEASURED:
                total[name] += suite.asked(cell) * _at(
                    cell.objectives, {n: means[name] for n, means in smaller.items()}
                )
        cost = None if prices is None else total.pop("cost")
        tasks = sum(map(suite.asked, suite.cells))
        found.append(Estimated(memory=memory, tasks=tasks, **{**total, "cost": cost}))
    return found


def _mean(attempts: Sequence[Attempt]) -> dict[str, float]:
    """Of one attempt."""
    number = len(attempts)
    return {
        "calls": sum(attempt.turns for attempt in attempts) / number,
        "fresh": sum(attempt.tokens.fresh for attempt in attempts) / number,
        "cached": sum(attempt.tokens.cached for attempt in attempts) / number,
        "output": sum(attempt.tokens.output for attempt in attempts) / number,
        "cost": sum(attempt.cost or 0.0 for attempt in attempts) / number,
    }


def _at(objectives: int, known: Mapping[int, float]) -> float:
    """The measure for so many objectives: as measured, or a N + b N^2 through its two largest sizes."""
    if objectives in known:
        return known[objectives]
    last = max(known)
    before = max((n for n in known if n != last), default=last)
    # as a line: the measure divided by N is a + b N; neither is below 0
    per, per_before = known[last] / last, known[before] / before
    slope = min(max(0.0, (per - per_before) / max(1, last - before)), per / last)
    return objectives * (per + slope * (objectives - last))
