"""Chat messages as texts, and a policy's text as the message that a chat model would have sent.

    shown([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])    ->  "Be brief.\\n\\nHi"
    spoken('look_up({"name": "Oslo"})', tools)   ->  {"content": None, "tool_calls": [look_up, with these arguments]}
    spoken("It is in Norway.", tools)            ->  {"content": "It is in Norway."}

Tools are described as OpenAI's chat completions do: {"type": "function", "function": {"name", "description", ...}}.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mem1.envs.replayed import EpisodeFailed

Message = Mapping[str, Any]
Tool = Mapping[str, Any]


def shown(messages: Sequence[Message]) -> str:
    """The texts of messages. Where several speak, who it was stands before each text, but for an opening system prompt.

    Raises EpisodeFailed for an image.
    """
    texts = [_content(message) for message in messages]
    roles = [message["role"] for message in messages]
    if len(set(roles) - {"system"}) < 2 and "system" not in roles[1:]:
        return "\n\n".join(filter(None, texts))
    return "\n\n".join(f"{role}: {text}" if role != "system" else text for role, text in zip(roles, texts, strict=True))


def news(messages: Sequence[Message]) -> list[Message]:
    """What was said after the model's last message."""
    last = max((n for n, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    return list(messages[last + 1 :])


def explained(tools: Sequence[Tool]) -> str:
    """The tools in a prompt, as calls with the types of their arguments; empty for none."""
    if not tools:
        return ""
    lines = [
        "You can call tools, by writing a name and JSON arguments, and nothing else. Any other text is your reply."
    ]
    for tool in tools:
        function = tool["function"]
        properties = (function.get("parameters") or {}).get("properties") or {}
        arguments = ", ".join(f'"{name}": {_type(schema)}' for name, schema in properties.items())
        description = " ".join((function.get("description") or "").split())
        lines.append(f"{function['name']}({{{arguments}}}){': ' if description else ''}{description}")
    return "\n".join(lines)


def spoken(text: str, tools: Sequence[Tool], *, number: int = 0) -> dict[str, Any]:
    """The message of a text; calls of tools follow one another. `number` makes ids different in a conversation."""
    names = [tool["function"]["name"] for tool in tools]
    calls = _calls(text.strip(), names) if names else []
    if not calls:
        return {"role": "assistant", "content": text}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": f"call_{number}_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(calls)
        ],
    }


def call(tool: Tool, argument: str) -> str:
    """A call as a text, of a tool and what a model that calls tools gave it: JSON, or the text that is its only one."""
    function = tool["function"]
    properties = (function.get("parameters") or {}).get("properties") or {}
    if len(properties) == 1 and _type(next(iter(properties.values()))) == "string":
        argument = json.dumps({next(iter(properties)): argument}, ensure_ascii=False)
    return f"{function['name']}({argument})"


def _calls(text: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """(name, arguments) of each call; a text that begins as a call and is none has the rest as its arguments."""
    opening = re.compile(rf"\s*({'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})\s*\(\s*")
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        begun = opening.match(text, at)
        if begun is None:
            return [] if not found else [*found[:-1], (found[-1][0], f"{found[-1][1]} {text[at:].strip()}")]
        try:
            _, end = json.JSONDecoder().raw_decode(text, begun.end())
            closed = re.compile(r"\s*\)\s*").match(text, end)
        except (ValueError, RecursionError):
            end, closed = begun.end(), re.compile(r"\)\s*").match(text, begun.end())
        if closed is None:
            return [*found, (begun[1], text[begun.end() :].removesuffix(")"))]
        found.append((begun[1], text[begun.end() : end] or "{}"))
        at = closed.end()
    return found


def _content(message: Message) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    if other := {part.get("type") for part in content} - {"text"}:
        raise EpisodeFailed(f"a message has {', '.join(map(str, other))}: only texts can be shown")
    return "\n".join(part.get("text") or "" for part in content)


def _type(schema: Any) -> str:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return kind if isinstance(kind, str) else "any"
