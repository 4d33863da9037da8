"""What a server refuses of requests is left out from then on: learnt from its refusals, and told once.

    taken = Taken("http://127.0.0.1:8000/v1", settings={"max_tokens": 100})
    sent = taken.part({"messages": [..., {"role": "assistant", "reasoning": "hm", ...}], "max_tokens": 100})
    taken.learn(sent, Refused(..., detail="property 'reasoning' is unsupported"))     the next part is without it
    taken.learn(sent, Refused(..., detail="the prompt is too long"))                  raises what was refused

Providers return fields with a message that others, or they themselves, refuse in the history, while again others demand
them back. What came is therefore sent back until a refusal names it. A user's own setting is never left out silently.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from typing import Any

from mem1.agent.roles import Rule, alternate, rule_in, without_system
from mem1.agent.shapes import shapes_in, short_ids, with_texts, with_words
from mem1.engines.servers import Refused
from mem1.errors import printable

log = logging.getLogger(__name__)

_REFUSING = re.compile(
    r"not (?:be )?(?:permitted|allowed|supported|accepted|recogni[sz]ed|implemented)|does(?: not|n't) support|"
    r"unsupported|deprecated|unknown|unrecogni[sz]ed|unexpected|extra_forbidden|extra (?:inputs?|fields?|keys?)|"
    r"additional ?propert|unevaluated ?propert|forbidden|disallowed|cannot find field|no such field|only allowed|"
    r"only supported|(?:invalid|not a valid) (?:field|property|parameter|argument|key|option)|please (?:remove|omit)",
    re.IGNORECASE,
)
"""How servers say that they do not take something: the wordings of OpenAI, Azure, Mistral, Groq, Cerebras, Fireworks,
Gemini, DeepSeek, Together, Cloudflare, vLLM, and of JSON readers in Go, Rust and Java."""
_EXTRA = re.compile(
    r"extra (?:inputs?|fields?|keys?)|extra_forbidden|additional ?propert|unevaluated ?propert|"
    r"(?:unknown|unrecogni[sz]ed|unexpected|unsupported) (?:fields?|propert|keys?)",
    re.IGNORECASE,
)
"""The same, of a field that should not be there."""
_KNOWN = re.compile(
    r"expected one of|known properties|(?:allowed|permitted|supported|valid) (?:fields|keys)", re.IGNORECASE
)
"""After it come names that the server does take."""
_OF_THE_REPLY = re.compile(
    r"failed_generation|tool_use_failed|output_parse_failed|error parsing tool call|model produced invalid content|"
    r"failed to parse input at pos|malformed.?function.?call",
    re.IGNORECASE,
)
"""How servers say that they cannot read what the model wrote: Groq's, Ollama's, OpenAI's, llama.cpp's and Gemini's."""
_WORD = re.compile(r"[A-Za-z_]\w*")
_MARK = re.compile(r"(?:['\"`.\]]|: |(?:argument|field|key|name|parameter|property)s? )$", re.IGNORECASE)
"""What stands before a name that is a single word, unlike the same word in a sentence."""
_PATH = 60
"""Characters before a name in which its path is looked for."""

_OF_MESSAGES = frozenset(("role", "content", "tool_calls", "tool_call_id"))
_OF_CALLS = frozenset(("id", "type", "function"))
_OF_FUNCTIONS = frozenset(("name", "arguments"))
_LEFT_OUT = frozenset(("stream", "stream_options", "parallel_tool_calls"))
"""Options without which the answer is the same: it only comes otherwise."""
_ALWAYS = frozenset(("messages", "model"))
_EMPTY_SCHEMA = "should be non-empty for OBJECT"
"""How Gemini refuses a tool whose parameters are an object without properties."""
_RULES: Sequence[Rule] = (without_system, alternate, with_texts, with_words, short_ids)
"""In the order in which they are kept."""
_OTHER_NAMES = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}


