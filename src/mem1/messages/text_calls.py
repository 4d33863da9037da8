"""Calls of tools that a server without a parser for them leaves in a text, in the styles of common models.

    calls_in('<tool_call>{"name": "search", "arguments": {"query": "Oslo"}}</tool_call>', {"search"})
    ->  Found(text="", calls=(TextCall("search", '{"query": "Oslo"}'),))

A mark of a style counts at the beginning of a line and outside fenced blocks; inside a line, only before calls of tools
that there are, with which the text ends. What has no mark, such as JSON alone, is a call only if it is the whole text,
or a fenced block at its end, and names a tool that there is. A mark behind which no call can be read is `broken`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

_MOST_CALLS = 128
_LONGEST = 20_000
"""Characters of a call in Python, whose parser is slow."""
_FENCE = "```"


class TextCall(NamedTuple):
    """A call as it stood in a text."""

    name: str
    arguments: str
    """JSON: an object, or the text of the only parameter."""
    typed: bool = True
    """Whether its values have the types that the model gave them; else all of them are texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A text in parts."""

    text: str
    """What is no call; all of it where there is none."""
    calls: tuple[TextCall, ...] = ()
    broken: bool = False
    """Whether it has the mark of a call that cannot be read."""


class _Style(NamedTuple):
    opening: str
    closing: tuple[str, ...]
    """The first of these that comes ends it; else the end of the text."""
    read: Callable[[str], Iterator[TextCall]]
    """The calls behind the mark. Raises ValueError, LookupError or TypeError for none."""


def calls_in(text: str, tools: Collection[str]) -> Found:
    """The calls in a text without thoughts. Never raises.

    tools       names of the tools that there are
    """
    starts = [at for style in _STYLES if (at := _mark(text, style.opening)) >= 0]
    if starts:
        found = _marked(text, min(starts))
        return Found(text=text, broken=True) if found is None else found
    if (whole := _whole(text, tools)) is not None:
        return whole
    inside = [at for style in _STYLES if (at := _mark(text, style.opening, inside=True)) >= 0]
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
    calls, end = list[TextCall](), first
    try:
        while (style := _style_at(text, end)) is not None:
            begin = end + len(style.opening)
            stops = [(stop, closing) for closing in style.closing if (stop := text.find(closing, begin)) >= 0]
            stop, closing = min(stops, default=(len(text), ""))
            found = [
                call._replace(name=_plain(call.name)) for call in islice(style.read(text[begin:stop]), _MOST_CALLS + 1)
            ]
            calls += found
            if not found or len(calls) > _MOST_CALLS:
                raise ValueError("none, or too many")
            end = stop + len(closing)
            while end < len(text) and text[end] in " \t\r\n;":
                end += 1
    except _UNREADABLE:
        return None
    rest = text[end:]
    for mark in _ENDS:
        rest = rest.replace(mark, "")
    return Found(text=f"{text[:first]}{rest}".strip(), calls=tuple(calls))


def _mark(text: str, opening: str, *, inside: bool = False) -> int:
    """Where a mark first stands outside fenced blocks at the beginning of a line, or `inside` of one; -1: nowhere."""
    at, counted, fences = text.find(opening), 0, 0
    while at >= 0:
        fences += text.count(_FENCE, counted, at)
        counted, before = at, at
        while before > 0 and text[before - 1] in " \t":
            before -= 1
        begins = before == 0 or text[before - 1] in "\n>]"
        if fences % 2 == 0 and (begins or (inside and text[before - 1] != "`")):
            return at
        at = text.find(opening, at + len(opening))
    return -1


def _style_at(text: str, at: int) -> _Style | None:
    return next((style for style in _STYLES if text.startswith(style.opening, at)), None)


def _plain(name: str) -> str:
    """The name of a tool without what models write before and after it: "functions.search:0"."""
    name = name.strip().removeprefix("functions.").removeprefix("default_api.")
    return name.rpartition(":")[0] if re.fullmatch(r"[\w.-]+:\d+", name) else name


def _whole(text: str, tools: Collection[str]) -> Found | None:
    """A text that is nothing but a call without a mark, or ends with a fenced one; None: it is no call."""
    bare, before = text.strip(), ""
    if bare.endswith(_FENCE) and bare.count(_FENCE) == 2:
        before, _, fenced = bare.removesuffix(_FENCE).partition(_FENCE)
        if "\n" in fenced and not before.rstrip().endswith("Action:"):
            bare = fenced[fenced.index("\n") :].strip()
        else:
            before = ""
    for read in (_of_json, _of_python, _of_react):
        try:
            calls = tuple([call._replace(name=_plain(call.name)) for call in read(bare.removeprefix("functools"))])
        except _UNREADABLE:
            continue
        if calls and len(calls) <= _MOST_CALLS and all(call.name in tools for call in calls):
            return Found(text=before.strip(), calls=calls)
    return None


def _of_json(body: str) -> Iterator[TextCall]:
    """JSON values with a name and arguments, alone, in a list, or one after the other; brackets too many at the end."""
    at = 0
    body = body.strip()
    if not body:
        raise ValueError("no JSON")
    while at < len(body):
        value, at = _value_at(body, at)
        for each in value if isinstance(value, list) else [value]:
            yield from _of_value(each)
        while at < len(body) and body[at] in " \t\r\n;,":
            at += 1
        if not body[at:].strip("}] \t\r\n"):
            return


def _value_at(body: str, at: int) -> tuple[Any, int]:
    """The value that begins there, in JSON or as Python writes it, and its end. Raises ValueError for none."""
    try:
        return _JSON.raw_decode(body, at)
    except ValueError:
        if at or len(body) > _LONGEST or body[:1] not in ("{", "["):
            raise
        try:
            return ast.literal_eval(body), len(body)
        except (SyntaxError, MemoryError) as error:
            raise ValueError("neither JSON nor Python") from error


def arguments_in(text: str) -> dict[str, Any] | None:
    """The arguments of a call, also with line breaks in texts, as Python writes them, or as JSON in JSON; None: no
    object."""
    try:
        value, end = _value_at(text.strip() or "{}", 0)
        if isinstance(value, str):
            return arguments_in(value) if text.strip().startswith('"') and value.lstrip()[:1] == "{" else None
    except _UNREADABLE:
        return None
    return value if isinstance(value, dict) and not text.strip()[end:].strip() else None


def _of_value(value: Any) -> Iterator[TextCall]:
    if not isinstance(value, Mapping):
        raise ValueError("no object")
    for key in ("tool_calls", "tool_uses"):
        if isinstance(value.get(key), list):
            for each in value[key]:
                yield from _of_value(each)
            return
    called = value.get("function")
    called = called if isinstance(called, Mapping) else value
    name = next((called[key] for key in _NAMES if key in called), None)
    arguments = next((called[key] for key in _ARGUMENTS if key in called), None)
    if not isinstance(name, str) or not isinstance(arguments, str | dict | None):
        raise ValueError("no call")
    if arguments is None and called.keys() - {*_NAMES, "type", "id"}:
        raise ValueError("no arguments, but other values")
    yield TextCall(name, arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False))


_NAMES = ("name", "tool", "function", "tool_name", "recipient_name", "action")
_ARGUMENTS = ("arguments", "parameters", "args", "input", "action_input", "kwargs")
_FUNCTION = re.compile(r"<function=([^<>\s]+)>")
_PARAMETER = re.compile(r"<parameter=([^<>\s]+)>")
_INVOKE = re.compile(r"<(?:antml:)?invoke name=[\"']([^\"'<>]+)[\"']>")
_NAMED = re.compile(r"<(?:antml:)?parameter name=[\"']([^\"'<>]+)[\"'][^<>]*>")


def _of_xml(body: str) -> Iterator[TextCall]:
    """<function=NAME><parameter=KEY>value</parameter></function>, or JSON in place of the parameters; and
    <invoke name="NAME"><parameter name="KEY">value</parameter></invoke>."""
    for begins, parameter in ((_FUNCTION, _PARAMETER), (_INVOKE, _NAMED)):
        pieces = begins.split(body)
        for name, inside in zip(pieces[1::2], pieces[2::2], strict=True):
            yield _with_parameters(name, inside, parameter)


def _of_dsml(body: str) -> Iterator[TextCall]:
    """The same with marks of DeepSeek's own."""
    return _of_xml(body.replace("\uff5cDSML\uff5c", ""))


