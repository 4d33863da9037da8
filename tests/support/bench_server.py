"""A chat server for tests of the benchmark: a script answers, and the server misbehaves when it is told to."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from chat_servers import Reply, chat_server

from mem1.bench.chat import numbered
from mem1.bench.results import digest_of
from mem1.bench.scripted import scripted_chat
from mem1.bench.suites import Drawing, Drawn, Suite
from mem1.messages.bounds import tokens_of

FAULTS = ("refused", "cut", "no JSON", "error in place of an answer", "slow")


@dataclass
class ScriptServer:
    """Answers every conversation about a task of the suite as the scripted solver would."""

    suite: Suite
    seed: int = 0
    share: float = 0.0
    """Of the requests that meet a fault."""
    url: str = ""
    answered: Counter[str] = field(default_factory=Counter)
    """Digest of a request -> number of whole answers to it."""
    faults: Counter[str] = field(default_factory=Counter)
    on_answer: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        drawing = Drawing(self.suite, seed=self.seed, native=True)
        drawn = [drawing.of(cell) for cell in self.suite.cells]
        self._tasks: dict[str, Drawn] = {task.prompt: one for one in drawn for task in one.tasks}
        self._chance = random.Random(0)

    @property
    def total(self) -> int:
        """Whole answers."""
        return sum(self.answered.values())

    def wait_for(self, answers: int, seconds: float = 120.0) -> bool:
        """Waits until there have been so many."""
        with self.on_answer:
            return self.on_answer.wait_for(lambda: self.total >= answers, seconds)

    def behave(self, body: dict[str, Any], number: int) -> Reply:
        completion, digest = self.completion(body), digest_of([numbered(body["messages"]), body["tools"]])
        with self.on_answer:
            fault = self._chance.choice(FAULTS) if self._chance.random() < self.share else None
            self.faults.update([fault] if fault else [])
            if fault in (None, "slow"):
                self.answered[digest] += 1
                self.on_answer.notify_all()
        whole = json.dumps(completion).encode()
        if fault == "refused":
            return Reply("", status=random.Random(number).choice((429, 500, 503)))
        if fault == "cut":
            return Reply("", body=whole[: len(whole) // 2], headers={"Content-Length": str(len(whole))})
        if fault == "no JSON":
            return Reply("", body=b"<html>" + whole)
        if fault == "error in place of an answer":
            return Reply("", body=b'{"error": {"message": "overloaded"}}')
        return Reply("", body=whole, hangs_s=0.05 if fault else 0.0)

    def completion(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = body["messages"][0]["content"]
        drawn = next(one for task, one in self._tasks.items() if prompt.startswith(task))
        said, _ = scripted_chat(drawn)(body["messages"], body["tools"])
        message = said["choices"][0]["message"]
        usage = {"prompt_tokens": tokens_of(body["messages"], len), "completion_tokens": tokens_of([message], len)}
        return {"object": "chat.completion", **said, "usage": usage}


@contextmanager
def script_server(suite: Suite, *, share: float = 0.0) -> Iterator[ScriptServer]:
    """A running one."""
    made = ScriptServer(suite, share=share)
    with chat_server(made.behave) as server:
        made.url = server.url
        yield made
