"""N clozes of different passages joined into one task, real questions among them where they are wanted.

    compose_clozes(clozes, [], form, share=0.0, objectives=2, count=3, seed=0)
    -> "own-n2-seed0-0", "own-n2-seed0-1", "own-n2-seed0-2", each of two clozes

The passages are shuffled and taken one after the other, one question of each; when all were taken they are shuffled
anew. So a task never has two questions of a passage, and every passage is asked about equally often.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence

from mem1.errors import UserError
from mem1.records import Question, Task
from mem1.scoring import normalize
from mem1.tasks.cloze.record import Ranked
from mem1.tasks.form import TaskForm

_Unit = tuple[str, Sequence[Question]]
"""What must not stand in a task twice, and its questions: a passage with its clozes, or one real question."""


def compose_clozes(
    clozes: Sequence[Ranked],
    real: Sequence[Question],
    form: TaskForm,
    *,
    share: float,
    objectives: int,
    count: int,
    seed: int,
) -> list[Task]:
    """The first `count` tasks of the sequence that `seed` fixes; each question is a real one with chance `share`.

    Raises UserError where a task would need more passages, or more different real questions, than there are.
    """
    passages, others = _by_passage(clozes), _by_text(real)
    if (share < 1 and len(passages) < objectives) or (share > 0 and len(others) < objectives):
        raise UserError(
            f"{objectives} objectives need {objectives} passages with clozes and, if mixed, as many real questions; "
            f"there are {len(passages)} and {len(others)}: lower the number of objectives or add text"
        )
    streams = _endless(passages, f"passages {seed}"), _endless(others, f"real {seed}")
    tasks: list[Task] = []
    for index in range(count):
        rng = random.Random(f"task {seed} {index}")
        chosen: dict[str, Question] = {}
        while len(chosen) < objectives:
            key, questions = next(streams[rng.random() < share])
            if key not in chosen:  # it can be, where one shuffle ends and the next begins
                chosen[key] = rng.choice(questions)
        tasks.append(form.task(f"n{objectives}-seed{seed}-{index}", tuple(chosen.values()), rng))
    return tasks


def _by_passage(clozes: Sequence[Ranked]) -> list[_Unit]:
    by_passage: defaultdict[str, list[Question]] = defaultdict(list)
    for cloze in clozes:
        by_passage[f"passage {cloze.passage}"].append(cloze.question)
    return list(by_passage.items())


def _by_text(real: Sequence[Question]) -> list[_Unit]:
    return list({f"text {normalize(q.text) or q.text}": [q] for q in real}.items())


def _endless(units: Sequence[_Unit], seed: str) -> Iterator[_Unit]:
    rng = random.Random(seed)
    while units:
        yield from rng.sample(units, len(units))
