"""Tasks whose questions depend on one another: which question speaks of the answers of which.

    chain        Q1 Who founded Alvex?  Q2 Where was the answer to Q1 born?              Q3 ... the answer to Q2 ...
    shared       Q1 Who founded Alvex?  Q2 Where was the answer to Q1 born?              Q3 ... the answer to Q1 ...
    comparison   Q1 Who founded Alvex?  Q2 Who owns Berl?     Q3 Which comes first, the answer to Q1 or to Q2?

The depth of a question is the longest chain of references behind it; of a task, that of its deepest question. A task
is put together from groups: `groups` says how questions refer to one another, a `Material` (an Atlas world, a set of
real questions) fills a group, and `compose_dependent` numbers the questions of all groups in one random order in
which every reference points backwards.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from mem1.errors import UserError
from mem1.records import Question, Task
from mem1.tasks.compose import TaskTemplate, compose

Dependence = Literal["chain", "shared", "comparison"]
"""`chain`: each question speaks of the answer of the one before. `shared`: two questions are about one entity, which
an earlier question has to find. `comparison`: a question chooses between the answers of two earlier ones."""
Composition = Literal["independent", "chain", "shared", "comparison"]

Group = tuple[tuple[int, ...], ...]
"""Per question of a group, the positions in the group (from 0) of those whose answers it speaks of."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A question whose references have no numbers yet."""

    question: Question
    """With its text as it would be asked alone: the names in place of the references."""
    parts: tuple[str, ...]
    """The text around the references, one part more than there are references."""


class Material(Protocol):
    """Where the questions of a group come from."""

    def draw(self, group: Group, taken: frozenset[str], rng: random.Random) -> list[Draft]:
        """Questions that refer to one another as `group` says, none with an id of `taken`.

        Raises UserError where there are none.
        """
        ...

    def text(self, parts: Sequence[str], numbers: Sequence[int]) -> str:
        """The parts with references to the questions of these numbers between them."""
        ...


def check_depth(composition: str, depth: int | None) -> None:
    """Raises ValueError where a depth is given for questions that do not depend on one another."""
    if composition not in ("chain", "shared", "comparison") and depth is not None:
        raise ValueError(f"depth goes with the compositions chain, shared and comparison, not with {composition}")


def smallest(dependence: Dependence, depth: int) -> int:
    """The fewest questions of a task of this depth: chain d + 1, shared and comparison d + 2."""
    return depth + (1 if dependence == "chain" else 2)


def groups(dependence: Dependence, objectives: int, depth: int) -> list[Group]:
    """The groups of a task: as many as fit of the full depth, then one as deep as the rest allows, then singles.

        groups("chain", 5, 2)       ->  [((), (0,), (1,)), ((), (0,))]
        groups("shared", 4, 2)      ->  [((), (0,), (1,), (1,))]
        groups("comparison", 4, 1)  ->  [((), (), (0, 1)), ((),)]

    Raises UserError where there are too few questions for the depth.
    """
    size = smallest(dependence, depth)
    if objectives < size:
        raise UserError(
            f"depth {depth} of composition {dependence} needs at least {size} objectives, not {objectives}; raise the "
            "number of objectives or lower the depth"
        )
    full, rest = divmod(objectives, size)
    made = [_group(dependence, size)] * full
    if rest >= smallest(dependence, 1):
        return [*made, _group(dependence, rest)]
    return made + [((),)] * rest


def _group(dependence: Dependence, size: int) -> Group:
    if dependence == "chain":
        return ((), *((i,) for i in range(size - 1)))
    stem: Group = ((), *((i,) for i in range(size - 3)))
    end = len(stem) - 1
    return (*stem, (end,), (end,)) if dependence == "shared" else (*stem, (), (end, end + 1))


def compose_as(
    composition: Composition,
    depth: int | None,
    *,
    questions: Sequence[Question],
    material: Material,
    form: TaskTemplate,
    objectives: int,
    count: int,
    seed: int,
) -> list[Task]:
    """Tasks of this composition: of `questions` as they are, or of groups of the same questions in `material`.

    `depth` None: 1 where the questions depend on one another. Raises UserError as `compose` and `compose_dependent`.
    """
    if composition == "independent":
        return compose(questions, form, objectives=objectives, count=count, seed=seed)
    return compose_dependent(
        material, form, dependence=composition, depth=depth or 1, objectives=objectives, count=count, seed=seed
    )


def compose_dependent(
    material: Material,
    form: TaskTemplate,
    *,
    dependence: Dependence,
    depth: int,
    objectives: int,
    count: int,
    seed: int,
) -> list[Task]:
    """The first `count` tasks of the endless sequence that `seed` fixes; no question stands twice in a task.

    Raises UserError where there are too few objectives for the depth, or too little material.
    """
    shapes = groups(dependence, objectives, depth)
    name = f"{dependence}{depth}-n{objectives}-seed{seed}"
    tasks: list[Task] = []
    for index in range(count):
        rng = random.Random(f"dependent {dependence} {depth} {objectives} {seed} {index}")
        drawn: list[list[Draft]] = []
        for shape in shapes:
            taken = frozenset(draft.question.id for drafts in drawn for draft in drafts)
            drawn.append(material.draw(shape, taken, rng))
        questions = _numbered(shapes, drawn, material, rng)
        tasks.append(form.task(f"{name}-{index}", questions, rng))
    return tasks


def _numbered(
    shapes: Sequence[Group], drawn: Sequence[Sequence[Draft]], material: Material, rng: random.Random
) -> tuple[Question, ...]:
    """The questions of all groups in a random order that keeps the order within each group."""
    turns = [group for group, drafts in enumerate(drawn) for _ in drafts]
    rng.shuffle(turns)
    numbers: list[list[int]] = [[] for _ in drawn]
    questions: list[Question] = []
    for number, group in enumerate(turns, start=1):
        position = len(numbers[group])
        numbers[group].append(number)
        earlier = [numbers[group][reference] for reference in shapes[group][position]]
        draft = drawn[group][position]
        text = material.text(draft.parts, earlier)
        questions.append(replace(draft.question, text=text, depends_on=tuple(earlier)))
    return tuple(questions)
