"""The one tool of an attempt in chat messages: `search`, or `act` in a shop, with what is left of it.

    tools.replied(completion)               what the model has just called
    tools.call({"query": "Moru Kest"})      "[3 searches left]\\nMoru Kest, a harbour town ..."

An agent runs the calls of one reply at the same time. Here they are answered in the order of the reply, whichever comes
first, so that the same replies always get the same results.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from mem1.agent.tools import ToolFailed
from mem1.bench.suites import Drawn
from mem1.envs.base import Action
from mem1.net.exchange import one_line, read_json
from mem1.protocol import ACT
from mem1.records import Ended, Task

_SEARCH = ("search", "query", "Searches the passages.", "A few words.", ("search", "searches"))
_ACT = ("act", "action", "Takes one action in the shop.", "search[words] or click[text].", ("action", "actions"))


class Tools:
    """Of one attempt. Thread-safe."""

    def __init__(self, drawn: Drawn, task: Task, *, history: Sequence[tuple[str, str]] = ()) -> None:
        """`history`: that of an attempt to go on with."""
        acts = drawn.action == ACT
        self._name, self._parameter, about, what, self._nouns = _ACT if acts else _SEARCH
        self._environment, self._kind, self._task = drawn.environment, drawn.action, task
        self.declared: dict[str, Any] = {
            "name": self._name,
            "description": about,
            "parameters": {
                "type": "object",
                "properties": {self._parameter: {"type": "string", "description": what}},
                "required": [self._parameter],
            },
        }
        self.left = (task.turn_limit if acts else task.turn_limit - 1) - len(history)
        """Calls that are still answered; after the last search the answer is due."""
        self.used = 0
        """Calls that were answered."""
        self.answer = ""
        """What actions have made up so far, such as purchases."""
        self.over: tuple[Ended, str] | None = None
        """Set when no further turn is due: how the attempt has ended, and why."""
        self.broken: Exception | None = None
        """What the environment raised, which is no result."""
        self.history = list(history)
        """(action, argument) of the calls that reached the environment."""
        self._called: list[str] = []
        """Arguments of the calls of the last reply that are not answered yet, in order."""
        self._answers: list[tuple[str, str]] = []
        """(argument, result) of those that are, and have not been fetched."""
        self._lock = threading.Lock()

    def replied(self, completion: Mapping[str, Any]) -> None:
        """Tell what the model has said."""
        self._called, self._answers = _arguments(completion, self._name, self._parameter), []

    def call(self, given: dict[str, Any]) -> str:
        """The result of a call. Raises ToolFailed, with what the model should know, for one without an argument."""
        argument = given.get(self._parameter)
        if not isinstance(argument, str) or not argument.strip():
            raise ToolFailed(f"{self._name} needs the argument {self._parameter}, a text that is not empty")
        with self._lock:
            while self._called:
                called = self._called.pop(0)
                self._answers.append((called, self._answered(called)))
            places = [place for place, (called, _) in enumerate(self._answers) if called == argument]
            return self._answers.pop(places[0])[1] if places else self._answered(argument)

    def _answered(self, argument: str) -> str:
        if self.over is not None or self.left == 0:
            due = "" if self._kind == ACT else "; write a message with your answers now, and no call"
            return f"error: no {self._nouns[1]} are left{due}"
        self.left -= 1
        try:
            (seen,) = self._environment.observe([Action(self._task, self._kind, argument, tuple(self.history))])
        except Exception as error:  # a fault of ours must not become a result
            self.broken, self.over = error, (Ended.TOOL_FAILED, "")
            return "error"
        self.history.append((self._kind, argument))
        if seen.failed is not None:
            self.over = Ended.TOOL_FAILED, seen.failed
            return f"error: {seen.failed}"
        self.used += 1
        if seen.answer is not None:
            self.answer = seen.answer
        if seen.ended:
            self.over = Ended.ANSWERED, "" if self._kind == ACT else one_line(seen.text)
        elif self._kind == ACT and self.left == 0:
            self.over = Ended.OUT_OF_TURNS, ""
        return f"[{self._told()}]\n{seen.text}"

    def _told(self) -> str:
        if self.left == 0 and self._kind != ACT:
            return f"No {self._nouns[1]} are left; your answers are due now"
        return f"{self.left} {self._nouns[self.left != 1]} left"


def _arguments(completion: Mapping[str, Any], name: str, parameter: str) -> list[str]:
    """The arguments of the usable calls of the tool, in order; whatever else a model writes is not among them."""
    found: list[str] = []
    for call in _calls(completion):
        try:
            function = call["function"]
            given = function["arguments"]
            given = read_json(given) if isinstance(given, str) else given
            if function["name"] == name and isinstance(given[parameter], str) and given[parameter].strip():
                found.append(given[parameter])
        except (LookupError, TypeError, ValueError):
            continue
    return found


def _calls(completion: Mapping[str, Any]) -> list[Any]:
    try:
        return list(completion["choices"][0]["message"].get("tool_calls") or [])
    except (LookupError, TypeError, AttributeError):
        return []
