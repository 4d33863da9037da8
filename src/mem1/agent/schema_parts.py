"""What a JSON schema says, whatever its draft: one schema for allOf, the types that it allows, its arrays and objects.

kinds_of({"type": ["string", "null"]})          ["string", "null"]
kinds_of({"properties": {}})                    ["object"]
others_of({"patternProperties": {"^x": {"type": "string"}}, "additionalProperties": False})     {"type": "string"}
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Any

Schema = dict[str, Any]

NODES = 4_000
"""Most parts of a rewritten schema."""
_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_ALIASES = {"int": "integer", "float": "number", "str": "string", "bool": "boolean", "dict": "object", "list": "array"}
WHOLE = ("number", "integer")
OF_TYPE: Mapping[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength"),
    "number": ("minimum", "maximum"),
    "integer": ("minimum", "maximum"),
    "boolean": (),
    "object": ("properties", "required", "additionalProperties", "patternProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "null": (),
}
"""Keywords that are kept, of each type; they also tell the type where it is not given."""


def with_all_of(schema: Schema, read: Any) -> Schema:
    """A schema with the parts of its allOf in it; what stands beside them comes first."""
    found = {key: part for key, part in schema.items() if key != "allOf"}
    left, seen = as_list(schema.get("allOf"))[:NODES], 0
    while left and seen < NODES:
        seen += 1
        part = read(left.pop(0))
        if not isinstance(part, dict):
            continue
        left = [*as_list(part.get("allOf"))[:NODES], *left]
        for key, value in part.items():
            if key == "properties":
                found[key] = {**as_mapping(value), **as_mapping(found.get(key))}
            elif key == "required":
                found[key] = list(dict.fromkeys([*names_in(found.get(key)), *names_in(value)]))
            elif key != "allOf":
                found.setdefault(key, value)
    return found


def modernised(schema: Schema) -> Schema:
    """`const`, `nullable`, booleans as limits and tuples, in the words of the newest draft."""
    found = dict(schema)
    if "const" in found:
        found["enum"] = [found.pop("const")]
    if found.pop("nullable", False) is True:
        if kinds := kinds_of(found):
            found["type"] = [*kinds, "null"]
        elif alternatives := as_list(found.get("anyOf")):
            found["anyOf"] = [*alternatives, {"type": "null"}]
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if found.get(exclusive) is True and limit in found:  # as draft 4 has it
            found[exclusive] = found.pop(limit)
            found.setdefault("type", "number")
    return found


def kinds_of(schema: Schema) -> list[str]:
    """The types that a schema allows; []: any."""
    named = [_ALIASES.get(kind, kind) for kind in as_list(schema.get("type")) if isinstance(kind, str)]
    kinds = [kind for kind in dict.fromkeys(named) if kind in _TYPES]
    values = schema.get("enum")
    if isinstance(values, list) and values:
        found = list(dict.fromkeys(kind_of(value) for value in values[:NODES]))
        fit = [kind for kind in kinds if kind in found or (kind == "number" and "integer" in found)]
        return fit or kinds or found
    told = ("object", "array", "string", "number")
    return kinds or next(([kind] for kind in told if not schema.keys().isdisjoint(OF_TYPE[kind])), [])


def one_kind(schema: Schema, kind: str) -> Schema:
    """What a schema of several types says of one of them."""
    found: Schema = {"type": kind, **{key: schema[key] for key in OF_TYPE[kind] if key in schema}}
    if isinstance(values := schema.get("enum"), list):
        found["enum"] = [value for value in values if kind_of(value) == kind or (kind, kind_of(value)) == WHOLE]
    return found


def kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = ((str, "string"), (int, "integer"), (float, "number"), (list, "array"), (dict, "object"))
    return next((kind for of, kind in kinds if isinstance(value, of)), "null")


def items_of(schema: Schema) -> Any:
    """The schema of an array's entries; of a tuple, any of them."""
    items = schema.get("items")
    tuple_of = [*as_list(schema.get("prefixItems")), *(items if isinstance(items, list) else ())]
    if isinstance(items, dict):
        tuple_of.append(items)
    return either_of(tuple_of[:NODES]) if tuple_of else {}


def others_of(schema: Schema) -> Any:
    """What an object may have beside its properties: a schema, a boolean, or None, where it is not said."""
    others = schema.get("additionalProperties")
    named = [part for part in as_mapping(schema.get("patternProperties")).values() if part is not False]
    if others in (None, True) or not named:
        return others
    return either_of([*named, *([others] if isinstance(others, dict) else [])][:NODES])


def either_of(parts: list[Any]) -> Any:
    """One of several schemas, as one."""
    distinct = list[Any]()
    for part in parts:
        if not any(part is known for known in distinct):
            distinct.append(part)
    return distinct[0] if len(distinct) == 1 else {"anyOf": distinct}


def free_name(name: str, taken: Collection[str]) -> str:
    """The name, numbered if it is taken.   "read" -> "read_2" """
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    return next(free for free in names if free not in taken)


def as_list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return [] if value is None else [value]


def as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def names_in(value: Any) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
