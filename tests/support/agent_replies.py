"""A turn of a scripted model in the form of each API, whole or streamed.

Said(calls=[("call_1", "look", {"place": "Oslo"})], thought="hm")
    chat(said, 120, stream=False)          {"choices": [{"message": {"tool_calls": [...]}}], "usage": {...}}
    responses(said, 120, stream=False)     {"output": [{"type": "reasoning", ...}, {"type": "function_call", ...}]}
    anthropic(said, 120, stream=True)      event: message_start ..., a thought with its signature, a tool_use
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server_replies import Reply

RESPONSES_ENDS = {"length": "max_output_tokens"}
ANTHROPIC_ENDS = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}
"""Why a text ended, in the words of the other APIs."""
Call = tuple[str, str, Mapping[str, Any]]
"""(id, name, arguments)"""


@dataclass(frozen=True)
class Said:
    """What a model says."""

    text: str = ""
    calls: Sequence[Call] = ()
    thought: str = ""
    """Empty: none. Chat completions have no place for one."""
    ended: str = "stop"
    """Why a text ended, as chat completions say it."""

    @property
    def name(self) -> str:
        """What its ids end with: frameworks take replies of one id for one reply."""
        return self.thought or "".join(id for id, _, _ in self.calls) or "1"


def chat(said: Said, usage: int, *, stream: bool) -> Reply:
    """A reply of chat completions; `usage`: tokens of the prompt."""
    made = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        for id, name, given in said.calls
    ]
    message = {"role": "assistant", "content": said.text or None, **({"tool_calls": made} if made else {})}
    reason = "tool_calls" if made else said.ended
    common = {"id": f"chatcmpl-{said.name}", "created": 1, "model": "model"}
    counted = {"prompt_tokens": usage, "completion_tokens": 10, "total_tokens": usage + 10}
    if not stream:
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return Reply(
            body=json.dumps({**common, "object": "chat.completion", "choices": [choice], "usage": counted}).encode()
        )
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": word} for word in _words(said.text)]
    for index, call in enumerate(made):
        function = call["function"]
        deltas.append(
            {"tool_calls": [{**call, "index": index, "function": {"name": function["name"], "arguments": ""}}]}
        )
        for piece in _halves(function["arguments"]):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    chunks.append({"choices": [], "usage": counted})
    lines = [f"data: {json.dumps({**common, 'object': 'chat.completion.chunk', **chunk})}\n\n" for chunk in chunks]
    return _events([*lines, "data: [DONE]\n\n"])


def output_of(said: Said) -> list[dict[str, Any]]:
    """The output items of the Responses API: the reasoning before what it led to."""
    output: list[dict[str, Any]] = []
    if said.thought:
        output.append({"type": "reasoning", "id": f"rs_{said.thought}", "summary": [], "encrypted_content": "c2lnbmVk"})
    output += [
        {
            "type": "function_call",
            "id": f"fc_{id}",
            "call_id": id,
            "name": name,
            "arguments": json.dumps(given),
            "status": "completed",
        }
        for id, name, given in said.calls
    ]
    if said.text:
        content = [{"type": "output_text", "text": said.text, "annotations": []}]
        id = f"msg_{said.name}"
        status = "completed" if said.ended == "stop" else "incomplete"
        output.append({"type": "message", "id": id, "role": "assistant", "status": status, "content": content})
    return output


def responses(said: Said, usage: int, *, stream: bool) -> Reply:
    """A reply of the Responses API."""
    output = output_of(said)
    counted = {
        "input_tokens": usage,
        "output_tokens": 10,
        "total_tokens": usage + 10,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    response = {
        "id": f"resp_{said.name}",
        "object": "response",
        "created_at": 1,
        "model": "model",
        "status": "completed" if said.ended == "stop" else "incomplete",
        "incomplete_details": None if said.ended == "stop" else {"reason": RESPONSES_ENDS.get(said.ended, said.ended)},
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
        if item["type"] == "message":
            where = {"output_index": at, "content_index": 0, "item_id": item["id"]}
            events += [
                {"type": "response.output_text.delta", **where, "delta": word, "logprobs": []}
                for word in _words(said.text)
            ]
        events.append({"type": "response.output_item.done", "output_index": at, "item": item})
    events.append({"type": f"response.{response['status']}", "response": response})
    return _named({**event, "sequence_number": number} for number, event in enumerate(events))


def blocks_of(said: Said) -> list[dict[str, Any]]:
    """The content blocks of Anthropic's Messages API."""
    blocks: list[dict[str, Any]] = []
    if said.thought:
        blocks.append({"type": "thinking", "thinking": said.thought, "signature": f"signed-{said.thought}"})
    if said.text:
        blocks.append({"type": "text", "text": said.text})
    return blocks + [{"type": "tool_use", "id": id, "name": name, "input": given} for id, name, given in said.calls]


def anthropic(said: Said, usage: int, *, stream: bool) -> Reply:
    """A reply of Anthropic's Messages API."""
    blocks = blocks_of(said)
    reason = "tool_use" if said.calls else ANTHROPIC_ENDS.get(said.ended, said.ended)
    message = {
        "id": f"msg_{said.name}",
        "type": "message",
        "role": "assistant",
        "model": "model",
        "content": blocks,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {"input_tokens": usage, "output_tokens": 10},
    }
    if not stream:
        return Reply(body=json.dumps(message).encode())
    started = {**message, "content": [], "stop_reason": None}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": started}]
    for index, block in enumerate(blocks):
        empty, deltas = _deltas(block)
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    ending = {"stop_reason": reason, "stop_sequence": None}
    events += [
        {"type": "message_delta", "delta": ending, "usage": {"output_tokens": 10}},
        {"type": "message_stop"},
    ]
    return _named(events)


def _deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the block as it starts, what comes of it piece by piece)"""
    if block["type"] == "thinking":
        return {**block, "thinking": "", "signature": ""}, [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": word} for word in _words(block["text"])]
    pieces = _halves(json.dumps(block["input"]))
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]


def _words(text: str) -> list[str]:
    return re.findall(r"\S+\s*", text)


def _halves(text: str) -> tuple[str, str]:
    half = len(text) // 2
    return text[:half], text[half:]


def _named(events: Any) -> Reply:
    return _events([f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events])


def _events(lines: Sequence[str]) -> Reply:
    return Reply(body="".join(lines).encode(), headers={"Content-Type": "text/event-stream"})
