"""How models write calls of tools into a text, and how each style is read.

    style = next(style for style in STYLES if style.opening == "[TOOL_CALLS]")
    [*style.read('[{"name": "search", "arguments": {"query": "Oslo"}}]')]      [TextCall("search", '{"query": "Oslo"}')]

`mem1.messages.text_calls` finds where in a text they stand.
"""

from __future__ import annotations

import ast
import json
import re
import string
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_LONGEST = 20_000
"""Characters of a call in Python, whose parser is slow."""
FENCE = "```"
_NAME = frozenset(string.ascii_letters + string.digits + "_-")


class TextCall(NamedTuple):
    """A call as it stood in a text."""

    name: str
    arguments: str
    """JSON: an object, or the text of the only parameter."""
    typed: bool = True
    """Whether its values have the types that the model gave them; else all of them are texts."""


class Style(NamedTuple):
    opening: str
    closing: tuple[str, ...]
    """The first of these that comes ends it; else the end of the text."""
    read: Callable[[str], Iterator[TextCall]]
    """The calls behind the mark. Raises ValueError, LookupError or TypeError for none."""


def plain_name(name: str) -> str:
    """The name of a tool in letters that providers take back, without what models write before and after it:
    "functions.search:0", "search<|channel|>", "default_api.search"."""
    name = name.strip().removeprefix("functions.").removeprefix("default_api.").removeprefix("default_api:")
    name = name.partition("<|")[0]
    name = name.rpartition(":")[0] if re.fullmatch(r"[\w.-]+:\d+", name) else name
    return "".join(c if c in _NAME else "_" for c in name)[:64] or "unknown"


def of_json(body: str) -> Iterator[TextCall]:
    """JSON values with a name and arguments, alone, in a list, or one after the other; brackets too many at the end."""
    at = 0
    body = body.strip()
    if not body:
        raise ValueError("no JSON")
    while at < len(body):
        value, at = value_at(body, at)
        for each in value if isinstance(value, list) else [value]:
            yield from of_value(each)
        while at < len(body) and body[at] in " \t\r\n;,":
            at += 1
        if not body[at:].strip("}] \t\r\n"):
            return


def value_at(body: str, at: int) -> tuple[Any, int]:
    """The value that begins there, in JSON or as Python writes it, and its end. Raises ValueError for none."""
    try:
        return _JSON.raw_decode(body, at)
    except ValueError:
        if at or len(body) > _LONGEST or body[:1] not in ("{", "["):
            raise
        try:
            return ast.literal_eval(_parsed(body)), len(body)
        except (SyntaxError, MemoryError) as error:
            raise ValueError("neither JSON nor Python") from error


def of_value(value: Any) -> Iterator[TextCall]:
    if not isinstance(value, Mapping):
        raise ValueError("no object")
    for key in ("tool_calls", "tool_uses"):
        if isinstance(value.get(key), list):
            for each in value[key]:
                yield from of_value(each)
            return
    called = value.get("function")
    called = called if isinstance(called, Mapping) else value
    name = next((called[key] for key in NAMES if key in called), None)
    arguments = next((called[key] for key in _ARGUMENTS if key in called), None)
    if not isinstance(name, str) or not isinstance(arguments, str | dict | None):
        raise ValueError("no call")
    if arguments is None and called.keys() - {*NAMES, "type", "id"}:
        raise ValueError("no arguments, but other values")
    yield TextCall(name, arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False))


