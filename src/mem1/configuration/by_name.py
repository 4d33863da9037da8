"""A section whose class one of its keys names, from an open list.

    class Recipe(Config):
        tasks: Annotated[TasksConfig, ByName(register.tasks, key="kind")]

    [tasks]                             [tasks]
    kind = "atlas"                      kind = "my_package.sums:SumsTasks"
    worlds = 2                          largest = 10

Mistakes inside the section are reported as if the field were annotated with the named class.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import pydantic
from pydantic_core import InitErrorDetails, PydanticKnownError, core_schema

from mem1.errors import UserError
from mem1.registry import Registry


@dataclass(frozen=True)
class ByName:
    """Annotation of a field whose type is the base class of the sections that it can hold."""

    registry: Registry
    key: str
    default: str | None = None
    """Name where the key is missing; None: the key is required."""
    adapt: Callable[[Any], Any] = lambda thing: thing
    """Makes a section's class of what the registry holds; the same class for the same thing."""

    def section(self, name: str) -> type[pydantic.BaseModel]:
        """The class of a section that is called `name`. Raises UserError for an unknown name."""
        kind = self.adapt(self.registry.get(name))
        if not (isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)):
            raise UserError(f"{self.registry.kind} {name!r} is a {type(kind).__name__}; it must be a class")
        return kind

    def __get_pydantic_core_schema__(self, base: Any, handler: Any) -> core_schema.CoreSchema:
        def validated(value: Any, info: core_schema.ValidationInfo) -> Any:
            if isinstance(value, base):
                return self._named(value)
            if not isinstance(value, Mapping):
                raise ValueError(f"must be a section with the key {self.key}")
            name = value.get(self.key, self.default)
            if not isinstance(name, str):
                raise PydanticKnownError("union_tag_not_found", {"discriminator": self.key})
            section = self.section(name)
            try:
                if info.mode == "json":
                    return section.model_validate_json(json.dumps(value, default=str), strict=True)
                return section.model_validate(value)
            except pydantic.ValidationError as error:
                raise _inside(name, error) from error

        return core_schema.with_info_plain_validator_function(validated)

    def _named(self, section: pydantic.BaseModel) -> pydantic.BaseModel:
        """The section with the name that finds its class again, so that a written configuration can be read."""
        written = getattr(section, self.key)
        with suppress(UserError):
            if written and self.section(written) is type(section):
                return section
        return section.model_copy(update={self.key: self.registry.name_of(type(section))})


class Made(pydantic.BaseModel):
    """Mix-in for the configuration of a plain class or function: its fields are the parameters of the constructor."""

    made_by: ClassVar[Callable[..., Any]]
    given: ClassVar[frozenset[str]]
    """Parameters that are no fields: `make` supplies them."""

    def make(self, **supplied: Any) -> Any:
        """What the constructor makes of the fields, and of those of `supplied` that it takes."""
        names = [name for name in inspect.signature(type(self).made_by).parameters if name in type(self).model_fields]
        own = {name: getattr(self, name) for name in names if name not in self.given}
        return type(self).made_by(**own, **{name: supplied[name] for name in self.given})


@lru_cache
def made_by(thing: Any, base: type[Any], plain: type[Any], *, given: tuple[str, ...]) -> Any:
    """The section's class for what a registry holds: itself if it derives from `base`, else a `plain` made for it.

    Things that are no callables are returned as they are. Raises UserError for one without a readable signature.
    """
    if not callable(thing) or (isinstance(thing, type) and issubclass(thing, base)):
        return thing
    try:
        parameters = inspect.signature(thing, eval_str=True).parameters
    except (NameError, TypeError, ValueError) as error:
        raise UserError(f"{thing!r} cannot be configured: {error}") from error
    fields: Mapping[str, Any] = {
        name: (Any if p.annotation is p.empty else p.annotation, ... if p.default is p.empty else p.default)
        for name, p in parameters.items()
        if name not in given and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    made = pydantic.create_model(thing.__name__, __base__=plain, __module__=thing.__module__, **fields)
    made.made_by = staticmethod(thing)
    made.given = frozenset(parameters) & frozenset(given)
    made.__qualname__ = thing.__qualname__
    return made


def _inside(name: str, error: pydantic.ValidationError) -> pydantic.ValidationError:
    """The same mistakes, each located below the section's name, as in a union."""
    details = [
        InitErrorDetails(type=e["type"], loc=(name, *e["loc"]), input=e["input"], ctx=e.get("ctx", {}))
        for e in error.errors(include_url=False)
    ]
    return pydantic.ValidationError.from_exception_data(error.title, details)
