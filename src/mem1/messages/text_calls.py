"""Calls of tools that a server without a parser for them leaves in a text, in `mem1.messages.text_styles`.

    calls_in('<tool_call>{"name": "search", "arguments": {"query": "Oslo"}}</tool_call>', {"search": {"query"}})
    ->  Found(text="", calls=(TextCall("search", '{"query": "Oslo"}'),))

A mark of a style counts at the beginning of a line and outside fenced blocks; inside a line, only before calls of tools
that there are, with which the text ends; behind the > of a quotation, never. What has no mark, such as JSON alone, is a
call only if it is the whole text, or a fenced block at its end, and names a tool that there is; so is what ends a text
between marks of no known style. A mark behind which no call can be read is `broken`, and so is any other that names
calls of tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from mem1.messages.text_styles import (
    FENCE,
    NAMES,
    STYLES,
    UNREADABLE,
    Style,
    TextCall,
    of_json,
    of_python,
    of_react,
    of_value,
    plain_name,
    unfenced,
    value_at,
)
from mem1.messages.thoughts import ENDS

_MOST_CALLS = 128
_LONGEST_MARK = 60
"""Characters of a mark of no known style."""
_WORD = re.compile(r"[\w-]+")
_UNKNOWN = re.compile(r"<[|\uff5c]?[\w:]{0,20}(?:tool|function)[s_\u2581]{0,2}(?:call|prefix|use)\w{0,20}[|\uff5c]?>")
"""A mark of a style that is not known: it counts as one that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A text in parts."""

    text: str
    """What is no call; all of it where there is none."""
    calls: tuple[TextCall, ...] = ()
    broken: bool = False
    """Whether it has the mark of a call that cannot be read."""
    ended: bool = True
    """Whether its last call shows its end; else more of it may have been to come."""
    written: tuple[str, ...] = ()
    """For each call the part of the text that has it, with the mark before it: what somebody else wrote in these
    letters may be quoted."""


def calls_in(text: str, tools: Mapping[str, Collection[str]]) -> Found:
    """The calls in a text without thoughts. Never raises.

    tools       names of the tools that there are, each with those of its parameters
    """
    starts = [at for style in STYLES if (at := _mark(text, style.opening)) >= 0]
    if starts:
        return _marked(text, min(starts)) or _framed(text, tools) or Found(text=text, broken=True)
    if (whole := _whole(text, tools) or _framed(text, tools)) is not None:
        return whole
    if any(_mark(text, mark) >= 0 for mark in set(_UNKNOWN.findall(text)[:_MOST_CALLS])):
        return Found(text=text, broken=True)
    inside = [at for style in STYLES if (at := _mark(text, style.opening, inside=True)) >= 0]
    found = _marked(text, min(inside)) if inside else None
    if (
        found is None
        or found.text != text[: min(inside)].strip()
        or not all(call.name in tools for call in found.calls)
    ):
        return Found(text=text)
    return found


def _marked(text: str, first: int) -> Found | None:
    """What a text has whose calls begin with the mark at `first`; None: they cannot be read."""
    calls, written, end, closing = list[TextCall](), list[str](), first, ""
    try:
        while (style := _style_at(text, end)) is not None:
            begin = end + len(style.opening)
            stops = [(stop, closing) for closing in style.closing if (stop := text.find(closing, begin)) >= 0]
            stop, closing = min(stops, default=(len(text), ""))
            found = _plain(islice(style.read(text[begin:stop]), _MOST_CALLS + 1))
            calls += found
            written += [text[end:stop]] * len(found)
            if not found or len(calls) > _MOST_CALLS:
                raise ValueError("none, or too many")
            end = stop + len(closing)
            while end < len(text) and text[end] in " \t\r\n;":
                end += 1
    except UNREADABLE:
        return None
    rest = text[end:]
    for mark in ("</tool_call>", *ENDS):
        rest = rest.replace(mark, "")
    said = f"{text[:first]}{rest}".strip()
    return Found(text=said, calls=tuple(calls), ended=bool(closing), written=tuple(written))


def _plain(calls: Iterable[TextCall]) -> list[TextCall]:
    return [call._replace(name=plain_name(call.name)) for call in calls]


def _mark(text: str, opening: str, *, inside: bool = False) -> int:
    """Where a mark first stands outside fenced blocks at the beginning of a line, or `inside` of one; -1: nowhere."""
    at, counted, fences = text.find(opening), 0, 0
    while at >= 0:
        fences += text.count(FENCE, counted, at)
        counted, before = at, at
        while before > 0 and text[before - 1] in " \t":
            before -= 1
        begins = before == 0 or text[before - 1] in "\n>]"
        if fences % 2 == 0 and not _is_quotation(text, before) and (begins or (inside and text[before - 1] != "`")):
            return at
        at = text.find(opening, at + len(opening))
    return -1


def _is_quotation(text: str, at: int) -> bool:
    """Whether the line up to `at` is the > of a quotation."""
    begin = at
    while begin > 0 and text[begin - 1] in " \t>":
        begin -= 1
    return begin < at and (begin == 0 or text[begin - 1] == "\n")


def _style_at(text: str, at: int) -> Style | None:
    return next((style for style in STYLES if text.startswith(style.opening, at)), None)


def _whole(text: str, tools: Collection[str]) -> Found | None:
    """A text that is nothing but a call without a mark, or ends with a fenced one; None: it is no call."""
    bare, before = text.strip(), ""
    if bare.endswith(FENCE) and bare.count(FENCE) == 2:
        before, _, fenced = bare.removesuffix(FENCE).partition(FENCE)
        if "\n" in fenced and not before.rstrip().endswith("Action:"):
            bare = fenced[fenced.index("\n") :].strip()
        else:
            before = ""
    for read in (of_json, of_python, of_react):
        try:
            calls = _plain(read(bare.removeprefix("functools")))
        except UNREADABLE:
            continue
        if calls and len(calls) <= _MOST_CALLS and all(call.name in tools for call in calls):
            ended = read is not of_react or "\nObservation:" in bare
            written = (bare,) * len(calls)
            return Found(text=before.strip(), calls=tuple(calls), ended=ended, written=written)
    return None


def _framed(text: str, tools: Mapping[str, Collection[str]]) -> Found | None:
    """A text that ends with a call of a tool that there is, between marks of no known style; None: it does not.

    <tool_request>{"name": "search", "arguments": ...}</tool_request>   or   [tool call search] {"query": ...}
    """
    at = text.find("{")
    at -= at > 0 and text[at - 1] == "["
    if at < 0:
        return _in_tags(text, tools)
    before, _, mark = text[:at].rstrip().rpartition("\n")
    mark = mark.strip()
    if before.count(FENCE) % 2 or FENCE in mark or mark.startswith(">"):
        return None
    try:
        value, end = value_at(text[at:], 0)
        written, after = text[at : at + end], text[at + end :].strip()
        if not (mark or after) or not _is_mark(mark) or not _is_mark(after):
            return None
        named = [name for name in _WORD.findall(mark) if name in tools]
        if isinstance(value, dict) and len(named) == 1 and mark[0] in "<[" and value.keys().isdisjoint(NAMES):
            calls = [TextCall(named[0], json.dumps(value, ensure_ascii=False))]
        else:
            each = value if isinstance(value, list) else [value]
            calls = _plain(chain.from_iterable(map(of_value, each)))
    except UNREADABLE:
        return None
    if not 0 < len(calls) <= _MOST_CALLS or not all(call.name in tools for call in calls):
        return None
    return Found(text=before.strip(), calls=tuple(calls), written=(f"{mark}{written}",) * len(calls))


def _is_mark(text: str) -> bool:
    return not text or (len(text) <= _LONGEST_MARK and len(text.split()) <= 4 and (text[0] in "<[" or text[-1] in ">]"))


def _in_tags(text: str, tools: Mapping[str, Collection[str]]) -> Found | None:
    """A text that ends with <search><query>Oslo</query></search>; None: it does not, as with an answer in XML whose
    elements are no parameters of the tool."""
    text = text.strip()
    name = text[text.rfind("</") + 2 : -1] if text.endswith(">") else ""
    begin = text.rfind(f"<{name}>")
    if name not in tools or begin < 0 or (begin and text[begin - 1] != "\n") or text.count(FENCE) % 2:
        return None
    inside, values = text[begin + len(name) + 2 : -len(name) - 3], dict[str, str]()
    while inside := inside.strip():
        key, _, rest = inside[1:].partition(">")
        value, closed, inside = rest.partition(f"</{key}>")
        if key not in tools[name] or not closed:
            return None
        values[key] = value.strip("\r\n")
    call = TextCall(name, json.dumps(values, ensure_ascii=False), typed=False)
    return Found(text=text[:begin].strip(), calls=(call,), written=(text[begin:],))


def arguments_in(text: str) -> dict[str, Any] | None:
    """The arguments of a call, also with line breaks in texts, as Python writes them, as JSON in JSON, or in a
    fence; null is without any. None: no object."""
    text = unfenced(text.strip())
    try:
        value, end = value_at(text or "{}", 0)
        if isinstance(value, str):
            return arguments_in(value) if text.strip().startswith('"') and value.lstrip()[:1] == "{" else None
    except UNREADABLE:
        return None
    value = {} if value is None else value
    return value if isinstance(value, dict) and not text.strip()[end:].strip() else None
