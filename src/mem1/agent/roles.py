"""The order of roles that a server's chat template asks for, learnt from its refusals.

    rule_in("Unexpected role 'user' after role 'tool'")                     ->  alternate
    alternate([..., {"role": "tool", ...}, {"role": "user", ...}])          ->  [..., tool, assistant, user]
    rule_in("System role not supported")                                    ->  without_system

Templates of Mistral, Gemma and others know one order alone. What changes is what the server sees, and never the
conversation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mem1.messages.folding import PAUSE
from mem1.messages.transcript import Message

Rule = Callable[[Sequence[Message]], list[Message]]
_ALTERNATE = re.compile(
    r"(?:must|should) (?:strictly )?alternate|unexpected role ['\"`]?\w+['\"`]? after role|"
    r"(?:consecutive|successive) (?:user|assistant) (?:or assistant )?messages|"
    r"after (?:a |the )?(?:role )?['\"`]?tool['\"`]?,? (?:role|messages?|must|only|expected)",
    re.IGNORECASE,
)
"""How templates and APIs ask for turns: Mistral's, Gemma's, DeepSeek's, Bedrock's, Perplexity's and Cohere's."""
_NO_SYSTEM = re.compile(
    r"(?:system|developer) (?:role|messages?|prompts?|instructions?) (?:is |are )?not (?:supported|allowed|enabled)|"
    r"(?:does not|doesn't) support (?:the )?['\"`]?system\b|invalid role:? ['\"`]?system\b",
    re.IGNORECASE,
)
"""How templates and APIs refuse a system message: Gemma's, Gemini's for Gemma, OpenAI's for its first o models, and
Bedrock's."""


def rule_in(detail: str) -> Rule | None:
    """What a refusal asks of the messages; None: nothing about roles."""
    if _NO_SYSTEM.search(detail):
        return without_system
    return alternate if _ALTERNATE.search(detail) else None


def alternate(messages: Sequence[Message]) -> list[Message]:
    """User and assistant in turns: two messages of a role become one, and after a result the assistant has a word
    before the user speaks."""
    found: list[Message] = []
    for message in messages:
        before, role = found[-1] if found else {}, message.get("role")
        if before.get("role") == "tool" and role == "user":
            found.append({"role": "assistant", "content": PAUSE})
        elif before.get("role") == role and role in ("user", "assistant") and not before.get("tool_calls"):
            found[-1] = _joined(before, message)
            continue
        found.append(message)
    return found


def without_system(messages: Sequence[Message]) -> list[Message]:
    """The system's texts in front of the first message of the user."""
    system = [message for message in messages if message.get("role") in ("system", "developer")]
    others = [message for message in messages if message.get("role") not in ("system", "developer")]
    first = next((at for at, message in enumerate(others) if message.get("role") == "user"), None)
    if first is None:
        return [*({**message, "role": "user"} for message in system), *others]
    for message in reversed(system):
        others[first] = _joined(message, others[first])
    return others


def _joined(one: Message, other: Message) -> dict[str, Any]:
    """The second message with the first one's content before its own."""
    contents: list[Any] = [message["content"] for message in (one, other) if message.get("content")]
    if all(isinstance(content, str) for content in contents):
        return {**other, "content": "\n\n".join(contents) or None}
    parts: list[Mapping[str, Any]] = []
    for content in contents:
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {**other, "content": parts}
