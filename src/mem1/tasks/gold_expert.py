"""A scripted policy for real questions: searches each question itself, then gives the gold answers.

It demonstrates the protocol, not how to find anything: for smoke runs, demonstrations and checks on real text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mem1.protocol import Tags
from mem1.records import Task

T = TypeVar("T")


class ByPrompt(Generic[T]):
    """Finds what belongs to the prompt that a context begins with, such as its task."""

    def __init__(self, values: Iterable[tuple[str, T]], fold: Callable[[str], str]) -> None:
        """(prompt, value) pairs; prompts are compared after `fold`, as a tokenizer may change their white space."""
        self._fold = fold
        self._values = {fold(prompt): value for prompt, value in values}
        # longest first: the prompt of one question may be the beginning of a prompt of two
        self._lengths = sorted({len(prompt) for prompt in self._values}, reverse=True)

    def find(self, context: str) -> tuple[T, str]:
        """The value and the folded rest of the context. Raises StopIteration for an unknown prompt."""
        folded = self._fold(context)
        length = next(length for length in self._lengths if folded[:length] in self._values)
        return self._values[folded[:length]], folded[length:]


@dataclass(frozen=True, slots=True)
class GoldExpert:
    """Writes the next completion from the text of a context."""

    tags: Tags
    tasks: Iterable[Task]
    _by_prompt: ByPrompt[Task] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        by_prompt = ByPrompt(((task.prompt, task) for task in self.tasks), lambda text: " ".join(text.split()))
        object.__setattr__(self, "_by_prompt", by_prompt)

    def __call__(self, context: str) -> str:
        """The next query, or the answers after the last one. Raises StopIteration for an unknown task."""
        task, _ = self._by_prompt.find(context)
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
