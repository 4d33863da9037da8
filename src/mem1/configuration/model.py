"""Configuration: frozen pydantic models, one TOML file per experiment, dotted overrides on the command line.

    class Sampler(Config):
        temperature: float = 1.0            # at most LARGEST, like every number without a bound of its own

    class Run(Config):
        steps: int
        sampler: Sampler = Sampler()

    load_toml("quick.toml", Run, ["sampler.temperature=0.7"])   # quick.toml: steps = 40
        ->  Run(steps=40, sampler=Sampler(temperature=0.7))
    load_toml("quick.toml", Run, ["sampler.temprature=0.7"])
        ->  UserError: quick.toml: unknown key sampler.temprature (from the command line);
            did you mean sampler.temperature? Keys of [sampler]: temperature

Types are strict: "3" is not a number and 1 is not a boolean. Every default has one owner, the class of its
section, so that giving one key of a section never changes another.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import annotated_types
import pydantic
from pydantic import AfterValidator, Field

from mem1.configuration.by_name import ByName
from mem1.configuration.mistakes import explain
from mem1.configuration.toml import apply_override, dumps, key_text, read_toml
from mem1.errors import UserError

LARGEST = 10**12
"""Largest value of a setting without an upper bound of its own; sums and products of a few stay finite."""
LARGEST_SEED = 2**32 - 1
"""Largest seed that every random generator accepts: NumPy's legacy one has 32 bits."""
MOST_TOKENS = 2**31 - 1
"""Maximum tokens of a context, a pack or a step."""
MOST_WORKERS = 256
"""Maximum parallel processes on one machine."""
MOST_TASKS = 1_000_000
"""Maximum tasks of one size."""
MOST_OBJECTIVES = 10_000
"""Maximum questions per task."""
COLDEST = 0.01
"""Lowest temperature: it divides the logits, and nearer to 0 they overflow."""
WARMEST = 100.0


def _greedy_or_warm(temperature: float) -> float:
    if 0 < temperature < COLDEST:
        raise ValueError(f"a temperature is 0 (greedy) or at least {COLDEST}")
    return temperature


Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
"""Seed of random draws."""
Sizes = Annotated[tuple[Annotated[int, Field(ge=1, le=MOST_OBJECTIVES)], ...], Field(min_length=1)]
"""One or more numbers of objectives."""
Probability = Annotated[float, Field(ge=0, le=1)]
LearningRate = Annotated[float, Field(gt=0, le=100)]
"""Step length of an optimiser."""
Temperature = Annotated[float, Field(ge=COLDEST, le=WARMEST)]
"""Divisor of the logits before sampling."""
GreedyOrWarm = Annotated[float, AfterValidator(_greedy_or_warm), Field(ge=0, le=WARMEST)]
"""A temperature, or 0 for greedy choices."""


def _check_value(value: Any, *, bounded: bool) -> None:
    """Raises ValueError for text with NUL and, unless the setting is `bounded` itself, for a huge number."""
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError("text must not hold the character NUL")
    elif isinstance(value, (int, float)):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("a number must be finite")
        if not bounded and abs(value) > LARGEST:
            raise ValueError(f"a number must be at most {LARGEST:,}")
    elif isinstance(value, Mapping):
        for inner in (*value, *value.values()):
            _check_value(inner, bounded=bounded)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            _check_value(inner, bounded=bounded)


ConfigT = TypeVar("ConfigT", bound="Config")


def name_or(table: str) -> pydantic.Discriminator:
    """For a key that takes a name or a table of the class called `table`, so that errors are about one of them."""
    return pydantic.Discriminator(lambda value: "str" if isinstance(value, str) else table)


