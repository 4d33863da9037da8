"""A model that is a function, for tests of agents: it says what it was given, one message after the other."""

from __future__ import annotations

from typing import Any

from mem1.messages import check


class Script:
    """The given messages, in order; an exception is raised. Keeps what it was shown."""

    def __init__(self, *messages: Any) -> None:
        self.messages = list(messages)
        self.shown: list[list[Any]] = []
        self.tools: list[Any] = []

    def __call__(self, messages: list[Any], tools: list[Any]) -> Any:
        check(messages)
        self.shown.append(messages)
        self.tools = tools
        message = self.messages.pop(0)
        if isinstance(message, BaseException):
            raise message
        return message


def calls(*made: tuple[str, str]) -> dict[str, Any]:
    """A message with these calls, (name, arguments), their ids left out, as some servers do."""
    return {"content": None, "tool_calls": [{"function": {"name": n, "arguments": a}} for n, a in made]}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def results(agent: Any) -> list[str]:
    return [message["content"] for message in agent.messages if message["role"] == "tool"]
