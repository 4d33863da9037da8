"""Random conversations in the three forms of messages: parallel, failed and pending calls, thinking, images."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from mem1.messages import with_state

FORMS = ("chat", "responses", "anthropic")
WORDS = [
    "Oslo",
    "mayor",
    "a < b",
    "<note>",
    "</memory>",
    "[x]",
    "19.99",
    "/etc/hosts",
    "naïve",
    "東京",
    "{y}",
    "\n",
    "&",
]
PIXEL = "data:image/png;base64,iVBORw0KGgo="


@dataclass(frozen=True)
class Turn:
    """What the model says in a turn, and what its calls return."""

    thinking: str
    text: str
    calls: list[tuple[str, str, dict[str, Any]]]
    """(id, name, arguments)."""
    results: list[tuple[str, str | list[str], bool]]
    """(id, text or "image" beside texts, failed)."""


def conversation(random: Random, form: str, turns: int = 8) -> list[dict[str, Any]]:
    """A whole conversation; every call but those of the last turn has its results."""
    messages: list[dict[str, Any]] = []
    if form != "anthropic" and random.random() < 0.8:
        messages.append({"role": "system", "content": _text(random, 6)})
    messages.append(_user(random, form))
    for number in range(turns):
        turn = _turn(random, number)
        messages += RENDER[form](turn, random)
        roll = random.random()
        if roll < 0.2:
            _add_user(messages, _user(random, form), form)
        elif roll < 0.4:
            messages += map(dict, with_state((), _text(random, 12).strip() or "nothing", form=form))
    return messages


def prefixes(messages: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Every beginning at which an agent could call the model or wait for a tool."""
    for end in range(1, len(messages) + 1):
        start = messages[:end]
        if any(message.get("role") == "user" for message in start) and start[-1].get("type") != "reasoning":
            yield start


def _turn(random: Random, number: int) -> Turn:
    calls = [
        (
            f"call_{number if random.random() < 0.9 else 0}_{i}",
            random.choice(["search", "read_file"]),
            {"q": _text(random, 3)},
        )
        for i in range(random.choice([0, 1, 1, 1, 2, 3]))
    ]
    results: list[tuple[str, str | list[str], bool]] = []
    for id, _, _ in calls:
        long = _text(random, random.choice([1, 20, 400]))
        results.append((id, [long, "image"] if random.random() < 0.15 else long, random.random() < 0.1))
    if random.random() < 0.2:
        random.shuffle(results)
    text = _text(random, 5) if not calls or random.random() < 0.5 else ""
    if random.random() < 0.3:
        text += f" <note>{_text(random, 4)}</note>"
    return Turn(_text(random, 4) if random.random() < 0.3 else "", text, calls, results)


def _chat(turn: Turn, random: Random) -> list[dict[str, Any]]:
    said: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    if turn.thinking:
        said["reasoning_content"] = turn.thinking
    if turn.calls:
        said["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
            for id, name, given in turn.calls
        ]
    return [said, *({"role": "tool", "tool_call_id": id, "content": _content(c, "chat")} for id, c, _ in turn.results)]


def _responses(turn: Turn, random: Random) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if turn.thinking:
        items.append({"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": turn.thinking})
    if turn.text:
        content = [{"type": "output_text", "text": turn.text}] if random.random() < 0.5 else turn.text
        items.append({"type": "message", "role": "assistant", "content": content})
    items += [
        {"type": "function_call", "call_id": id, "name": name, "arguments": json.dumps(given)}
        for id, name, given in turn.calls
    ]
    outputs = [
        {"type": "function_call_output", "call_id": id, "output": _content(c, "responses")} for id, c, _ in turn.results
    ]
    return items + outputs


def _anthropic(turn: Turn, random: Random) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if turn.thinking:
        blocks.append({"type": "thinking", "thinking": turn.thinking, "signature": "c2ln"})
    if turn.text.strip():
        blocks.append({"type": "text", "text": turn.text})
    blocks += [{"type": "tool_use", "id": id, "name": name, "input": given} for id, name, given in turn.calls]
    said = [{"role": "assistant", "content": blocks or "well"}]
    if not turn.results:
        return said
    results = [
        {
            "type": "tool_result",
            "tool_use_id": id,
            "content": _content(c, "anthropic"),
            **({"is_error": True} if failed else {}),
        }
        for id, c, failed in turn.results
    ]
    return [*said, {"role": "user", "content": results}]


RENDER = {"chat": _chat, "responses": _responses, "anthropic": _anthropic}


IMAGES: dict[str, dict[str, Any]] = {
    "chat": {"type": "image_url", "image_url": {"url": PIXEL}},
    "responses": {"type": "input_image", "image_url": PIXEL},
    "anthropic": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
}


def _content(content: str | list[str], form: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    return [dict(IMAGES[form]) if part == "image" else _part(part, form) for part in content]


def _part(text: str, form: str) -> dict[str, Any]:
    return {"type": "input_text" if form == "responses" else "text", "text": text}


def _user(random: Random, form: str) -> dict[str, Any]:
    text = f"task {_text(random, 5)}"
    if random.random() < 0.7:
        return {"role": "user", "content": text}
    parts = [_part(text, form)]
    return {"role": "user", "content": [*parts, dict(IMAGES[form])] if random.random() < 0.5 else parts}


def _add_user(messages: list[dict[str, Any]], user: dict[str, Any], form: str) -> None:
    """Behind Anthropic's results, in the same message."""
    last = messages[-1]
    if form == "anthropic" and last["role"] == "user":
        content = user["content"]
        last["content"] += [{"type": "text", "text": content}] if isinstance(content, str) else content
    else:
        messages.append(user)


def _text(random: Random, words: int) -> str:
    return " ".join(random.choices(WORDS, k=words)).strip() or "x"
