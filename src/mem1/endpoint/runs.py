"""Runs of a third-party agent: a function in a thread, or a program as a process; both within a time limit.

    [agent]                                 [agent]
    entry = "my_package.agent:run"          command = ["python", "my_agent.py"]
    concurrency = 32                        time_limit_s = 300

    Entry(entry_at("my_package.agent:run"), 300.0)(task, base_url)   ->  Returned(answer="Q1 Oslo")
    Command.of(["python", "my_agent.py"], 300.0)(task, base_url)    ->  Returned(reward=1.0)

Nothing is raised: a function that raises, a program that exits with an error and an agent that does not return in time
are endings of the attempt. A function cannot be stopped: its thread goes on alone, and its calls are refused.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Annotated, Any, Protocol

from pydantic import AfterValidator, Field, model_validator

from mem1.configuration import Config
from mem1.configuration.model import MOST_TOKENS
from mem1.envs.base import Outcome
from mem1.errors import UserError
from mem1.messages import Memory
from mem1.net.exchange import one_line
from mem1.programs import kill
from mem1.records import Ended, Metric, Task, task_to_json
from mem1.registry import load
from mem1.scoring import measurement, number

_KEPT = 1 << 16
"""Bytes of the end of a program's output that are kept."""
_WAIT_S = 5.0
"""For output that is still in a pipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """An agent's return value, or the reason why there is none."""

    answer: str | None = None
    """To be scored by the environment, if any."""
    reward: float | None = None
    """The agent's own; None: the environment scores the answer."""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """Beside its own reward."""
    failed: tuple[Ended, str] | None = None
    """How it ended otherwise; None if it returned."""


class Runs(Protocol):
    """Runs an agent on a task."""

    def __call__(self, task: Task, base_url: str) -> Returned: ...


@dataclass(frozen=True)
class Entry:
    """A function of the task and the address."""

    run: Callable[[Task, str], Any]
    limit_s: float

    def __call__(self, task: Task, base_url: str) -> Returned:
        found: list[Returned] = []

        def work() -> None:
            try:
                value = self.run(task, base_url)
                found.append(read(asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value))
            except BaseException as error:  # whatever a stranger's agent raises, SystemExit too
                found.append(_failed(f"the agent raised {type(error).__name__}: {error}"))

        thread = threading.Thread(target=work, name="mem1-agent", daemon=True)
        thread.start()
        thread.join(self.limit_s)
        return found[0] if found else _late(self.limit_s)


def entry_at(path: str) -> Callable[[Task, str], Any]:
    """Raises UserError where there is no such function, or it does not take a task and an address."""
    run = load(path)
    if not callable(run):
        raise UserError(f"agent.entry = {path!r} is a {type(run).__name__}; it must be a function run(task, base_url)")
    try:
        inspect.signature(run).bind(None, "")
    except TypeError as error:
        raise UserError(f"agent.entry = {path!r} must be called as run(task, base_url): {error}") from error
    except ValueError:
        pass  # a function that does not tell what it takes
    return run


async def _awaited(value: Any) -> Any:
    return await value


@dataclass(frozen=True)
class Command:
    """A program: the task as JSON on its input, the answer on the last line of its output."""

    arguments: Sequence[str]
    limit_s: float

    @classmethod
    def of(cls, arguments: Sequence[str], limit_s: float) -> Command:
        """Raises UserError where there is no such program."""
        if shutil.which(arguments[0]) is None:
            raise UserError(f"agent.command: there is no program {arguments[0]!r}; give its path, or install it")
        return cls(arguments, limit_s)

    def __call__(self, task: Task, base_url: str) -> Returned:
        given = {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "mem1", "OPENAI_API_BASE": base_url}
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(
                self.arguments,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                env={**os.environ, **given},
                start_new_session=True,
            )
        except OSError as error:
            return _failed(f"the agent's program does not start: {error.strerror or error}")
        _RUNNING.add(process)
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        written, complained = _Tail(process.stdout), _Tail(process.stderr)
        threading.Thread(target=_write, args=(process.stdin, task), daemon=True).start()
        try:
            process.wait(self.limit_s)
        except subprocess.TimeoutExpired:
            return _late(self.limit_s)
        finally:
            kill(process)
            _RUNNING.discard(process)
        if process.returncode:
            said = complained.last_line() or "it says nothing on stderr"
            return _failed(f"the agent's program ended with status {process.returncode}: {said}")
        return _read_line(written.last_line())


_RUNNING: set[subprocess.Popen[bytes]] = set()


@atexit.register
def _leave_nothing() -> None:
    """A run that is interrupted does not wait for its agents."""
    for process in list(_RUNNING):
        kill(process)


class _Tail:
    """The end of a program's output, read in a thread."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._kept = bytearray()
        self._thread = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._thread.start()

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe:
            while piece := pipe.read1(_KEPT):  # type: ignore[attr-defined]  # of a buffered pipe
                self._kept += piece
                del self._kept[:-_KEPT]

    def last_line(self) -> str:
        """The last line that is not blank; empty: there is none."""
        self._thread.join(_WAIT_S)
        lines = bytes(self._kept).decode("utf-8", "replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _write(pipe: IO[bytes], task: Task) -> None:
    with contextlib.suppress(OSError), pipe:  # a program need not read it
        pipe.write(json.dumps(task_to_json(task)).encode())


def _read_line(line: str) -> Returned:
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(line)
        if isinstance(value, dict) and value.keys() & {"answer", "reward"}:
            if "reward" not in value:
                return _answered(value["answer"])
            reward = value["reward"]
            if type(reward) not in (int, float):
                return _failed(f"the agent returned the reward {reward!r:.80}; it must be a number")
            return read(reward)
    return read(line or None)


def _answered(answer: Any) -> Returned:
    """An answer in JSON; a number is one, too."""
    if answer is None or isinstance(answer, str):
        return Returned(answer=answer)
    if type(answer) in (int, float):
        return Returned(answer=json.dumps(answer))
    return _failed(f"the agent returned the answer {answer!r:.80}; it must be text or a number")


def read(value: Any) -> Returned:
    """An agent's return value: text, a number, an Outcome, or None."""
    if value is None:
        return Returned()
    if isinstance(value, str):
        return Returned(answer=value)
    outcome = value if isinstance(value, Outcome) else Outcome(value)
    if outcome is not value and not hasattr(value, "__float__"):
        return _failed(f"the agent returned a {type(value).__name__}; return text, a number, mem1.Outcome or None")
    what = "reward"
    try:
        reward, metrics = float(number(outcome.reward)), dict[str, Metric]()
        for name, measured in outcome.metrics.items():
            what = f"metric {name!r}"
            metrics[name] = measurement(measured)
    except ValueError as error:
        return _failed(f"the agent returned a {what} that is {error}")
    return Returned(reward=reward, metrics=metrics)


def _failed(why: str) -> Returned:
    return Returned(failed=(Ended.AGENT_FAILED, one_line(why)))


def _late(limit_s: float) -> Returned:
    return Returned(failed=(Ended.OUT_OF_TIME, f"the agent did not return within {limit_s:g} s"))


MADE_BY = "agent "
"""Prefix of the memory's name where an agent made the contexts."""


class AgentConfig(Config):
    """`[agent]` of a recipe: who makes the attempts. Give either `entry` or `command`."""

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
