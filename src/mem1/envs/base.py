"""The port of every environment: it turns actions into observations and scores the end.

    observe([Action(task, "search", "capital of Norway")])  ->  [Observation(text="Doc 1 (Title: Oslo) Oslo is ...")]
    score(task, "Q1 Oslo")                                   ->  Outcome(1.0, {"em": (1.0,), "f1": (1.0,)})

Environments handle text, never tokens. They keep nothing between calls: the action holds all they need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mem1.records import Metric, Task


@dataclass(frozen=True, slots=True)
class Action:
    """One action of one attempt."""

    task: Task
    kind: str
    """"search", or another kind of the tags."""
    argument: str
    """Content of the tag: a query, an address, a click."""
    history: tuple[tuple[str, str], ...] = ()
    """(kind, argument) of the attempt's actions before this one, oldest first: a shop's pages follow from them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The reply to one action. The rollout adds hint and tags, and makes the text harmless."""

    text: str
    failed: str | None = None
    """Why the tool could not answer (`Ended.TOOL_FAILED`); None: it answered."""
    answer: str | None = None
    """The answer so far, where actions make it up (a shop's purchases); None: unchanged by this action."""
    ended: bool = False
    """True: the attempt is over, and `answer` is scored."""
    trusted: bool = False
    """True: the environment's author wrote the text, and it may ask for tags of its own; False: strangers may have."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The score of an attempt."""

    reward: float
    """Training maximises this, unless the recipe names another reward."""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """Other measurements by name: one number, or one per objective. Logged, and averaged in evaluations."""


class Environment(Protocol):
    """Anything that an agent can act in."""

    def observe(self, actions: Sequence[Action], /) -> list[Observation]:
        """One observation per action; a batch, so that slow tools are called once.

        Raises UserError for a kind of action that this environment does not know.
        """
        ...

    def score(self, task: Task, answer: str, /) -> Outcome:
        """Score the answer; it is "" if the trajectory ended without one."""
        ...


class TaskSource(Protocol):
    """The tasks of one split, with the environment in which they are attempted."""

    @property
    def environment(self) -> Environment:
        """Replies to the actions of these tasks and scores the answers."""
        ...

    def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
        """`count` tasks of `objectives` questions each; the same tasks for the same seed."""
        ...
