"""JSON schemas of tools as every provider takes them: what any of them refuses is rewritten before a tool is declared.

    accepted({"type": "object"}).schema         {"type": "object", "properties": {}}
    accepted({"$ref": "#/$defs/A", "$defs": {"A": ...}}).schema         what stands at #/$defs/A
    accepted({"type": "object", "properties": {"$top": ...}}).given({"top": 3})     {"$top": 3}

Whom each rule is for:

    OpenAI, Azure       an object with `properties` at the root, without anyOf, oneOf, allOf, enum; arrays have `items`
    Anthropic           the same; no $ref; names of arguments of up to 64 of A-Z a-z 0-9 _ . -
    Gemini              one `type` everywhere; enums of strings; no $schema, const, nullable, exclusiveMinimum, pattern
    Mistral, vLLM, llama.cpp        no booleans for schemas, no tuples of items; patterns of a narrow kind

A keyword that not all of them take is told in words, in the description of its part. References are replaced by what
they refer to, except where that refers to itself. The model may so be told less than the tool demands, never more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote

from mem1.agent.schema_parts import (
    NODES,
    OF_TYPE,
    Schema,
    as_list,
    as_mapping,
    either_of,
    free_name,
    items_of,
    kinds_of,
    modernised,
    names_in,
    one_kind,
    others_of,
    with_all_of,
)

_DEPTH, _BYTES = 24, 40_000
"""Most levels of a rewritten schema, and most bytes of the whole as JSON."""
_WORDS = 300
"""Most characters of what is told in words of one keyword."""
_TOLD = ("format", "pattern", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "uniqueItems", "examples")
"""Keywords that are told in words."""
_NUMBERS = ("minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems")
_ARGUMENT = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_UNUSABLE = re.compile(r"[^A-Za-z0-9_.-]+")
_EMPTY: Schema = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A schema that providers take."""

    schema: Schema
    names: Mapping[str, str]
    """Names of arguments that had to change -> those that the tool knows."""
    note: str
    """What was left out, for the tool's description; "": nothing."""

    def given(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of a call under the names that the tool knows."""
        return {self.names.get(name, name): value for name, value in arguments.items()}


def accepted(schema: Any) -> Accepted:
    """A tool's schema, rewritten; one that is too large is left out, which the note says. Never raises."""
    for inline in (True, False):
        try:
            return _Rewriting(schema, inline=inline).whole()
        except _TooLarge:
            continue
    why = f"[the schema of its arguments is left out: it has more than {_BYTES:,} bytes or {NODES:,} parts]"
    return Accepted(schema=dict(_EMPTY), names={}, note=why)


class _TooLarge(Exception):
    """A schema has more parts or bytes than a model could read."""


class _Rewriting:
    """One schema. `inline`: references are replaced, which may make it larger; else only the root's."""

    def __init__(self, root: Any, *, inline: bool) -> None:
        self._root, self._inline = root, inline
        self._nodes, self._looked = 0, 0
        self._names: dict[str, str] = {}
        """Reference -> its name in $defs."""
        self._leads: dict[str, list[str]] = {}
        """Reference -> the references in what stands there."""
        self._again: dict[str, bool] = {}
        """Reference -> whether it leads to itself."""

    def whole(self) -> Accepted:
        root, notes = self._object(self._followed(self._root))
        renamed = _renamed(root["properties"])
        root["properties"] = {renamed.get(name, name): part for name, part in root["properties"].items()}
        if "required" in root:
            root["required"] = [renamed.get(name, name) for name in root["required"]]
        defined: Schema = {}
        while missing := [ref for ref, name in self._names.items() if name not in defined]:
            for ref in missing:
                defined[self._names[ref]] = self._part(self._target(ref), 1)
        if defined:
            root["$defs"] = defined
        if len(json.dumps(root, ensure_ascii=False)) > _BYTES:
            raise _TooLarge
        return Accepted(schema=root, names={new: old for old, new in renamed.items()}, note=" ".join(notes))

    def _object(self, root: Any) -> tuple[Schema, list[str]]:
        """The root as an object of all arguments that any of its alternatives takes, and what to say of it."""
        root = root if isinstance(root, dict) else {}
        root, sets = with_all_of(root, self._followed), list[list[str]]()
        kinds = [kind for kind in as_list(root.get("type")) if isinstance(kind, str)]
        if kinds and "object" not in kinds:
            return dict(_EMPTY), [f"[its schema is of type {kinds[0]:.20}, not of an object, and is left out]"]
        if len(as_mapping(root.get("properties"))) > NODES:
            raise _TooLarge
        properties = dict(as_mapping(root.get("properties")))
        required = names_in(root.get("required"))
        for keyword in ("anyOf", "oneOf"):
            given = as_list(root.get(keyword))[:NODES]
            branches = [with_all_of(self._followed(branch), self._followed) for branch in given]
            found: dict[str, list[Any]] = {}
            for branch in branches:
                for name, part in as_mapping(branch.get("properties")).items():
                    if name not in properties:
                        found.setdefault(name, []).append(part)
                sets.append(names_in(branch.get("required")))
            properties |= {name: either_of(parts) for name, parts in found.items()}
            always = [set(names_in(branch.get("required"))) for branch in branches]
            if always:
                required += [name for name in properties if all(name in names for names in always)]
        kept: Schema = {
            key: root[key] for key in ("description", "additionalProperties", "patternProperties") if key in root
        }
        if sets:  # closed branches would shut out each other's arguments
            kept.pop("additionalProperties", None)
        whole = self._part({"type": "object", **kept, "properties": properties, "required": required}, 0)
        choices = [", ".join(names) for names in sets if names]
        told = f"[give one of these sets of arguments: {' | '.join(dict.fromkeys(choices))[:_WORDS]}]"
        return whole, [told] if len(choices) > 1 else []

    def _part(self, schema: Any, depth: int) -> Schema:
        """Any schema but the root."""
        self._nodes += 1
        if self._nodes > NODES:
            raise _TooLarge
        if depth > _DEPTH:
            return _anything("[cut: what is deeper is left out]")
        if not isinstance(schema, dict) or schema.get("type") == "any":
            return _anything(_text(schema.get("description")) if isinstance(schema, dict) else "")
        schema = modernised(with_all_of(schema, self._resolved))
        if isinstance(ref := schema.pop("$ref", None), str):
            return self._referred(ref, schema, depth)
        listed = [*as_list(schema.get("anyOf")), *as_list(schema.get("oneOf"))]
        branches = [part for part in listed if part not in (False, {"not": {}})]  # what no value is
        if branches:
            return self._alternatives(schema, branches, depth)
        kinds = kinds_of(schema)
        if len(kinds) != 1:
            if not kinds:
                return _anything(_described(schema))
            return self._alternatives(schema, [one_kind(schema, kind) for kind in kinds], depth)
        return self._single(schema, kinds[0], depth)

    def _alternatives(self, schema: Schema, branches: list[Any], depth: int) -> Schema:
        """One of several schemas. What all of them share is put into each, as not all providers look beside `anyOf`."""
        own = ["type", "enum", *(key for keys in OF_TYPE.values() for key in keys)]
        shared = {key: schema[key] for key in dict.fromkeys(own) if key in schema}
        parts = list[Schema]()
        for branch in branches:
            if isinstance(branch, dict) and shared and "$ref" not in branch:
                branch = {**branch, "allOf": [*as_list(branch.get("allOf")), shared]}
            part = self._part(branch, depth + 1)
            parts += [each for each in part.get("anyOf", [part]) if each not in parts]
        said = _described({key: part for key, part in schema.items() if key not in ("type", "enum")})
        found: Schema = parts[0] if len(parts) == 1 else {"anyOf": parts}
        if said:
            found["description"] = said
        if _plain(schema.get("default")):
            found["default"] = schema["default"]
        return found

    def _single(self, schema: Schema, kind: str, depth: int) -> Schema:
        """A schema of one type."""
        found: Schema = {"type": kind}
        if said := _described(schema):
            found["description"] = said
        values = [value for value in as_list(schema.get("enum")) if isinstance(value, str)]
        if values and kind == "string":
            found["enum"] = list(dict.fromkeys(values))
        if _plain(schema.get("default")):
            found["default"] = schema["default"]
        for key in OF_TYPE[kind]:
            if key in _NUMBERS and type(schema.get(key)) in (int, float) and _plain(schema[key]):
                found[key] = schema[key]
        if kind == "array":
            found["items"] = self._part(items_of(schema), depth + 1)
        if kind == "object":
            given = {name: part for name, part in as_mapping(schema.get("properties")).items() if part is not False}
            if len(given) > NODES:
                raise _TooLarge
            found["properties"] = {str(name): self._part(part, depth + 1) for name, part in given.items()}
            required = [name for name in names_in(schema.get("required")) if name in given]
            required += [
                name for name, part in given.items() if isinstance(part, dict) and part.get("required") is True
            ]
            if required:
                found["required"] = list(dict.fromkeys(required))
            if (more := others_of(schema)) is not None or (depth and not given):
                more = True if more is None else more
                found["additionalProperties"] = more if isinstance(more, bool) else self._part(more, depth + 1)
        return found

    def _referred(self, ref: str, beside: Schema, depth: int) -> Schema:
        """What stands at a reference, with what stands beside it; where it refers to itself, a reference in $defs."""
        if not isinstance(self._target(ref), dict):
            return _anything(f"{_text(beside.get('description'))} [as {ref:.100} says, which is not included]".strip())
        if self._circle(ref):
            return _anything(_described(beside))
        if not self._inline or self._recursive(ref):
            name = self._names.setdefault(ref, self._named(ref))
            return {"$ref": f"#/$defs/{name}"}
        return self._part({**self._target(ref), **beside}, depth + 1)

    def _named(self, ref: str) -> str:
        name = _UNUSABLE.sub("_", ref.rpartition("/")[2]).strip("#.")[:40] or "Root"
        return free_name(name, self._names.values())

    def _recursive(self, ref: str) -> bool:
        """Whether what stands at a reference leads to itself."""
        if ref not in self._again:
            seen, left = set[str](), [ref]
            while left:
                new = [found for found in self._refs(left.pop()) if found not in seen]
                seen.update(new)
                left += new
            self._again[ref] = ref in seen
        return self._again[ref]

    def _refs(self, ref: str) -> list[str]:
        """All references in what stands at a reference."""
        if ref not in self._leads:
            target = self._target(ref)
            found, left = list[str](), [target] if isinstance(target, (dict, list)) else []
            while left:
                part = left.pop()
                self._looked += 1
                if self._looked > 100 * NODES:
                    raise _TooLarge
                if isinstance(part, dict) and isinstance(part.get("$ref"), str):
                    found.append(part["$ref"])
                inner = part.values() if isinstance(part, dict) else part
                left += [each for each in inner if isinstance(each, (dict, list))]
            self._leads[ref] = list(dict.fromkeys(found))
        return self._leads[ref]

    def _circle(self, ref: str) -> bool:
        """Whether it is a reference to a reference, and so on, back to itself."""
        for _ in range(_DEPTH):
            target = self._target(ref)
            if not isinstance(target, dict) or not isinstance(target.get("$ref"), str):
                return False
            ref = target["$ref"]
        return True

    def _resolved(self, schema: Any) -> Any:
        """A part of allOf: what it refers to, unless that is recursive."""
        ref = schema.get("$ref") if isinstance(schema, dict) else None
        return self._followed(schema) if isinstance(ref, str) and not self._recursive(ref) else schema

    def _followed(self, schema: Any) -> Any:
        """The schema, or what its references lead to; {} where that is nothing or a circle."""
        for _ in range(_DEPTH):
            ref = schema.get("$ref") if isinstance(schema, dict) else None
            if not isinstance(ref, str):
                return schema if isinstance(schema, dict) else {}
            target = self._target(ref)
            if not isinstance(target, dict) or self._circle(ref):
                return {}
            schema = {**target, **{key: part for key, part in schema.items() if key not in ("$ref", "$defs")}}
        return {}

    def _target(self, ref: str) -> Any:
        """What stands at a reference within the schema, as "#/$defs/A"; None: nothing."""
        if not ref.startswith("#"):
            return None
        place: Any = self._root
        for step in unquote(ref[1:]).split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(place, dict):
                place = cast("Schema", place).get(step)
            elif isinstance(place, list) and step.isdecimal() and len(step) < 9 and int(step) < len(place):
                place = place[int(step)]
            else:
                return None
        return place


def _described(schema: Schema) -> str:
    """The description, with the keywords that are told in words."""
    told = [f"{key}: {_words(schema[key])}" for key in _TOLD if schema.get(key) not in (None, False, [], "")]
    values = schema.get("enum")
    if isinstance(values, list) and values and not any(isinstance(value, str) for value in values) and values != [None]:
        told.insert(0, f"one of: {_words(values)}")
    text = _text(schema.get("description"))
    return f"{text} ({'; '.join(told)})".strip() if told else text


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_words(each) for each in value[:_WORDS] if not isinstance(each, list))[:_WORDS]
    return json.dumps(value, ensure_ascii=False)[:_WORDS] if _plain(value) else "..."


def _plain(value: Any) -> bool:
    """Whether it is a small value of JSON, other than null."""
    try:
        return value is not None and len(json.dumps(value, allow_nan=False)) <= _BYTES
    except (ValueError, TypeError, RecursionError):
        return False


def _anything(description: str) -> Schema:
    """Any value; a type is given, since not all providers take a schema without."""
    free: Schema = {"type": "object", "properties": {}, "additionalProperties": True}
    listed: Schema = {"type": "array", "items": {"type": "string"}}
    found: Schema = {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}, free, listed]}
    return {**found, "description": description} if description else found


def _renamed(properties: Mapping[str, Any]) -> dict[str, str]:
    """Arguments whose names are refused -> names for them.   "$top" -> "top" """
    renamed: dict[str, str] = {}
    for name in properties:
        if not _ARGUMENT.fullmatch(name):
            usable = _UNUSABLE.sub("_", name).strip("_")[:60] or "argument"
            renamed[name] = free_name(usable, {*properties, *renamed.values()})
    return renamed


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
