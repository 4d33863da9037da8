"""What all tasks of one source share: prompt, tags, turn limit, labels.

TaskTemplate(prompt="plain", tags=PAPER).task("n2-0", questions, rng)              Q1 Who founded ... Q2 Where is ...
TaskTemplate(prompt="plain", tags=PAPER, labels=40).task("n2-0", questions, rng)   Q7 Who founded ... Q31 Where is ...
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field, model_validator

from mem1.configuration import Config
from mem1.configuration.model import MOST_OBJECTIVES
from mem1.errors import UserError
from mem1.protocol import Tags
from mem1.records import Question, Task
from mem1.tasks.prompts import PromptChoice, render


class TurnLimit(Config):
    """Maximum number of turns of a task by its number of questions: 3N + 3, another line, or a table.

    TurnLimit(up_to={4: 6}, per_objective=0, extra=20)      6 turns up to four questions, 20 beyond
    """

    up_to: dict[Annotated[int, Field(ge=1, le=MOST_OBJECTIVES)], Annotated[int, Field(ge=1)]] = Field(default={})
    """Largest number of questions -> turns; larger tasks have `per_objective * N + extra`."""
    per_objective: int = Field(default=3, ge=0)
    extra: int = Field(default=3, ge=0)
    """Additional turns per task."""

    @model_validator(mode="after")
    def _every_task_has_a_turn(self) -> TurnLimit:
        if self.per_objective + self.extra < 1:
            raise ValueError("per_objective and extra are both 0: a task beyond up_to would have no turn; raise one")
        return self

    def turns(self, objectives: int) -> int:
        fitting = [size for size in self.up_to if objectives <= size]
        return self.up_to[min(fitting)] if fitting else self.per_objective * objectives + self.extra


@dataclass(frozen=True, kw_only=True)
class TaskTemplate:
    """Turns questions into a task: the properties that all tasks of one source share."""

    prompt: PromptChoice
    """The prompt at the start of every context."""
    tags: Tags
    turn_limit: TurnLimit = field(default_factory=TurnLimit)
    corpus: str = ""
    """Name of the collection that the tasks search; their ids begin with it."""
    labels: int | None = None
    """Largest label: each task draws its labels, which increase, from 1 to this; None: 1 to N."""

    def drawn_labels(self, name: str, objectives: int) -> tuple[int, ...]:
        """The labels of the task "corpus-name"; none: 1 to N. Raises UserError for more questions than labels."""
        if self.labels is None:
            return ()
        if objectives > self.labels:
            raise UserError(f"{objectives} questions need as many labels; raise tasks.labels, now {self.labels}")
        rng = random.Random(f"labels {self.corpus} {name}")
        return tuple(sorted(rng.sample(range(1, self.labels + 1), objectives)))

    def task(self, name: str, questions: tuple[Question, ...], rng: random.Random) -> Task:
        """The task "corpus-name" of these questions, with a seed drawn from `rng`."""
        labels = self.drawn_labels(name, len(questions))
        return Task(
            id="-".join(filter(None, (self.corpus, name))),
            questions=questions,
            prompt=render(self.prompt, questions, self.tags, labels),
            turn_limit=self.turn_limit.turns(len(questions)),
            corpus=self.corpus,
            seed=rng.getrandbits(31),
            labels=labels,
        )