def _with_parameters(name: str, inside: str, parameter: re.Pattern[str]) -> TextCall:
    pieces = parameter.split(inside)
    if len(pieces) == 1:
        bare = inside.partition("</")[0].strip()
        return TextCall(name, json.dumps(json.loads(bare, strict=False)) if bare else "{}")
    values = {}
    for key, value in zip(pieces[1::2], pieces[2::2], strict=True):
        ended = value.rfind("</parameter")
        values[key] = (value if ended < 0 else value[:ended]).strip("\r\n")
    return TextCall(name, json.dumps(values, ensure_ascii=False), typed=False)


def _of_tags(body: str) -> Iterator[TextCall]:
    """What stands in <tool_call>: JSON, <function=...>, or GLM's name with <arg_key> and <arg_value>."""
    bare = body.strip()
    if bare.startswith(("{", "[")):
        yield from _of_json(bare)
    elif "<function=" in bare or "<invoke " in bare:
        yield from _of_xml(bare)
    else:
        name, *pairs = bare.split("<arg_key>")
        values = {}
        for pair in pairs:
            key, _, value = pair.partition("</arg_key>")
            values[key.strip()] = value.partition("<arg_value>")[2].rpartition("</arg_value>")[0]
        if not re.fullmatch(r"[\w.:-]+", name.strip()):
            raise ValueError("no name")
        yield TextCall(name, json.dumps(values, ensure_ascii=False), typed=False)


