"""Names for recipes: shipped, your own, and those of installed packages.

    register.tasks("sums", Sums)                    # in Python; or @register.tasks("sums") above the class
    register.tasks.get("sums")                      ->  Sums
    register.tasks.get("my_package.sums:Sums")      ->  Sums, imported; modules of the current folder are found too
    register.tasks.get("atlass")                    ->  UserError: unknown tasks 'atlass'; known: atlas, cloze, ...

An installed package offers a name by an entry point, here in its pyproject.toml:

    [project.entry-points."mem1.tasks"]
    sums = "my_package.sums:Sums"
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module, metadata
from typing import Any, TypeVar, overload

from mem1.errors import UserError, suggestion

T = TypeVar("T")
SHIPPED = "mem1.shipped:SHIPPED"
"""Where mem1's own things are listed: in a room after all others, so that no list here names a later one."""


@dataclass(frozen=True)
class Registry:
    """One kind of thing by name. Nothing is imported before it is used."""

    kind: str
    """Word for error messages; entry points are in the group "mem1.<kind>"."""
    _registered: dict[str, Any] = field(default_factory=dict, init=False)

    @overload
    def __call__(self, name: str) -> Callable[[T], T]: ...

    @overload
    def __call__(self, name: str, thing: T) -> T: ...

    def __call__(self, name: str, thing: Any = None) -> Any:
        """Register `thing` under `name`; without a thing, a decorator. Raises UserError for a name that is taken."""
        if thing is None:
            return lambda decorated: self(name, decorated)
        if ":" in name or name in self._shipped():
            why = "is reserved for dotted paths" if ":" in name else f"is one of mem1's own {self.kind}"
            raise UserError(f"cannot register {name!r}: the name {why}; choose another")
        self._registered[name] = thing
        return thing

    def get(self, name: str) -> Any:
        """The thing called `name`. Raises UserError where nothing has this name or its module cannot be imported."""
        shipped = self._shipped()
        if name in shipped:
            return _own(shipped[name]) if isinstance(shipped[name], str) else shipped[name]
        if name in self._registered:
            return self._registered[name]
        if ":" in name:
            return load(name)
        for point in _entry_points(self.kind):
            if point.name == name:
                return load(point.value)
        known = self.names()
        raise UserError(
            f"unknown {self.kind} {name!r}{suggestion(name, known)}; known: {', '.join(known) or 'none'}. Your own: "
            f"write package.module:Name, or call mem1.register.{self.kind}({name!r}, ...) before"
        )

    def names(self) -> tuple[str, ...]:
        """All names that `get` knows, shipped ones first; dotted paths come on top of them."""
        installed = (point.name for point in _entry_points(self.kind))
        return tuple(dict.fromkeys((*self._shipped(), *self._registered, *installed)))

    def name_of(self, thing: Any) -> str:
        """A name under which `get` finds a class or function: shipped or registered, else its dotted path."""
        path = f"{thing.__module__}:{thing.__qualname__}"
        known = (*self._shipped().items(), *self._registered.items())
        return next((name for name, found in known if found is thing or found == path), path)

    def with_name(self, section: type, values: Any) -> Any:
        """The values of a section with its name, which Python code may leave out."""
        missing = isinstance(values, Mapping) and "name" not in values
        return {**values, "name": self.name_of(section)} if missing else values

    def _shipped(self) -> Mapping[str, Any]:
        """Name -> thing of mem1's own, or the dotted path of one that is not imported yet."""
        listed = _own(SHIPPED).get(self.kind, {})
        return _own(listed) if isinstance(listed, str) else listed


@cache
def _entry_points(kind: str) -> tuple[metadata.EntryPoint, ...]:
    """Those of installed packages; finding them takes tens of milliseconds."""
    return tuple(metadata.entry_points(group=f"mem1.{kind}"))


@cache
def _own(path: str) -> Any:
    """`load`, for objects of mem1 itself, which stay where they are."""
    return load(path)


