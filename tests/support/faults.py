"""A model of which three replies in ten are of no use: empty, cut, thoughts alone, broken or unknown calls.

    FaultyModel(Random(0)).completion(messages)    {"choices": [{"message": ..., "finish_reason": ...}]}

It looks facts up one by one and answers with all of them. What it knows stands in the messages that it is shown, so an
agent that loses a fact, or takes a useless reply for the answer or for a state, gives itself away.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from scripted import calls, said

from mem1.messages.transcript import ASK

EMPTY: list[dict[str, Any]] = [
    {"role": "assistant", "content": None},
    {"role": "assistant", "content": ""},
    {"role": "assistant", "content": " \n"},
    {"role": "assistant", "content": []},
    {"role": "assistant", "content": None, "reasoning_content": "hm"},
    {"role": "assistant", "content": "<think>hm</think>"},
    {"role": "assistant", "content": "<think>hm"},
]
CALL = '<tool_call>{"name": "search", "arguments": {"query": "Oslo", "most": 2}}</tool_call>'
CUT = {"role": "assistant", "content": "x", "finish": "length"}
BAD_CALLS = [calls(("search", "{no json")), calls(("fetch", "{}"))]
FAULTS = (*EMPTY, said(CALL[:40]), CUT, *BAD_CALLS)
FACTS = 8
FACT = re.compile(r"fact-\d+")
ANSWER = ", ".join(f"fact-{number}" for number in range(FACTS))
TASK = "Find all facts."


def search(query: str) -> str:
    """Searches."""
    return f"fact-{query} {'Nothing else is known. ' * 40}"


@dataclass
class FaultyModel:
    draw: Random
    faults: Sequence[dict[str, Any]] = FAULTS
    share: float = 0.3
    """Of the replies."""
    replies: Counter[str] = field(default_factory=Counter)
    """"fault", "state", "call", "answer" -> number."""

    def completion(self, messages: Sequence[Any]) -> dict[str, Any]:
        """The next reply, as OpenAI's chat completions have it."""
        fault = dict(self.draw.choice(self.faults)) if self.draw.random() < self.share else None
        kind, message = ("fault", fault) if fault is not None else self._useful(messages)
        self.replies[kind] += 1
        message = {"role": "assistant", **message}
        finish = message.pop("finish", "stop")
        if "tool_calls" in message:
            number = self.replies.total()
            message["tool_calls"] = [
                {"id": f"call_{number}_{at}", "type": "function", **call}
                for at, call in enumerate(message["tool_calls"])
            ]
        return {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}

    def _useful(self, messages: Sequence[Any]) -> tuple[str, dict[str, Any]]:
        known = sorted({*FACT.findall(json.dumps(messages))})
        if str(messages[-1].get("content")).startswith(ASK):
            return "state", said(f"Known: {', '.join(known)}.")
        if len(known) == FACTS:
            return "answer", said(", ".join(known))
        return "call", calls(("search", json.dumps({"query": str(len(known))})))
