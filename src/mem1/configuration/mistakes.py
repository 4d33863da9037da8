"""Translates pydantic's errors about a configuration into the user's terms and key names.

    quick.toml: unknown key sampler.temprature (from the command line); did you mean sampler.temperature?
    Keys of [sampler]: seed, temperature

pydantic reports locations in the schema, union branches included; users know dotted keys only. So each location is
followed through the model's annotations, and branches are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pydantic
from pydantic.fields import FieldInfo

from mem1.configuration.by_name import ByName
from mem1.configuration.toml import key_text, value_text
from mem1.errors import closest


def explain(
    error: pydantic.ValidationError, model_type: type[pydantic.BaseModel], overridden: Sequence[Sequence[str]]
) -> str:
    """One line per mistake; `overridden` lists the keys set on the command line, in parts."""
    lines = []
    found = error.errors(include_url=False)
    for item in found:
        if item["type"] == "too_short" and any(_is_below(item["loc"], other["loc"]) for other in found):
            continue  # it lacks what is named as wrong
        keys, section = _place(model_type, item["loc"])
        origin = " (from the command line)" if _is_overridden(keys, overridden) else ""
        lines.append(_sentence(item, keys, section, origin) + _other_kind(item, keys, overridden))
    lines = list(dict.fromkeys(lines))
    return lines[0] if len(lines) == 1 else f"{len(lines)} mistakes:\n" + "\n".join(f"  {line}" for line in lines)


def _is_below(place: Sequence[str | int], other: Sequence[str | int]) -> bool:
    return len(other) > len(place) and tuple(other[: len(place)]) == tuple(place)


def explain_unknown(error: pydantic.ValidationError) -> str:
    """The same for a model known only by its name in the error, as when options fill one."""
    keys = {str(item["loc"][0]) for item in error.errors(include_url=False) if item["loc"]}
    named = [kind for kind in _below(pydantic.BaseModel) if kind.__name__ == error.title]
    model = max(named, key=lambda kind: len(keys & kind.model_fields.keys()), default=pydantic.BaseModel)
    return explain(error, model, [])


def _below(kind: type[pydantic.BaseModel]) -> Iterator[type[pydantic.BaseModel]]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)


def _sentence(
    item: Mapping[str, Any], keys: Sequence[str | int], section: type[pydantic.BaseModel], origin: str
) -> str:
    name = key_text(*keys)
    names = list(section.model_fields)
    where = f"[{key_text(*keys[:-1])}]" if len(keys) > 1 else "the file"
    listing = f"Keys of {where}: {', '.join(names)}"
    if item["type"] == "extra_forbidden":
        close = closest(str(keys[-1]), names)
        hint = f"; did you mean {key_text(*keys[:-1], close)}?" if close else "."
        return f"unknown key {name}{origin}{hint} {listing}"
    if item["type"] == "missing":
        return f"required key {name} is missing; give it in the file or as {name}=value. {listing}"
    if item["type"] == "union_tag_not_found":
        return f"[{name}] needs the key {item['ctx']['discriminator']}, the kind of section{origin}"
    message = item["msg"].removeprefix("Value error, ")
    if not keys:
        return message
    got = "" if isinstance(item["input"], (Mapping, list)) else f", got {_shown(item['input'])}"
    quoting = f"; quote it: {name}='\"{_shown(item['input'])}\"'" if item["type"] == "string_type" and origin else ""
    return f"{name}{origin}: {message[:1].lower()}{message[1:]}{got}{quoting}"


def _other_kind(item: Mapping[str, Any], keys: Sequence[str | int], overridden: Sequence[Sequence[str]]) -> str:
    """How to leave the file's keys out where the command line names another class for their section."""
    section = tuple(map(str, keys[:-1]))
    named = [key for *above, key in overridden if tuple(above) == section and key in ("kind", "name")]
    if item["type"] != "extra_forbidden" or not named or _is_overridden(keys, overridden):
        return ""
    return (
        f". The key is of the file's own {named[0]}; '{key_text(*section)}={{{named[0]}=\"...\"}}' replaces the section"
    )


def _shown(value: object) -> str:
    return value_text(value) if isinstance(value, (str, int, float)) else repr(value)


def _is_overridden(keys: Sequence[str | int], overridden: Sequence[Sequence[str]]) -> bool:
    """The key, a section above it or something below it was set on the command line."""
    parts = tuple(map(str, keys))
    return bool(parts) and any(all(a == b for a, b in zip(parts, other, strict=False)) for other in overridden)


def _place(
    model_type: type[pydantic.BaseModel], loc: Sequence[str | int]
) -> tuple[list[str | int], type[pydantic.BaseModel]]:
    """The key at a location, in parts, and the model that holds its last part."""
    kind: Any = model_type
    section = model_type
    keys: list[str | int] = []
    for part in loc:
        kind = _unwrapped(kind)
        origin, args = get_origin(kind), get_args(kind)
        if isinstance(kind, ByName):
            kind = kind.section(str(part))
        elif origin in (Union, UnionType):
            kind = _branch(args, part)
        elif isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
            section, field = kind, kind.model_fields.get(str(part))
            kind = _open_list(field) if field is not None else None
            keys.append(part)
        elif args and part != "[key]":
            kind = args[part] if origin is tuple and isinstance(part, int) and ... not in args else _item(origin, args)
            keys.append(part)
    return keys, section


def _open_list(field: FieldInfo) -> Any:
    """The annotation that names the class of a field's section, else the field's type."""
    return next((item for item in field.metadata if isinstance(item, ByName)), field.annotation)


def _unwrapped(kind: Any) -> Any:
    """Without Annotated, and without `| None` around a single type: neither appears in pydantic's locations."""
    if get_origin(kind) is Annotated:
        return _unwrapped(get_args(kind)[0])
    members = [a for a in get_args(kind) if a is not type(None)]
    if get_origin(kind) in (Union, UnionType) and len(members) == 1:
        return _unwrapped(members[0])
    return kind


def _branch(members: Sequence[Any], label: str | int) -> Any:
    """The member of a union that a location's label names: by the value of its tag, or by its type's name."""
    for member in map(_unwrapped, members):
        if getattr(member, "__name__", None) == label:
            return member
        for field in getattr(member, "model_fields", {}).values():
            if get_origin(field.annotation) is Literal and label in get_args(field.annotation):
                return member
    return None


def _item(origin: Any, args: Sequence[Any]) -> Any:
    """Type of the entries of a list or of the values of a table."""
    return args[1] if isinstance(origin, type) and issubclass(origin, Mapping) else args[0]
