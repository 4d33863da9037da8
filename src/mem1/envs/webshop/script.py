"""The shop's expert as a script that writes completions: demonstrations by the ordinary loop.

What it decides follows from the task alone, so each task is shopped through at once, and the turns left, which a result
says, tell which decision comes next.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from mem1.envs.webshop.env import WebShopEnvironment
from mem1.envs.webshop.experts import ShopExpert, demonstrate
from mem1.protocol import ACT, Tags
from mem1.records import Task


@dataclass(frozen=True, slots=True)
class ShopScript:
    """Writes the next completion from the text of a context. Raises ValueError for goals that are not invented."""

    expert: ShopExpert
    environment: WebShopEnvironment
    tasks: Sequence[Task]
    tags: Tags
    _by_prompt: dict[str, tuple[int, tuple[str, ...]]] = field(init=False, repr=False)
    """Prompt without spaces, in lower case -> turn limit, completions."""
    _lengths: list[int] = field(init=False, repr=False)
    """Characters of the prompts, longest first."""

    def __post_init__(self) -> None:
        by_prompt = {_key(task.prompt): (task.turn_limit, self._completions(task)) for task in self.tasks}
        object.__setattr__(self, "_by_prompt", by_prompt)
        object.__setattr__(self, "_lengths", sorted({len(prompt) for prompt in by_prompt}, reverse=True))

    def __call__(self, context: str) -> str:
        """The completion for this context. Raises StopIteration for an unknown task."""
        folded = _key(context)
        # longest first: the prompt of one goal may begin that of two
        head = next(folded[:n] for n in self._lengths if folded[:n] in self._by_prompt)
        limit, completions = self._by_prompt[head]
        left = re.findall(rf"\[{self.tags.hint.lower()}\]\D*(\d+)turn", folded[len(head) :])
        return completions[limit - int(left[-1]) if left else 0]

    def _completions(self, task: Task) -> tuple[str, ...]:
        goals = [self.environment.goals[question.id] for question in task.questions]
        _, decisions = demonstrate(self.expert, self.environment.shop, goals, task.turn_limit)
        state, action = self.tags.state, self.tags.action_tags[ACT]
        return tuple(f"<{state}> {d.state} </{state}> <{action}> {d.action} </{action}>" for d in decisions)


def _key(text: str) -> str:
    return "".join(text.lower().split())