def _of_mistral(body: str) -> Iterator[TextCall]:
    """[{"name": ..., "arguments": ...}], or NAME[ARGS]{...}, as newer models write it."""
    for piece in body.split("[TOOL_CALLS]"):
        name, mark, arguments = piece.partition("[ARGS]")
        if not mark and not piece.strip().startswith(("[", "{")):
            name, mark, arguments = piece.partition("{")
            arguments = mark + arguments
        if mark and not piece.strip().startswith(("[", "{")):
            value, _ = _JSON.raw_decode(arguments.strip())
            yield TextCall(name.partition("[CALL_ID]")[0], json.dumps(value, ensure_ascii=False))
        else:
            yield from _of_json(piece)


def _split_by(begin: str, separator: str) -> Callable[[str], Iterator[TextCall]]:
    """Calls that each begin with `begin`, with a separator between name and arguments."""

    def read(body: str) -> Iterator[TextCall]:
        pieces = body.split(begin)
        for piece in pieces if len(pieces) == 1 else pieces[1:]:
            name, _, arguments = piece.partition(separator)
            if name.strip() == "function":  # DeepSeek before V3.1
                name, _, arguments = arguments.partition("\n")
            value, _ = _JSON.raw_decode(arguments[arguments.index("{") :])
            yield TextCall(name, json.dumps(value, ensure_ascii=False))

    return read


def _of_channel(body: str) -> Iterator[TextCall]:
    """gpt-oss: to=functions.NAME <|constrain|>json<|message|>{...}"""
    head, _, arguments = body.partition("<|message|>")
    value, _ = _JSON.raw_decode(arguments.strip())
    yield TextCall(head.split()[0].partition("<")[0], json.dumps(value, ensure_ascii=False))


def _of_python(body: str) -> Iterator[TextCall]:
    """[search(query="Oslo")], as Llama 4 writes it, and Gemma without the brackets."""
    if len(body) > _LONGEST or not body.endswith((")", ")]")):
        raise ValueError("no call")
    tree = ast.parse(body, mode="eval").body
    for call in tree.elts if isinstance(tree, ast.List) else [tree]:
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "print" and len(call.args) == 1:
            call = call.args[0]
        if not isinstance(call, ast.Call) or call.args or not isinstance(call.func, ast.Name | ast.Attribute):
            raise ValueError("no call")
        values = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        yield TextCall(ast.unparse(call.func), json.dumps(values, ensure_ascii=False))


