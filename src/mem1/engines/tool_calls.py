r"""Formats in which models write tool calls, read from a completion: an open list.

    <think>hm</think> Oslo first. <tool_call>{"name": "search", "arguments": {"query": "Oslo"}}</tool_call>
    ->  Said(thought="hm", text="Oslo first.", calls=(Asked("search", {"query": "Oslo"}),), ...)

    tools     hermes: JSON in <tool_call>, thoughts in <think>, as Qwen2.5, Qwen3 and other models write them
    tags      tags of mem1, whose actions are the calls: TagCalls(PAPER)

A call that cannot be run is read as well, with the reason: the model gets it as the call's result and may try again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from mem1.errors import UserError
from mem1.net.exchange import one_line
from mem1.protocol import ANSWER, MALFORMED, Tags, parse, strip_markup
from mem1.records import Span
from mem1.registry import register


class Asked(NamedTuple):
    """One call, as the model wrote it."""

    name: str
    arguments: Mapping[str, Any]
    error: str = ""
    """Why it cannot be run; empty: it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A completion in parts."""

    text: str = ""
    """Text that is neither thought nor call."""
    thought: str = ""
    calls: tuple[Asked, ...] = ()
    spans: Mapping[str, Span] = field(default_factory=dict)
    """Ranges of characters by role, as in `mem1.protocol.Parsed`: "thought", "state", "state_text" and "action". Text
    before a call is the state; text without calls is the action, an answer."""


class CallFormat(Protocol):
    """The way in which a family of models writes its calls."""

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Texts after which a completion ends, besides the template's end of a message."""
        ...

    def read(self, text: str, opened: str = "") -> Said:
        """The parts of a completion, without the end of the message. Never raises.

        opened      what the context ended with after the head of the message, such as "<think>\\n"
        """
        ...

    def around(self, tool: str, parameter: str) -> tuple[str, str]:
        """What a call with one text as its argument has before and after that text."""
        ...

    @property
    def own(self) -> tuple[str, ...]:
        """Special tokens that any message but a result may hold."""
        ...

    def harmless(self, text: str) -> str:
        """The result of a tool without anything that reads like this format."""
        ...


_THINK, _THOUGHT = "<think>", "</think>"
_CALL, _CALLED = "<tool_call>", "</tool_call>"
_MARKS = re.compile(r"<(/?(?:think|tool_call|tool_response|tools)\b[^<>]*)>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Hermes:
    """JSON objects with name and arguments in <tool_call> tags; a thought comes first, in <think> tags."""

    stop_strings: tuple[str, ...] = ()
    own: tuple[str, ...] = ()

    def read(self, text: str, opened: str = "") -> Said:
        head = _after_thought(text, opened)
        calls, spans = list[Asked](), list[Span]()
        for inside, span, closed in _blocks(text, head):
            calls.append(_asked(inside) if closed else Asked("", {}, f"{_CALL} is not closed"))
            spans.append(span)
        first, last = (spans[0][0], spans[-1][1]) if spans else (len(text), len(text))
        roles: dict[str, Span] = {"thought": (0, head)} if head else {}
        said = _stripped(text, head, first)
        if spans:
            if said[0] < said[1]:
                roles |= {"state": (head, first), "state_text": said}
            roles["action"] = first, last
        elif said[0] < said[1]:
            roles["action"] = said
        thought = text[:head].replace(_THINK, "", 1).replace(_THOUGHT, "", 1).strip()
        return Said(text=text[slice(*said)], thought=thought, calls=tuple(calls), spans=roles)

    def around(self, tool: str, parameter: str) -> tuple[str, str]:
        return f'{_CALL}\n{{"name": "{tool}", "arguments": {{"{parameter}": "', f'"}}}}\n{_CALLED}'

    def harmless(self, text: str) -> str:
        return _MARKS.sub(r"(\1)", text)


def _after_thought(text: str, opened: str) -> int:
    """Where the message begins after its thought, and after the blanks behind it; 0: it has none."""
    if not (opened.rstrip().endswith(_THINK) or text.lstrip().startswith(_THINK)):
        return 0
    end = text.find(_THOUGHT)
    if end < 0:
        return len(text)
    end += len(_THOUGHT)
    return end + len(text[end:]) - len(text[end:].lstrip())


def _blocks(text: str, start: int) -> Iterator[tuple[str, Span, bool]]:
    """(content, span, whether it is closed) of each call."""
    while (begin := text.find(_CALL, start)) >= 0:
        end = text.find(_CALLED, begin)
        if end < 0:
            yield text[begin + len(_CALL) :], (begin, len(text)), False
            return
        start = end + len(_CALLED)
        yield text[begin + len(_CALL) : end], (begin, start), True


def _stripped(text: str, start: int, stop: int) -> Span:
    inside = text[start:stop]
    begin = start + len(inside) - len(inside.lstrip())
    return begin, begin + len(inside.strip())


def _asked(inside: str) -> Asked:
    """The call in a block of JSON."""
    try:
        call = json.loads(inside)
    except (ValueError, RecursionError) as error:
        return Asked("", {}, f"the call is not JSON: {one_line(str(error))}")
    name = call.get("name") if isinstance(call, dict) else None
    if not isinstance(name, str) or not name:
        return Asked("", {}, 'the call is no JSON object with "name" and "arguments"')
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict):
        return Asked(name, {}, f"the arguments of {name} are no JSON object")
    return Asked(name, arguments)


