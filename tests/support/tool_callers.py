"""A chat server whose model calls tools by a script, writes states when asked, counts tokens, and streams if asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from chat_servers import Reply

from mem1.messages.transcript import ASK

Calls = Sequence[tuple[str, str]]
"""(name, arguments as JSON) of the calls of one turn."""


@dataclass
class ToolCaller:
    """Behaves for `chat_server`: the calls of each turn in order, then the answer."""

    script: Sequence[Calls]
    answer: str = "The mayor is Anne Lindboe."
    usage: bool = True
    """Whether it reports usage."""
    turns: int = 0
    counted: list[tuple[int, int, int]] = field(default_factory=list)
    """(prompt, cached, output) tokens of each request; a token is a character of the JSON."""
    _before: str = ""

    def __call__(self, body: dict[str, Any], number: int) -> Reply:
        if str(body["messages"][-1]["content"]).startswith(ASK):
            message = self._said(f"state {number}: nothing found so far")
        elif self.turns < len(self.script):
            message = self._said("", self.script[self.turns])
            self.turns += 1
        else:
            message = self._said(self.answer)
        whole = json.dumps([body.get("tools"), *body["messages"]])
        same = next((i for i, (a, b) in enumerate(zip(whole, self._before, strict=False)) if a != b), 0)
        counts = (len(whole), same, len(json.dumps(message)))
        self._before = whole
        self.counted.append(counts)
        usage = {
            "prompt_tokens": counts[0],
            "completion_tokens": counts[2],
            "prompt_tokens_details": {"cached_tokens": counts[1]},
        }
        whole_reply = {
            "choices": [{"message": message, "finish_reason": "stop"}],
            **({"usage": usage} if self.usage else {}),
        }
        return Reply(body=streamed(whole_reply) if body.get("stream") else json.dumps(whole_reply).encode())

    def _said(self, text: str, calls: Calls = ()) -> dict[str, Any]:
        made = [
            {"id": f"call_{self.turns}_{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(calls)
        ]
        return {"role": "assistant", "content": text or None, **({"tool_calls": made} if made else {})}


def streamed(completion: dict[str, Any]) -> bytes:
    """The completion as server-sent events: text in words, arguments of parallel calls in halves, mixed."""
    message = completion["choices"][0]["message"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": word + " "} for word in (message["content"] or "").split(" ") if word]
    if message["content"]:
        deltas[-1]["content"] = deltas[-1]["content"].rstrip()
    calls = message.get("tool_calls", [])
    for index, call in enumerate(calls):
        deltas.append({"tool_calls": [{"index": index, **call, "function": {**call["function"], "arguments": ""}}]})
    for half in (0, 1):
        for index, call in enumerate(calls):
            text = call["function"]["arguments"]
            part = text[: len(text) // 2] if half == 0 else text[len(text) // 2 :]
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": completion["choices"][0]["finish_reason"]}]})
    if "usage" in completion:
        chunks.append({"choices": [], "usage": completion["usage"]})
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join([": begins\n\n", *lines, "data: [DONE]\n\n"]).encode()
