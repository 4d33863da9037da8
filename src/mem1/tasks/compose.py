"""What the tasks of one source have in common besides their questions: prompt, tags, turns, collection."""

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
class TaskTemplate:
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


def compose(
    questions: Sequence[Question], form: TaskTemplate, *, objectives: int, count: int, seed: int, start: int = 0
) -> list[Task]:
    """Tasks number `start` to `start + count - 1` of the endless sequence that `seed` fixes.

    No task holds two questions whose texts are the same after normalisation. Raises UserError where there are fewer
    than `objectives` different questions.
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
    """The draws from number `start` on, without end."""
    per_shuffle = len(questions) // objectives
    shuffles, offset = divmod(start, per_shuffle)
    while True:
        order = list(range(len(questions)))
        random.Random(f"shuffle {seed} {shuffles}").shuffle(order)
        for draw in range(offset, per_shuffle):
            yield [questions[i] for i in order[draw * objectives : (draw + 1) * objectives]]
        shuffles, offset = shuffles + 1, 0


def _without_repeats(drawn: Sequence[Question], pool: Sequence[Question], rng: random.Random) -> tuple[Question, ...]:
    """The draw, with each question that repeats an earlier one replaced by another of the pool."""
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
    """`count` different tasks of the groups that have `objectives` questions, in an order that `seed` fixes.

    Raises UserError where there are fewer.
    """
    fitting = [number for number, group in enumerate(groups) if len(group) == objectives]
    if len(fitting) < count:
        sizes = ", ".join(str(size) for size in sorted({len(group) for group in groups}))
        raise UserError(
            f"{count} tasks of {objectives} objectives are asked for, but the file holds {len(fitting)} (its tasks "
            f"have {sizes}); ask for fewer tasks or another number of objectives"
        )
    random.Random(f"as composed {seed}").shuffle(fitting)
    return [
        form.task(f"file-n{objectives}-seed{seed}-{number}", groups[number], random.Random(f"task {seed} {number}"))
        for number in fitting[:count]
    ]


def check_disjoint(train: Sequence[Question], evaluation: Sequence[Question]) -> None:
    """Raises UserError, with examples, where a question's text or id stands on both sides of a split.

    The text of a question that depends on others says too little to be compared; its id counts.
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
    """What tells each question of a task from others, of this task and of others that search the same collection.

    Two texts that are the same after normalisation are one question. The text of a question that depends on others
    says too little; its id counts.
    """
    return tuple(f"{task.corpus}/{f'id {q.id}' if q.depends_on else _same(q)}" for q in task.questions)


def different(tasks: Sequence[Task]) -> list[Task]:
    """The tasks without those that ask what an earlier one asks, in the same order of the same collection."""
    found: dict[tuple[tuple[str, str], ...], Task] = {}
    for task in tasks:
        texts = (q.text if q.depends_on else "" for q in task.questions)
        found.setdefault(tuple(zip(question_keys(task), texts, strict=True)), task)
    return list(found.values())


def _same(question: Question) -> str:
    """Key under which two questions count as the same; a text of nothing but punctuation stands for itself."""
    return normalize(question.text) or question.text