class Taken:
    """What one server takes of requests. Thread-safe."""

    def __init__(self, where: str, settings: Mapping[str, Any], *, spare: Collection[str] = ()) -> None:
        """`where`: the server, for messages; `settings`: the user's own; `spare`: options that are left out once a
        refusal names them, in whatever words."""
        self._where, self._settings = where, settings
        self._spare = frozenset(spare)
        self._fields: frozenset[str] = frozenset()
        """Fields of messages and calls that are refused."""
        self._options: frozenset[str] = frozenset()
        self._bare = False
        """Whether a tool without arguments is declared without `parameters`, too."""
        self._rules: tuple[Rule, ...] = ()
        """For the order of roles and the shape of each message."""
        self._lock = threading.Lock()

    def part(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The request without what is refused; options of None are left out too."""
        taken = {name: value for name, value in request.items() if value is not None and name not in self._options}
        for name, other in _OTHER_NAMES.items():
            if name in self._options and request.get(name) is not None:
                taken.setdefault(other, request[name])
        if not taken.get("stream"):
            taken.pop("stream_options", None)  # refused without it
        if self._fields:
            taken["messages"] = [_without(message, self._fields) for message in taken["messages"]]
        if self._bare and taken.get("tools"):
            taken["tools"] = [_bare(tool) for tool in taken["tools"]]
        for rule in self._rules:
            taken["messages"] = rule(taken["messages"])
        return taken

    def learn(self, sent: Mapping[str, Any], refused: Refused) -> None:
        """Leaves out what is refused from now on. Raises `refused` where that is nothing which can be left out."""
        if (rule := rule_in(refused.detail)) is not None and rule not in self._rules:
            self._keep_to(rule, "another order of roles: messages are joined")
            return
        if refused.status not in (400, 422) and not lasting(refused.detail):
            raise refused
        if _EMPTY_SCHEMA in refused.detail and any(_bare(tool) is not tool for tool in sent.get("tools") or ()):
            self._bare = True
            log.warning("%s refuses empty parameters: tools without arguments are declared without", self._where)
            return
        for shape in shapes_in(refused.detail):
            if shape not in self._rules and shape(sent["messages"]) != sent["messages"]:
                self._keep_to(shape, "contents or ids of another form: they are rewritten")
                return
        if spared := next((name for name in self._spare & sent.keys() if name in refused.detail), None):
            self._leave_out_option(spared)
            return
        if not _REFUSING.search(refused.detail):
            raise refused
        said = _KNOWN.split(refused.detail, maxsplit=1)[0]
        fields = frozenset(_extras(sent["messages"]))
        named = _first_named(said, fields, (self._settings.keys() | _LEFT_OUT) & sent.keys())
        if named is None:
            # it names no field; those that no server has to know are the likely ones
            if not fields or not _EXTRA.search(said) or _first_named(said, frozenset(), sent.keys() - _ALWAYS):
                raise refused
            self._leave_out_fields(fields)
        elif named in fields:
            self._leave_out_fields(frozenset((named,)))
        elif named in _LEFT_OUT or _OTHER_NAMES.get(named, named) not in {named, *self._options}:
            self._leave_out_option(named)
        else:
            raise Refused(
                f"the server refuses the setting {named}; give it another value, or None to leave it out: {refused}",
                status=refused.status,
                detail=refused.detail,
            ) from refused

    def _keep_to(self, rule: Rule, what: str) -> None:
        with self._lock:
            # a system message that joins the user's may make two of these follow each other
            self._rules = tuple(sorted({*self._rules, rule}, key=_RULES.index))
        log.warning("%s wants %s for it from now on", self._where, what)

    def _leave_out_fields(self, fields: frozenset[str]) -> None:
        with self._lock:
            new, self._fields = fields - self._fields, self._fields | fields
        if new:
            names = printable(", ".join(sorted(new)))
            log.warning("%s refuses %s in messages: left out from now on", self._where, names)

    def _leave_out_option(self, name: str) -> None:
        with self._lock:
            new, self._options = name not in self._options, self._options | {name}
        if new:
            instead = f"; {_OTHER_NAMES[name]} is sent instead" if name in _OTHER_NAMES else ": left out from now on"
            log.warning("%s refuses the option %s%s", self._where, name, instead)


def lasting(detail: str) -> bool:
    """Whether another try is refused alike though its status is that of a fault: llama.cpp refuses by 500 what its
    template refuses, and gateways in Python an option that they do not know."""
    if rule_in(detail) is not None or is_of_the_reply(detail):
        return True
    options = _LEFT_OUT - {"stream"}
    return bool(_REFUSING.search(detail)) and _first_named(detail, frozenset(), options) is not None


def is_of_the_reply(detail: str) -> bool:
    """Whether it was the model's reply, and not the request, that a server refused."""
    return bool(_OF_THE_REPLY.search(detail))


def _extras(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Names of fields beside those that every server knows."""
    for message in messages:
        yield from message.keys() - _OF_MESSAGES
        for part in _parts(message):
            yield from part.keys() - {"type", "text", part.get("type")}
        for call in message.get("tool_calls") or ():
            yield from call.keys() - _OF_CALLS
            yield from (call.get("function") or {}).keys() - _OF_FUNCTIONS


def _without(message: Mapping[str, Any], names: Set[str]) -> Mapping[str, Any]:
    """The message without fields of these names, in its calls and in the parts of its content too."""
    kept = {key: value for key, value in message.items() if key in _OF_MESSAGES or key not in names}
    if parts := _parts(message):
        kept["content"] = [
            {key: value for key, value in part.items() if key in ("type", "text", part.get("type")) or key not in names}
            for part in parts
        ]
    if not kept.get("tool_calls"):
        return kept
    kept["tool_calls"] = calls = []
    for call in message["tool_calls"]:
        call = {key: value for key, value in call.items() if key in _OF_CALLS or key not in names}
        if call.get("function"):
            inner = call["function"].items()
            call["function"] = {key: value for key, value in inner if key in _OF_FUNCTIONS or key not in names}
        calls.append(call)
    return kept


def _bare(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tool without parameters where it takes no arguments; the same object where it takes some."""
    function = tool.get("function") or {}
    if "parameters" not in function or function["parameters"].get("properties"):
        return tool
    return {**tool, "function": {key: value for key, value in function.items() if key != "parameters"}}


def _parts(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    content = message.get("content")
    return () if content is None or isinstance(content, str) else content


def _first_named(text: str, fields: Set[str], options: Set[str]) -> str | None:
    """The first of these names that the text mentions as one; None: there is none."""
    for found in _WORD.finditer(text):
        name, at = found[0], found.start()
        if name in fields or name in options:
            before = text[max(0, at - _PATH) : at]
            # in the path of a message stands no option, but {"user": ...} may be one
            if (name in fields or "messages" not in before) and ("_" in name or _MARK.search(before)):
                return name
    return None
