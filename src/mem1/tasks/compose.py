"""Questions joined into tasks (MEM1, arXiv 2506.15841, section 3.3).

    compose(questions, TaskTemplate(prompt="plain", tags=PAPER), objectives=2, count=3, seed=0)
    -> three tasks "n2-seed0-0", "n2-seed0-1", "n2-seed0-2" of two questions each and 9 turns

Task i depends only on the questions, the seed and i: the questions are shuffled and cut into tasks of `objectives`;
when they are used up (a remainder is dropped), they are shuffled again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pydantic import Field

from mem1.configuration import Config
from mem1.errors import UserError
from mem1.protocol import Tags
from mem1.records import Question, Task
from mem1.scoring import normalize
from mem1.tasks.prompts import render


class TurnLimit(Config):
    """Maximum number of turns of a task, as a function of its number of questions.

    TurnLimit().turns(2)  ->  9
    """

    per_objective: int = Field(default=3, ge=1)
    """Turns per question."""
    extra: int = Field(default=3, ge=0)
    """Additional turns per task."""

    def turns(self, objectives: int) -> int:
        return self.per_objective * objectives + self.extra


@dataclass(frozen=True, kw_only=True)
class TaskTemplate:
    """Turns questions into a task: the properties that all tasks of one source share."""

    prompt: str
    """Name of the prompt at the start of every context."""
    tags: Tags
    turn_limit: TurnLimit = field(default_factory=TurnLimit)
    corpus: str = ""
    """Name of the collection that the tasks search; their ids begin with it."""

    def task(self, name: str, questions: tuple[Question, ...], rng: random.Random) -> Task:
        """The task "corpus-name" of these questions, with a seed drawn from `rng`."""
        return Task(
            id="-".join(filter(None, (self.corpus, name))),
            questions=questions,
            prompt=render(self.prompt, questions, self.tags),
            turn_limit=self.turn_limit.turns(len(questions)),
            corpus=self.corpus,
            seed=rng.getrandbits(31),
        )


def compose(
    questions: Sequence[Question], form: TaskTemplate, *, objectives: int, count: int, seed: int, start: int = 0
) -> list[Task]:
    """Tasks `start` to `start + count - 1` of the endless sequence that `seed` determines.

    No task has two questions with the same normalised text. Raises UserError for fewer than `objectives` different
    questions.
    """
    if objectives < 1 or count < 0 or start < 0:
        raise UserError(f"objectives must be at least 1, count and start at least 0: {objectives}, {count}, {start}")
    if objectives > len(questions):
        raise UserError(
            f"{objectives} objectives need {objectives} different questions, but there are {len(questions)}; "
            "lower the number of objectives or add questions"
        )
    tasks: list[Task] = []
    for index, drawn in zip(range(start, start + count), _draws(questions, objectives, seed, start), strict=False):
        chosen = _without_repeats(drawn, questions, random.Random(f"replace {seed} {index}"))
        rng = random.Random(f"task {seed} {index}")
        tasks.append(form.task(f"n{objectives}-seed{seed}-{index}", chosen, rng))
    return tasks


def _draws(questions: Sequence[Question], objectives: int, seed: int, start: int) -> Iterator[list[Question]]:
    """The endless sequence of draws, from number `start`."""
    per_shuffle = len(questions) // objectives
    shuffles, offset = divmod(start, per_shuffle)
    while True:
        order = list(range(len(questions)))
        random.Random(f"shuffle {seed} {shuffles}").shuffle(order)
        for draw in range(offset, per_shuffle):
            yield [questions[i] for i in order[draw * objectives : (draw + 1) * objectives]]
        shuffles, offset = shuffles + 1, 0


def _without_repeats(drawn: Sequence[Question], pool: Sequence[Question], rng: random.Random) -> tuple[Question, ...]:
    """The draw, with repeated questions replaced by others from the pool."""
    chosen: dict[str, Question] = {}
    for question in drawn:
        chosen.setdefault(_same(question), question)
    if len(chosen) < len(drawn):
        for i in rng.sample(range(len(pool)), len(pool)):
            chosen.setdefault(_same(pool[i]), pool[i])
            if len(chosen) == len(drawn):
                break
        else:
            raise UserError(
                f"{len(drawn)} objectives need {len(drawn)} different questions, but there are {len(chosen)} (texts "
                "that differ only in case, articles or punctuation count once); lower the number of objectives"
            )
    return tuple(chosen.values())


def as_composed(
    groups: Sequence[tuple[Question, ...]], form: TaskTemplate, *, objectives: int, count: int, seed: int
) -> list[Task]:
    """`count` of the given groups with `objectives` questions, as tasks, in an order that `seed` determines.

    Raises UserError if there are fewer.
    """
    fitting = [number for number, group in enumerate(groups) if len(group) == objectives]
    if len(fitting) < count:
        sizes = ", ".join(str(size) for size in sorted({len(group) for group in groups}))
        raise UserError(
            f"the file has {len(fitting)} tasks of {objectives} objectives, not {count} (its tasks have {sizes}); "
            "request fewer tasks or another number of objectives"
        )
    random.Random(f"as composed {seed}").shuffle(fitting)
    return [
        form.task(f"file-n{objectives}-seed{seed}-{number}", groups[number], random.Random(f"task {seed} {number}"))
        for number in fitting[:count]
    ]


def check_disjoint(train: Sequence[Question], evaluation: Sequence[Question]) -> None:
    """Raises UserError, with examples, if both sides of a split share a question's text or id.

    Questions that depend on others are compared only by their ids, because their texts say too little.
    """
    texts = {_same(q) for q in train if not q.depends_on}
    ids = {q.id for q in train}
    shared = [q for q in evaluation if q.id in ids or (not q.depends_on and _same(q) in texts)]
    if shared:
        examples = "; ".join(f"{q.id!r} ({q.text})" for q in shared[:3])
        raise UserError(
            f"{len(shared)} of {len(evaluation)} evaluation questions are also training questions, by text or id: "
            f"{examples}; take them out of one side"
        )


def question_keys(task: Task) -> tuple[str, ...]:
    """A key per question, equal for equal questions about the same collection, in this task or another.

    Questions are equal if their normalised texts are, or, if they depend on others, their ids.
    """
    return tuple(f"{task.corpus}/{f'id {q.id}' if q.depends_on else _same(q)}" for q in task.questions)


def different(tasks: Sequence[Task]) -> list[Task]:
    """The tasks, without repetitions of the same questions in the same order about the same collection."""
    found: dict[tuple[tuple[str, str], ...], Task] = {}
    for task in tasks:
        texts = (q.text if q.depends_on else "" for q in task.questions)
        found.setdefault(tuple(zip(question_keys(task), texts, strict=True)), task)
    return list(found.values())


def _same(question: Question) -> str:
    """Key of equal questions; a text of nothing but punctuation is its own key."""
    return normalize(question.text) or question.text
