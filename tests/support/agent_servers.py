"""A server whose scripted model works through a task with parallel calls, for the agents of other frameworks.

    task "Find the facts of oslo."    ->  look("oslo-0"), look("oslo-1"); look("oslo-2"), ...; after the last turn it
                                          answers with all facts that stand in the messages it was sent

What it says follows from the messages alone, so many agents can use it at once, and an agent whose memory loses a fact
gives another answer. A request that a provider would refuse gets a 400. A `tool_choice` that demands a call gets one.
It speaks chat completions and Responses, streamed or not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from chat_servers import Reply, chat_server

from mem1.errors import UserError
from mem1.messages import check
from mem1.messages.bounds import tokens_of
from mem1.messages.transcript import ASK

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
FILLER = "Nothing else is known about this place. " * 30
FACT = re.compile(r"fact-[a-z]+-\d+")
HANDLE = re.compile(r'recall\("(r[0-9a-f]{8})", start=(\d+)\)')
FINAL = {"submit", "final_result", "Answer"}
"""Tools of frameworks that take the final answer."""


def look(place: str) -> str:
    """Looks a place up."""
    return f"fact-{place} {FILLER} end-of-{place}"


def facts(task: str, turns: int) -> str:
    """The answer of an agent that forgot nothing."""
    return ", ".join(sorted(f"fact-{task}-{number}" for number in range(2 * turns)))


@dataclass
class AgentServer:
    turns: int
    tool: str = "look"
    argument: str = "place"
    answer: str | None = None
    """Final answer; None: the facts."""
    writes: bool = True
    """Whether the model writes a state when asked, and does not call a tool instead."""
    url: str = ""
    refused: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Estimated tokens of each request."""
    lengths: list[int] = field(default_factory=list)
    """Messages of each request."""
    asked: int = 0
    """Requests for a state."""
    streamed: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, body: dict[str, Any], number: int) -> Reply:
        form = "responses" if "input" in body else "chat"
        messages = body["input"] if form == "responses" else body["messages"]
        messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        try:
            check(messages, form)
        except UserError as error:
            self.refused.append(str(error))
            return Reply(status=400, body=json.dumps({"error": {"message": str(error)}}).encode())
        self.requests.append(body)
        self.sizes.append(tokens_of(messages))
        self.lengths.append(len(messages))
        self.streamed += bool(body.get("stream"))
        tools = {tool.get("name") or tool["function"]["name"] for tool in body.get("tools") or ()}
        forced = body.get("tool_choice") not in (None, "auto", "none")
        text, calls = self.says(messages, tools, forced)
        usage = self.sizes[-1] + 100
        if form == "responses":
            return _responses(text, calls, usage, bool(body.get("stream")))
        return _chat(text, calls, usage, bool(body.get("stream")))

    def says(
        self, messages: Sequence[Any], tools: set[str], forced: bool
    ) -> tuple[str, list[tuple[str, str, dict[str, Any]]]]:
        """(text, calls as (id, name, arguments)) of the next turn."""
        shown = json.dumps(messages)
        known = ", ".join(sorted(set(FACT.findall(shown))))
        if ASK in json.dumps(messages[-1]):
            self.asked += 1
            return (
                (f"Known: {known}.", [])
                if self.writes and not forced
                else ("", [("call_0_0_0", self.tool, {self.argument: "x"})])
            )
        match = re.search(r"facts of ([a-z]+)", shown)
        name = match[1] if match else "thing"
        known = self.answer or known
        last = messages[-1].get("tool_call_id") or messages[-1].get("call_id")
        turn = int(last.split("_")[2]) + 1 if last else 0
        if turn >= self.turns:
            for final in tools & FINAL:
                return "", [(f"call_{name}_{turn}_0", final, {"answer": known})]
            return known, []
        calls: list[tuple[str, str, dict[str, Any]]] = [
            (f"call_{name}_{turn}_{part}", self.tool, {self.argument: f"{name}-{2 * turn + part}"}) for part in (0, 1)
        ]
        if turn == self.turns // 2 and "recall" in tools and (handle := HANDLE.search(str(messages))):
            calls.append((f"call_{name}_{turn}_2", "recall", {"handle": handle[1], "start": int(handle[2])}))
        return "", calls


@contextmanager
def agent_server(turns: int = 20, **script: Any) -> Iterator[AgentServer]:
    """A running server, which refuses what a provider would refuse."""
    behave = AgentServer(turns, **script)
    with chat_server(behave, CHAT, RESPONSES) as server:
        behave.url, behave.refused = server.url, server.refused
        yield behave


def _chat(text: str, calls: Sequence[tuple[str, str, dict[str, Any]]], usage: int, stream: bool) -> Reply:
    made = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        for id, name, given in calls
    ]
    message = {"role": "assistant", "content": text or None, **({"tool_calls": made} if made else {})}
    reason = "tool_calls" if calls else "stop"
    common = {"id": "chatcmpl-1", "created": 1, "model": "model"}
    counted = {"prompt_tokens": usage, "completion_tokens": 10, "total_tokens": usage + 10}
    if not stream:
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return Reply(
            body=json.dumps({**common, "object": "chat.completion", "choices": [choice], "usage": counted}).encode()
        )
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": word} for word in re.findall(r"\S+\s*", text)]
    for index, call in enumerate(made):
        function = call["function"]
        half = len(function["arguments"]) // 2
        deltas.append(
            {"tool_calls": [{**call, "index": index, "function": {"name": function["name"], "arguments": ""}}]}
        )
        for piece in (function["arguments"][:half], function["arguments"][half:]):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    chunks.append({"choices": [], "usage": counted})
    lines = [f"data: {json.dumps({**common, 'object': 'chat.completion.chunk', **chunk})}\n\n" for chunk in chunks]
    return _events([*lines, "data: [DONE]\n\n"])


def _responses(text: str, calls: Sequence[tuple[str, str, dict[str, Any]]], usage: int, stream: bool) -> Reply:
    output: list[dict[str, Any]] = [
        {
            "type": "function_call",
            "id": f"fc_{id}",
            "call_id": id,
            "name": name,
            "arguments": json.dumps(given),
            "status": "completed",
        }
        for id, name, given in calls
    ]
    if text:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        output.append(
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
        )
    counted = {
        "input_tokens": usage,
        "output_tokens": 10,
        "total_tokens": usage + 10,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    response = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "model",
        "status": "completed",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": counted,
    }
    if not stream:
        return Reply(body=json.dumps(response).encode())
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**response, "output": [], "usage": None, "status": "in_progress"}}
    ]
    for at, item in enumerate(output):
        events.append({"type": "response.output_item.added", "output_index": at, "item": item})
        if text and item["type"] == "message":
            where = {"output_index": at, "content_index": 0, "item_id": item["id"]}
            events += [
                {"type": "response.output_text.delta", **where, "delta": word, "logprobs": []}
                for word in re.findall(r"\S+\s*", text)
            ]
        events.append({"type": "response.output_item.done", "output_index": at, "item": item})
    events.append({"type": "response.completed", "response": response})
    return _events(
        [
            f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n"
            for number, event in enumerate(events)
        ]
    )


def _events(lines: Sequence[str]) -> Reply:
    return Reply(body="".join(lines).encode(), headers={"Content-Type": "text/event-stream"})