NAMES = ("name", "tool", "function", "tool_name", "recipient_name", "action")
_ARGUMENTS = ("arguments", "parameters", "args", "input", "action_input", "kwargs")
_FUNCTION = re.compile(r"<function=([^<>\s]+)>")
_PARAMETER = re.compile(r"<parameter=([^<>\s]+)>")
_INVOKE = re.compile(r"<(?:antml:)?invoke name=[\"']([^\"'<>]+)[\"']>")
_BARE_KEY = re.compile(r"([{,]\s*)(\w+)\s*:")
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
    return _of_xml(body.replace("\uff5cDSML\uff5c", "").replace("|DSML|", ""))


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
    bare = unfenced(body.strip())
    if bare.startswith(("{", "[")):
        yield from of_json(bare)
    elif "<function=" in bare or "invoke name=" in bare:
        yield from _of_xml(bare)
    elif bare.endswith(")"):
        yield from of_python(bare)
    else:
        name, *pairs = bare.split("<arg_key>")
        values = {}
        for pair in pairs:
            key, _, value = pair.partition("</arg_key>")
            values[key.strip()], closed, _ = value.partition("<arg_value>")[2].rpartition("</arg_value>")
            if not closed:
                raise ValueError("a value without its end")
        if not re.fullmatch(r"[\w.:-]+", name.strip()):
            raise ValueError("no name")
        yield TextCall(name, json.dumps(values, ensure_ascii=False), typed=False)


def _of_brackets(body: str) -> Iterator[TextCall]:
    """[search(query="Oslo")], or JSON."""
    bare = body.strip()
    return of_python(bare) if bare.endswith((")", ")]")) else of_json(bare)


def _of_keys(body: str) -> Iterator[TextCall]:
    """[{"search": {"query": "Oslo"}}]"""
    for each in json.loads(body, strict=False):
        ((name, arguments),) = each.items()
        yield TextCall(name, json.dumps(arguments, ensure_ascii=False))


def _of_gemma(body: str) -> Iterator[TextCall]:
    """call:search{query:<escape>Oslo<escape>,most:3}, with another mark around texts in later models."""
    pieces = body.strip().replace('<|"|>', "<escape>").split("<escape>")
    written = [json.dumps(each) if at % 2 else _BARE_KEY.sub(r'\1"\2":', each) for at, each in enumerate(pieces)]
    name, _, arguments = "".join(written).removeprefix("call:").partition("{")
    yield TextCall(name, json.dumps(_JSON.raw_decode("{" + arguments)[0], ensure_ascii=False))


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
            yield from of_json(piece)


def _split_by(begin: str, separator: str) -> Callable[[str], Iterator[TextCall]]:
    """Calls that each begin with `begin`, with a separator between name and arguments; "": one that has begun."""

    def read(body: str) -> Iterator[TextCall]:
        pieces = body.split(begin) if begin else [body]
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


def of_python(body: str) -> Iterator[TextCall]:
    """[search(query="Oslo")], as Llama 4 writes it, and Gemma without the brackets."""
    if len(body) > _LONGEST or not body.endswith((")", ")]")):
        raise ValueError("no call")
    tree = _parsed(body).body
    for call in tree.elts if isinstance(tree, ast.List) else [tree]:
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "print" and len(call.args) == 1:
            call = call.args[0]
        if not isinstance(call, ast.Call) or call.args or not isinstance(call.func, ast.Name | ast.Attribute):
            raise ValueError("no call")
        values = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        yield TextCall(ast.unparse(call.func), json.dumps(values, ensure_ascii=False))


