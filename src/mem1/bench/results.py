"""What a run of the benchmark found: one record per attempted task, and the file that holds them.

    {"format": "mem1-bench/1", "canary": "...", "digest": "9f3c...", "suite": "quick", "seed": 0, ..., "attempts": [
      {"task": "independent-n4-seed0-2", "family": "independent", "level": 1, "objectives": 4, "memory": "full",
       "right": [1, 1, 0, 1], "ended": "answered", ...}, ...]}

Two results are comparable where they attempted the same tasks: same suite, same seed, same version of the tasks. What
is read is checked: a file may come from anybody.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pydantic
from pydantic import ConfigDict, TypeAdapter

from mem1.durable import write_file
from mem1.errors import UserError

FORMAT = "mem1-bench/1"
CANARY = "mem1-bench canary 7d1c2f9e-3b64-4a0f-9a55-0c6f5f3f8e21: benchmark data; never train on a text that holds this"
"""Stands in every result file, so that corpora can be filtered."""

RESULT = "result.json"
"""Name of the file in the folder of a run."""
TASKS = 1
"""Version of the tasks: raised when a task of any suite changes."""
_MOST = 2**53
"""Counts from here on are a mistake; a float, or a browser, cannot tell them apart."""
_CHECKED = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Tokens of all calls of one attempt. Raises ValueError for a count that is none."""

    __pydantic_config__: ClassVar[ConfigDict] = _CHECKED
    fresh: int
    """Prompt tokens that no cache served."""
    cached: int
    """Prompt tokens that the provider's cache served, or could have served where it does not say."""
    output: int

    def __post_init__(self) -> None:
        _check_counts(self, "fresh", "cached", "output")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt at one task, under one memory. Raises ValueError for numbers that are no measurement."""

    __pydantic_config__: ClassVar[ConfigDict] = _CHECKED
    task: str
    """Id of the task; equal ids are equal tasks, in every run with the same suite and seed."""
    family: str
    level: int
    objectives: int
    memory: str
    """Name of the memory, such as "full" or "fold(auto)"."""
    right: tuple[float, ...]
    """Exact match per objective, 0 or 1; all 0 for an attempt that failed."""
    ended: str
    """How it ended: a value of `mem1.records.Ended`."""
    detail: str = ""
    """Why, where it needs a reason."""
    turns: int = 0
    """Replies of the model, states and summaries not counted."""
    searches: int = 0
    """Actions that the environment answered."""
    tokens: Spent = field(default_factory=lambda: Spent(fresh=0, cached=0, output=0))
    peak: int = 0
    """Tokens of the longest prompt with what the model wrote to it."""
    cost: float | None = None
    """In the unit of the result's prices; None: no prices."""
    seconds: float = 0.0
    """Wall time."""

    def __post_init__(self) -> None:
        _check_counts(self, "objectives", "turns", "searches", "peak")
        if not self.right or len(self.right) != self.objectives:
            raise ValueError(f"task {self.task!r} has {self.objectives} objectives and {len(self.right)} scores")
        if not all(0 <= value <= 1 for value in self.right):
            raise ValueError(f"task {self.task!r} has a score outside [0, 1]")
        if self.cost is not None and not 0 <= self.cost < _MOST:
            raise ValueError(f"task {self.task!r} has a cost of {self.cost}")

    @property
    def accuracy(self) -> float:
        """Share of the objectives that are right."""
        return sum(self.right) / len(self.right)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run of the benchmark: a model, under one or several memories."""

    __pydantic_config__: ClassVar[ConfigDict] = _CHECKED
    model: str
    """Name for tables."""
    about: Mapping[str, Any]
    """What else tells the model from others: kind (server, policy, script), address, fingerprint, settings."""
    suite: str
    seed: int
    """Of the tasks; 0 is the public one."""
    version: str
    """Of mem1."""
    tasks: int
    """`TASKS` of that version; results of other tasks are not comparable."""
    attempts: tuple[Attempt, ...]
    prices: str | None = None
    """Name of the price class."""
    unit: str | None = None
    """Its currency."""
    seconds: float = 0.0
    """Wall time, of all processes that worked on it."""

    @property
    def memories(self) -> tuple[str, ...]:
        """In the order of their first attempt."""
        return tuple(dict.fromkeys(attempt.memory for attempt in self.attempts))

    def of(self, memory: str) -> tuple[Attempt, ...]:
        """The attempts under one memory."""
        return tuple(attempt for attempt in self.attempts if attempt.memory == memory)


def save_result(path: Path, result: Result) -> None:
    """Writes the file whole. Raises UserError if it cannot be written."""
    found = asdict(result)
    about = {k: v for k, v in found.items() if k != "attempts"}
    record = {"format": FORMAT, "canary": CANARY, "digest": digest_of(found), **about}
    lines = ",\n  ".join(json.dumps(asdict(attempt)) for attempt in result.attempts)
    head = json.dumps(record)[:-1]
    write_file(path, f'{head}, "attempts": [\n  {lines}\n]}}\n'.encode())


def load_result(path: Path) -> Result:
    """Raises UserError for a file that is none."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record.pop("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        record.pop("canary")
        digest, result = record.pop("digest"), _reader().validate_python(record)
        if digest != digest_of(record):
            raise ValueError("it is not as it was written")
        return result
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path} is not a result of mem1 bench: {where}: {first['msg']}") from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is not a result of mem1 bench: {error}") from error


def digest_of(record: Any) -> str:
    """SHA-256 (hexadecimal, shortened) of a request, or a record, as JSON."""
    written = json.dumps(record, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(written.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@cache
def _reader() -> TypeAdapter[Result]:
    return TypeAdapter(Result)


def _check_counts(record: Any, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(record, name) < _MOST:
            raise ValueError(f"{name} is {getattr(record, name)}, which is no count")