def _of_react(body: str) -> Iterator[TextCall]:
    """Action: search, then Action Input: {...} or plain text; or Action: and JSON. What the model makes up behind
    it, as the result, is not read."""
    begin = next((mark for mark in ("Action:", "Calling tools:") if body.startswith(mark) or f"\n{mark}" in body), None)
    if begin is None:
        return
    action = body[body.index(begin) + len(begin) :]
    action, _, _ = action.partition("\nObservation:")
    name, mark, given = action.partition("Action Input:")
    bare = given.strip() if mark else name.strip()
    if bare.startswith(_FENCE) and bare.endswith(_FENCE) and "\n" in bare:
        bare = bare[bare.index("\n") : -len(_FENCE)].strip()
    if not mark:
        yield from _of_json(bare)
        return
    try:
        value = json.loads(bare, strict=False)
    except ValueError:
        value = None
    if isinstance(value, dict):
        yield TextCall(name.strip(), json.dumps(value, ensure_ascii=False))
    else:  # of the only parameter
        yield TextCall(name.strip(), json.dumps(bare, ensure_ascii=False), typed=False)


_JSON = json.JSONDecoder(strict=False)
"""Models write line breaks into texts as they are."""
_UNREADABLE = (ValueError, LookupError, TypeError, RecursionError, SyntaxError, MemoryError)
_DEEPSEEK = "<\uff5ctool▁{}\uff5c>"
_STYLES: Sequence[_Style] = (
    _Style("<tool_call>", ("</tool_call>",), _of_tags),
    _Style("<tool_calls>", ("</tool_calls>",), _of_tags),
    _Style("<function_call>", ("</function_call>",), _of_tags),
    _Style("<function_calls>", ("</function_calls>",), _of_xml),
    _Style("<minimax:tool_call>", ("</minimax:tool_call>",), _of_xml),
    _Style("<function=", ("</function>",), lambda body: _of_xml(f"<function={body}")),
    _Style("<invoke name=", ("</invoke>",), lambda body: _of_xml(f"<invoke name={body}")),
    _Style("<|python_tag|>", ("<|eom_id|>", "<|eot_id|>"), _of_json),
    _Style("[TOOL_CALLS]", ("</s>",), _of_mistral),
    _Style(
        _DEEPSEEK.format("calls▁begin"),
        (_DEEPSEEK.format("calls▁end"),),
        _split_by(_DEEPSEEK.format("call▁begin"), _DEEPSEEK.format("sep")),
    ),
    _Style(
        "<|tool_calls_section_begin|>",
        ("<|tool_calls_section_end|>",),
        _split_by("<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
    ),
    _Style("<\uff5cDSML\uff5cfunction_calls>", ("</\uff5cDSML\uff5cfunction_calls>",), _of_dsml),
    _Style("<|action_start|><|plugin|>", ("<|action_end|>",), _of_json),
    _Style("<|START_ACTION|>", ("<|END_ACTION|>",), _of_json),
    _Style("<TOOLCALL>", ("</TOOLCALL>",), _of_json),
    _Style("<|tool_call|>", ("<|/tool_call|>",), _of_json),
    _Style("<|channel|>commentary to=", ("<|call|>",), _of_channel),
)
"""Hermes, Qwen and GLM; Qwen3-Coder and Llama 3.1 without a frame; MiniMax and prompts in Anthropic's manner; Llama 3;
Mistral; DeepSeek; Kimi; DeepSeek V3.2; InternLM; Cohere; Nemotron; Granite and Phi; gpt-oss. An open list, the longer
of two marks first."""
_ENDS = ("</tool_call>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<\uff5cend▁of▁sentence\uff5c>")