def _parsed(body: str) -> ast.Expression:
    """What a model wrote as Python, of which nobody wants to be warned. Raises SyntaxError for anything else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(body, mode="eval")


def unfenced(text: str) -> str:
    """A text without the fence around it."""
    fenced = text.startswith(FENCE) and text.endswith(FENCE) and "\n" in text
    return text[text.index("\n") : -len(FENCE)].strip() if fenced else text


def of_react(body: str) -> Iterator[TextCall]:
    """Action: search, then Action Input: {...} or plain text; or Action: and JSON. What the model makes up behind
    it, as the result, is not read."""
    body = body.replace("**Action:**", "Action:").replace("**Action Input:**", "Action Input:")
    begin = next((mark for mark in ("Action:", "Calling tools:") if body.startswith(mark) or f"\n{mark}" in body), None)
    if begin is None:
        return
    action = body[body.index(begin) + len(begin) :]
    action, _, _ = action.partition("\nObservation:")
    name, mark, given = action.partition("Action Input:")
    bare = unfenced(given.strip() if mark else name.strip())
    if not mark:
        yield from of_json(bare)
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
UNREADABLE = (ValueError, LookupError, TypeError, RecursionError, SyntaxError, MemoryError)
_DEEPSEEK = "<\uff5ctool▁{}\uff5c>"
STYLES: Sequence[Style] = (
    Style("<tool_call>", ("</tool_call>",), _of_tags),
    Style("<tool_calls>", ("</tool_calls>",), _of_tags),
    Style("<function_call>", ("</function_call>",), _of_tags),
    Style("<function_calls>", ("</function_calls>",), _of_tags),
    Style("<seed:tool_call>", ("</seed:tool_call>",), _of_tags),
    Style("<longcat_tool_call>", ("</longcat_tool_call>",), _of_tags),
    Style("<minimax:tool_call>", ("</minimax:tool_call>",), _of_xml),
    Style("<function=", ("</function>",), lambda body: _of_xml(f"<function={body}")),
    Style("<invoke name=", ("</invoke>",), lambda body: _of_xml(f"<invoke name={body}")),
    Style("<|python_tag|>", ("<|eom_id|>", "<|eot_id|>"), of_json),
    Style("[TOOL_CALLS]", ("</s>",), _of_mistral),
    Style(
        _DEEPSEEK.format("calls▁begin"),
        (_DEEPSEEK.format("calls▁end"),),
        _split_by(_DEEPSEEK.format("call▁begin"), _DEEPSEEK.format("sep")),
    ),
    Style(_DEEPSEEK.format("call▁begin"), (_DEEPSEEK.format("call▁end"),), _split_by("", _DEEPSEEK.format("sep"))),
    Style(
        "<|tool_calls_section_begin|>",
        ("<|tool_calls_section_end|>",),
        _split_by("<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
    ),
    Style("<|tool_call_begin|>", ("<|tool_call_end|>",), _split_by("", "<|tool_call_argument_begin|>")),
    Style("<|tool_call_start|>", ("<|tool_call_end|>",), _of_brackets),
    Style("<|python_start|>", ("<|python_end|>",), _of_brackets),
    Style("<|tools_prefix|>", ("<|tools_suffix|>",), _of_keys),
    Style("<start_function_call>", ("<end_function_call>",), _of_gemma),
    Style("<|tool_call>", ("<tool_call|>",), _of_gemma),
    *(
        Style(
            f"<{bar}DSML{bar}{name}", (f"</{bar}DSML{bar}{end}>",), lambda body, name=name: _of_dsml(f"<{name}{body}")
        )
        for bar in ("\uff5c", "|")
        for name, end in (
            ("function_calls>", "function_calls"),
            ("tool_calls>", "tool_calls"),
            ("invoke name=", "invoke"),
        )
    ),
    Style("<|action_start|><|plugin|>", ("<|action_end|>",), of_json),
    Style("<|START_ACTION|>", ("<|END_ACTION|>",), of_json),
    Style("<TOOLCALL>", ("</TOOLCALL>",), of_json),
    Style("<|tool_call|>", ("<|/tool_call|>",), of_json),
    Style("<|start|>assistant<|channel|>commentary to=", ("<|call|>",), _of_channel),
    Style("<|start|>assistant to=", ("<|call|>",), _of_channel),
    Style("<|channel|>commentary to=", ("<|call|>",), _of_channel),
)
"""Hermes, Qwen and GLM; Qwen3-Coder and Llama 3.1 without a frame; Seed's, LongCat's, MiniMax's, and prompts in
Anthropic's manner; Llama 3; Mistral; DeepSeek; Kimi, also without its frame; LFM2 and Llama 4; Apertus; Gemma's two;
DeepSeek V3.2 and V4; InternLM; Cohere; Nemotron; Granite and Phi; gpt-oss. An open list, the longer of two marks
first."""
