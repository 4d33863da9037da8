"""A scripted policy for real questions: searches each question itself, then gives the gold answers.

It shows the protocol, not how to find anything: for smoke runs, demonstrations and checks on real text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from mem1.protocol import Tags
from mem1.records import Task


@dataclass(frozen=True, slots=True)
class GoldExpert:
    """Writes the next completion from the text of a context."""

    tags: Tags
    tasks: Iterable[Task]
    _by_prompt: dict[str, Task] = field(init=False, repr=False)
    _lengths: list[int] = field(init=False, repr=False)
    """Characters of the prompts, longest first."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_prompt", {_key(task.prompt): task for task in self.tasks})
        object.__setattr__(self, "_lengths", sorted({len(prompt) for prompt in self._by_prompt}, reverse=True))

    def __call__(self, context: str) -> str:
        """The completion for this context: a query or the answers. Raises StopIteration for an unknown task."""
        task = self._task(context)
        searches = re.findall(rf"<{self.tags.state}> Q(\d+) </{self.tags.state}>", context)
        done = int(searches[-1]) if searches else 0
        answer, search = self.tags.action_tags["answer"], self.tags.action_tags["search"]
        listed = "; ".join(f"Q{i} {q.answers[0]}" for i, q in enumerate(task.questions, start=1))
        if context.rstrip().endswith(f"<{answer}>"):
            return f" {listed} </{answer}>"
        if done == task.objectives:
            return f"<{self.tags.state}> done </{self.tags.state}> <{answer}> {listed} </{answer}>"
        query = task.questions[done].text
        return f"<{self.tags.state}> Q{done + 1} </{self.tags.state}> <{search}> {query} </{search}>"

    def _task(self, context: str) -> Task:
        folded = _key(context)
        # longest first: the prompt of one question may begin that of two
        return next(self._by_prompt[head] for n in self._lengths if (head := folded[:n]) in self._by_prompt)


def _key(text: str) -> str:
    return " ".join(text.split())