class Config(pydantic.BaseModel):
    """Base of every configuration: frozen, unknown keys forbidden.

    Two rules keep a TOML file and its object equal; a class that breaks one raises TypeError where it is defined:
    - a field that may be None has the default None: TOML has no null, so None is the key's absence;
    - a field whose default is a section has that section's own defaults: with `Sampler(temperature=0.7)` as
      default, giving `sampler.seed` alone would silently bring back Sampler's own temperature.

    Every number is finite and, where its field has no bound of its own, at most `LARGEST`.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @pydantic.field_validator("*")
    @classmethod
    def _numbers_and_text_can_be_used(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        bounds = cls.model_fields[info.field_name or ""].metadata
        _check_value(
            value, bounded=any(isinstance(bound, (annotated_types.Le, annotated_types.Lt)) for bound in bounds)
        )
        return value

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for name, field in cls.model_fields.items():
            where = f"{cls.__name__}.{name}"
            default = ... if field.is_required() else field.get_default(call_default_factory=True)
            if type(None) in get_args(field.annotation) and default is not None:
                raise TypeError(f"{where} may be None, so its default must be None")
            if not isinstance(default, pydantic.BaseModel) or any(isinstance(item, ByName) for item in field.metadata):
                continue
            kind, made = type(default), field.annotation
            if isinstance(made, type) and kind is not made:
                raise TypeError(
                    f"the default of {where} is a {kind.__name__}, but a file's section makes a {made.__name__}"
                )
            for key, inner in kind.model_fields.items():
                if not inner.is_required() and getattr(default, key) != inner.get_default(call_default_factory=True):
                    change = f"{kind.__name__}.{key}; change it in {kind.__name__}, or annotate with a subclass"
                    raise TypeError(f"the default of {where} changes {change}")


def load_toml(path: str | Path | None, model_type: type[ConfigT], overrides: Sequence[str] = ()) -> ConfigT:
    """Read, override, validate.

    path        a TOML file; None: the overrides alone
    overrides   "a.b=value": the value as TOML (0.7, true, "x", [1, 2]), else as a plain string; "a.b=null"
                unsets an optional key; entries of lists are numbered from 0 ("stages.1.steps=5")

    Raises UserError for a file that is missing or broken, an unknown key, a wrong type, a malformed override.
    """
    data = {} if path is None else read_toml(path)
    given = [apply_override(data, text) for text in overrides]
    try:
        # JSON mode: strict about numbers and booleans, yet lists may be tuples and strings enums or paths.
        return model_type.model_validate_json(json.dumps(data, default=str), strict=True)
    except pydantic.ValidationError as error:
        where = "" if path is None else f"{path}: "
        raise UserError(f"{where}{explain(error, model_type, given)}") from error


def to_toml(config: Config) -> str:
    """The whole configuration, defaults included, as TOML; `load_toml` gives an equal one. None is left out."""
    return dumps(plain(config))


def fingerprint(config: Config, exclude: Sequence[str] = ()) -> str:
    """SHA-256 (hexadecimal) of the configuration's values as canonical JSON.

    exclude     dotted keys that do not count, such as "out"

    Raises ValueError if the first part of an excluded key is no field of the configuration.
    """
    text = json.dumps(_canonical(plain(config, exclude)), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def flatten(table: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> dict[str, Any]:
    """Leaves by dotted key.   {"a": {"b": 1}, "c": []}  ->  {"a.b": 1, "c": []}"""
    leaves: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            leaves |= flatten(value, (*prefix, key))
        else:
            leaves[key_text(*prefix, key)] = value
    return leaves


def plain(config: Config, exclude: Sequence[str] = ()) -> dict[str, Any]:
    """The configuration as dicts, lists, strings and numbers, without the `exclude`d dotted keys."""
    table = _plain(config)
    for key in exclude:
        *path, last = key.split(".")
        if (path or [last])[0] not in type(config).model_fields:
            raise ValueError(f"cannot exclude {key}: {type(config).__name__} has no such key")
        section = table
        for name in path:
            section = section.get(name, {})
        section.pop(last, None)
    return table


def _plain(value: Any) -> Any:
    if isinstance(value, pydantic.BaseModel):
        fields = {name: getattr(value, name) for name in type(value).model_fields}
        return {name: _plain(v) for name, v in fields.items() if v is not None}
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, Path):
        return value.as_posix()
    if isinstance(value, Mapping):
        return {str(_plain(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(v) for v in value)
    if isinstance(value, (str, int, float)):
        return value
    raise TypeError(f"a configuration cannot hold {value!r} ({type(value).__name__}): TOML has no such value")


def _canonical(value: Any) -> Any:
    """Whole floats as integers: a field `rate: float = 1` is 1 by default and 1.0 once read from a file."""
    if isinstance(value, dict):
        return {k: _canonical(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_canonical(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
