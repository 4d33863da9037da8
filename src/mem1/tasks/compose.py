"""N questions joined into one task (MEM1, arXiv 2506.15841, section 3.3).

    compose(questions, TaskForm(prompt="plain", tags=PAPER), objectives=2, count=3, seed=0)
    -> three tasks "n2-seed0-0", "n2-seed0-1", "n2-seed0-2" of two questions each and 9 turns

Task i depends on the questions, the seed and i only: the questions are shuffled, cut into tasks of N, and when they
are used up (what does not fill a task is left over) shuffled anew.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from mem1.errors import UserError
from mem1.records import Question, Task
from mem1.scoring import normalize
from mem1.tasks.form import TaskForm


def compose(
    questions: Sequence[Question], form: TaskForm, *, objectives: int, count: int, seed: int, start: int = 0
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
    groups: Sequence[tuple[Question, ...]], form: TaskForm, *, objectives: int, count: int, seed: int
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