HERMES = Hermes()


@dataclass(frozen=True, slots=True)
class TagCalls:
    """Actions in tags as calls of tools named after their kinds, with one argument.

    <IS> Q1 Oslo </IS> <query> mayor of Oslo </query>  ->  text "<IS> Q1 Oslo </IS>", call search(query=...)
    """

    tags: Tags
    argument: str = "query"

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return self.tags.stop_strings

    @property
    def own(self) -> tuple[str, ...]:
        return self.tags.special_tokens

    def read(self, text: str, opened: str = "") -> Said:
        parsed = parse(opened + text, self.tags)
        if parsed.kind == MALFORMED:
            return Said(calls=(Asked("", {}, parsed.error or MALFORMED),), text=text)
        spans = {role: (max(a - len(opened), 0), b - len(opened)) for role, (a, b) in parsed.spans.items()}
        if parsed.kind == ANSWER:
            return Said(text=parsed.content, thought=parsed.thought, spans=spans)
        start, stop = parsed.spans.get("state", (0, 0))
        call = Asked(parsed.kind, {self.argument: parsed.content})
        return Said(text=(opened + text)[start:stop], thought=parsed.thought, calls=(call,), spans=spans)

    def around(self, tool: str, parameter: str) -> tuple[str, str]:
        tag = self.tags.action_tags[tool]
        return f"<{tag}>", f"</{tag}>"

    def harmless(self, text: str) -> str:
        return strip_markup(text, self.tags)


def called(calls: Sequence[Asked], tools: Mapping[str, Sequence[str]]) -> Iterator[Asked]:
    """The calls, with the error of each that names no tool or leaves out what the tool requires.

    tools       required arguments by name of the tool
    """
    for call in calls:
        if call.error:
            yield call
        elif call.name not in tools:
            yield call._replace(error=f"there is no tool {call.name!r:.80}; there are: {', '.join(tools) or 'none'}")
        elif missing := [name for name in tools[call.name] if name not in call.arguments]:
            yield call._replace(error=f"the call of {call.name} lacks {', '.join(missing)}")
        else:
            yield call


def call_format(name: str) -> CallFormat:
    """The format of this name: tools (hermes), or one of your own.

    Raises UserError for an unknown name, and for a thing that reads no completions.
    """
    found = register.tool_call_format.get(name)
    if not callable(getattr(found, "read", None)):
        raise UserError(f"the calls {name!r} are a {type(found).__name__}; it must be an object with a method read")
    return found


FORMATS: Mapping[str, CallFormat] = {"tools": HERMES}
"""Name -> format."""
