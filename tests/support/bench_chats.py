"""Chat models for tests of the benchmark: functions of the messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from bench_suites import SMALL

from mem1.bench.chat import ChatPlayer
from mem1.bench.results import Attempt
from mem1.bench.running import Journal
from mem1.bench.suites import Cell, Drawing, Drawn
from mem1.messages.transcript import Message
from mem1.net.spending import Usage
from mem1.prices import PrefixCache, PriceClass, Prices

PRICES = PriceClass(
    name="plain", about="", prices=Prices(fresh=2.0, cached=1.0, write=2.0, output=10.0), cache=PrefixCache()
)
TWO = next(cell for cell in SMALL.cells if cell.objectives == 2)
Answer = Callable[[list[Message]], Any]


def drawn(cell: Cell = TWO, native: bool = True) -> Drawn:
    return Drawing(SMALL, seed=0, native=native).of(cell)


def completion(text: str | None = None, *queries: str, finish: str = "stop") -> dict[str, Any]:
    calls = [{"function": {"name": "search", "arguments": json.dumps({"query": query})}} for query in queries]
    message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
    return {"choices": [{"message": message, "finish_reason": finish}]}


def player(answer: Answer, journal: Journal | None = None) -> ChatPlayer:
    """A model that is a function of the messages; what it returns may be an error."""

    def complete(messages: list[Message], tools: list[Message]) -> tuple[Mapping[str, Any], Usage]:
        found = answer(messages)
        if isinstance(found, Exception):
            raise found
        return found, Usage(money=0.5)

    return ChatPlayer("m", {}, lambda drawn, memory: complete, journal=Journal(None) if journal is None else journal)


def attempt(one: ChatPlayer, memory: str = "full", cell: Cell = TWO) -> Attempt:
    at = drawn(cell)
    (found,) = one.attempts(at, at.tasks[:1], memory, lambda: False)
    return found.attempt
