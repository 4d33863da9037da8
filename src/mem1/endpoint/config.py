"""`[agent]` of a recipe: a third-party agent makes the attempts.

[agent]                                 [agent]
entry = "my_package.agent:run"          command = ["python", "my_agent.py"]
concurrency = 32                        time_limit_s = 300
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from mem1.configuration import Config
from mem1.configuration.model import MOST_TOKENS
from mem1.endpoint.runs import Command, Entry, Runs, entry_at
from mem1.messages import Memory

MADE_BY = "agent "
"""Prefix of the memory's name where an agent made the contexts."""


class AgentConfig(Config):
    """The agent that makes the attempts. Give either `entry` or `command`."""

    entry: Annotated[str, AfterValidator(lambda path: entry_at(path) and path)] | None = None
    """A function as package.module:name, sync or async, called as run(task, base_url) in a thread of its own. It
    returns the answer as text, the reward as a number, a mem1.Outcome, or None: no answer."""
    command: tuple[str, ...] | None = Field(default=None, min_length=1)
    """A program and its arguments, started for each attempt, with the address in OPENAI_BASE_URL and the task as JSON
    on its standard input. The last line of its output is the answer, or JSON: {"answer": ...} or {"reward": ...}."""
    concurrency: int = Field(default=32, ge=1, le=4096)
    """Most attempts at a time."""
    time_limit_s: float = Field(default=600.0, gt=0, le=1e7)
    """Longest time of an attempt, which then ends with out_of_time. A command is killed, with its process group."""
    calls: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """Most calls of the policy in an attempt; None: the turn limit of its task."""
    memory: Annotated[str, AfterValidator(lambda name: Memory(name) and name)] | None = None
    """Stands between agent and policy: full, fold(k), notes, masked(k), window(k), or your own. What it has the model
    write is trained as well. None: the policy sees the agent's messages as they are."""

    @model_validator(mode="after")
    def _one_of_them(self) -> AgentConfig:
        if (self.entry is None) == (self.command is None):
            raise ValueError("give either entry, a function of yours, or command, a program")
        return self

    @property
    def name(self) -> str:
        """Recorded in place of the memory's name."""
        who = f"{MADE_BY}{self.entry or ' '.join(self.command or ())}"
        return who if self.memory is None else f"{who}, {self.memory}"

    def runs(self) -> Runs:
        """Returns the runner of the agent. Raises UserError where there is no such function or program."""
        if self.entry is not None:
            return Entry(entry_at(self.entry), self.time_limit_s)
        assert self.command is not None
        return Command.of(self.command, self.time_limit_s)
