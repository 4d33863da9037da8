"""What the tasks of one source have in common besides their questions: prompt, tags, turns, collection."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from pydantic import Field

from mem1.configuration import Config
from mem1.protocol import Tags
from mem1.records import Question, Task
from mem1.tasks.prompts import render


class TurnLimit(Config):
    """The turns that a task may take, as a function of its number of questions.

    TurnLimit().turns(2)  ->  9
    """

    per_objective: int = Field(default=3, ge=1)
    """Turns for each question."""
    extra: int = Field(default=3, ge=0)
    """Turns on top of them, whatever the number of questions."""

    def turns(self, objectives: int) -> int:
        return self.per_objective * objectives + self.extra


@dataclass(frozen=True, kw_only=True)
class TaskForm:
    """Makes a task of questions."""

    prompt: str
    """Name of the prompt at the head of every context."""
    tags: Tags
    turn_limit: TurnLimit = field(default_factory=TurnLimit)
    corpus: str = ""
    """Name of the collection that the tasks search, with which their ids begin."""

    def task(self, name: str, questions: tuple[Question, ...], rng: random.Random) -> Task:
        """These questions as one task, "corpus-name", with a seed that is drawn."""
        return Task(
            id="-".join(filter(None, (self.corpus, name))),
            questions=questions,
            prompt=render(self.prompt, questions, self.tags),
            turn_limit=self.turn_limit.turns(len(questions)),
            corpus=self.corpus,
            seed=rng.getrandbits(31),
        )
