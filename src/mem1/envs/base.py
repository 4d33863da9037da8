"""The port of every environment: it turns actions into observations and scores the end.

    observe([Request(task, "search", "capital of Norway")])  ->  [Observation(text="Doc 1 (Title: Oslo) Oslo is ...")]
    score(task, "Q1 Oslo")                                   ->  Outcome(1.0, {"em": (1.0,), "f1": (1.0,)})

Environments speak text, never tokens. They keep nothing between calls: all they need is in the request.
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
    """"search", or another kind of the vocabulary."""
    argument: str
    """What the tag holds: a query, an address, a click."""
    history: tuple[tuple[str, str], ...] = ()
    """(kind, argument) of the attempt's actions before this one, oldest first: a shop's pages follow from them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The reply to one action. The rollout adds the hint and the tags, and neutralises the text."""

    text: str
    failed: str | None = None
    """Why the tool could not answer (`Ended.TOOL_FAILED`); None: it answered."""
    answer: str | None = None
    """What the attempt has come to so far, where it comes about by actions (what was bought); None: not by these."""
    ended: bool = False
    """The action was the last: the attempt is over, `answer` is what is scored."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an answer is worth."""

    reward: float
    """What training maximises, unless the recipe names another reward."""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """Whatever else is measured, by name: one number, or one per objective. Logged, and averaged in evaluations."""


class Environment(Protocol):
    """Anything that an agent can act in."""

    def observe(self, actions: Sequence[Action], /) -> list[Observation]:
        """One observation per action; a batch, so that slow tools are called once.

        Raises UserError for a kind of action that this environment does not know.
        """
        ...

    def score(self, task: Task, answer: str, /) -> Outcome:
        """Worth of the answer; "" where the trajectory ended without one."""
        ...


class TaskSource(Protocol):
    """The tasks of one split, with the environment in which they are attempted."""

    @property
    def environment(self) -> Environment:
        """Replies to the actions of these tasks and scores their ends."""
        ...

    def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
        """`count` tasks of `objectives` questions each; the same tasks for the same seed."""
        ...