def check_arguments(what: str, function: Callable[..., Any], *names: str) -> None:
    """Raises UserError unless the function or class can be called with so many values; `names`: what they are."""
    try:
        inspect.signature(function).bind(*names)
    except TypeError as error:
        raise UserError(f"{what} is called with ({', '.join(names)}), which it does not take: {error}") from error
    except ValueError:  # one that does not tell what it takes
        pass


def load(path: str) -> Any:
    """The object at "package.module:Name". Modules of the current folder can be imported, after installed ones.

    Raises UserError where the module cannot be imported or has no such name.
    """
    module_name, _, name = path.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *name.split("."))):
        raise UserError(f"{path!r} is not a dotted path; write it as package.module:Name")
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    try:
        thing: Any = import_module(module_name)
    except Exception as error:  # whatever a stranger's module raises when it is run
        raise UserError(
            f"cannot import {module_name} for {path!r} ({type(error).__name__}: {error}); it must be installed, or lie "
            f"in the current folder, {os.getcwd()}"
        ) from error
    for part in name.split("."):
        try:
            thing = getattr(thing, part)
        except AttributeError as error:
            known = ", ".join(key for key in dir(thing) if not key.startswith("_")) or "nothing"
            raise UserError(f"{module_name} has no {name!r} (for {path!r}); it has: {known}") from error
    return thing


@dataclass(frozen=True)
class _Register:
    """All open lists: `register.<kind>(name, thing)` adds to one, `register.<kind>.get(name)` looks up."""

    tasks: Registry = Registry("tasks")
    """Configurations of tasks (`mem1.TasksConfig`), or plain classes with tasks, observe and score."""
    environment: Registry = Registry("environment")
    """Functions or classes that take the environment of a task configuration and return the one to use."""
    reward: Registry = Registry("reward")
    """Functions (task, attempt) -> reward."""
    scorer: Registry = Registry("scorer")
    """Functions (prediction, gold aliases) -> 1 if the answer is right, else 0 (`mem1.scoring.Scorer`)."""
    memory: Registry = Registry("memory")
    """Memories, for trained policies and chat agents (`mem1.MemoryPolicy`), or classes that make one from whole
    numbers."""
    prompt: Registry = Registry("prompt")
    """`mem1.tasks.prompts.Prompt`."""
    dataset: Registry = Registry("dataset")
    """Formats of question files (`mem1.tasks.datasets.reading.Format`)."""
    tags: Registry = Registry("tags")
    """`mem1.Tags`."""
    tool_call_format: Registry = Registry("tool_call_format")
    """How models write calls of tools (`mem1.engines.tool_calls.CallFormat`)."""
    algorithm: Registry = Registry("algorithm")
    """Reinforcement-learning algorithms: subclasses of `mem1.algorithms.base.Algorithm`."""
    channel: Registry = Registry("channel")
    """Parts of the advantage in the algorithm channels: subclasses of `mem1.algorithms.channels.Channel`."""
    engine: Registry = Registry("engine")
    """Configurations of engines, or plain classes with complete (`mem1.Engine`)."""
    retriever: Registry = Registry("retriever")
    """Functions or classes without arguments that make a `mem1.Retriever`."""
    index: Registry = Registry("index")
    """Classes whose `load(folder)` opens an index of the kind that its manifest names."""
    search_api: Registry = Registry("search_api")
    """Search APIs of the open web (`mem1.retrieval.web.search.JsonApi`)."""
    reader: Registry = Registry("reader")
    """Functions (path, codec) -> trajectories, for files of attempts that other programs wrote (`[sft] reader`)."""
    writer: Registry = Registry("writer")
    """Classes or functions that make a writer (`mem1.training.monitoring.writers.Writer`) of a `mem1.WrittenRun`."""
    document: Registry = Registry("document")
    """Functions (content, path) -> (title or None, text) for the files with this ending, such as ".docx"."""


register = _Register()
