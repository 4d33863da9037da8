"""Tasks whose questions depend on one another: which question refers to the answers of which.

    chain        Q1 Who founded Alvex?  Q2 Where was the answer to Q1 born?              Q3 ... the answer to Q2 ...
    shared       Q1 Who founded Alvex?  Q2 Where was the answer to Q1 born?              Q3 ... the answer to Q1 ...
    comparison   Q1 Who founded Alvex?  Q2 Who owns Berl?     Q3 Which comes first, the answer to Q1 or to Q2?

The depth of a question is the length of the longest chain of references that leads to it; the depth of a task is that
of its deepest question. A task consists of groups: `groups` says how questions refer to one another, a `Material` (an
Atlas world, real questions, clozes) fills each group, and `compose_dependent` numbers the questions of all groups in
one random order in which every reference points backwards.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from mem1.errors import UserError
from mem1.records import Question, Task
from mem1.tasks.compose import TaskTemplate, compose

Dependence = Literal["chain", "shared", "comparison"]
"""`chain`: each question refers to the answer of the previous one. `shared`: two questions are about the same entity,
the answer of an earlier question. `comparison`: a question chooses between the answers of two earlier ones."""
Composition = Literal["independent", "chain", "shared", "comparison"]

Group = tuple[tuple[int, ...], ...]
"""Per question of a group, the positions (from 0) of the questions whose answers it refers to."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A question whose references are not numbered yet."""

    question: Question
    """The question as it would be asked alone, with names in place of references."""
    parts: tuple[str, ...]
    """The text around the references: one part more than there are references."""


class Material(ABC):
    """The questions that groups are filled with."""

    tries: ClassVar[int] = 200
    """Attempts to fill a group; chance may lead to a question twice, or to answers that cannot be compared."""
    reference: ClassVar[str] = "the answer to Q{}"

    @abstractmethod
    def attempt(self, group: Group, taken: frozenset[str], rng: random.Random) -> list[Draft]:
        """Questions that refer to one another as `group` says, or fewer if chance led nowhere."""

    @abstractmethod
    def shortage(self, size: int) -> str:
        """Why no group of this size could be filled, and what to do about it."""

    def draw(self, group: Group, taken: frozenset[str], rng: random.Random) -> list[Draft]:
        """Questions that refer to one another as `group` says, none with an id in `taken`.

        Raises UserError if there are none.
        """
        for _ in range(self.tries):
            drafts = self.attempt(group, taken, rng)
            ids = {draft.question.id for draft in drafts}
            if len(drafts) == len(group) == len(ids) and not ids & taken:
                return drafts
        raise UserError(self.shortage(len(group)))

    def text(self, parts: Sequence[str], numbers: Sequence[int]) -> str:
        """("Where was ", " born?") and (1,) -> "Where was the answer to Q1 born?" """
        pairs = zip(numbers, parts[1:], strict=True)
        return parts[0] + "".join(f"{self.reference.format(number)}{part}" for number, part in pairs)


def check_depth(composition: str, depth: int | None) -> None:
    """Raises ValueError for a depth with questions that do not depend on one another."""
    if composition not in ("chain", "shared", "comparison") and depth is not None:
        raise ValueError(f"depth applies to the compositions chain, shared and comparison, not to {composition}")


def smallest(dependence: Dependence, depth: int) -> int:
    """The smallest number of questions for this depth: chain d + 1, shared and comparison d + 2."""
    return depth + (1 if dependence == "chain" else 2)


def groups(dependence: Dependence, objectives: int, depth: int) -> list[Group]:
    """The groups of a task: as many of the full depth as fit, then one as deep as possible, then single questions.

        groups("chain", 5, 2)       ->  [((), (0,), (1,)), ((), (0,))]
        groups("shared", 4, 2)      ->  [((), (0,), (1,), (1,))]
        groups("comparison", 4, 1)  ->  [((), (), (0, 1)), ((),)]

    Raises UserError for too few questions.
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
    """Tasks of this composition, from independent `questions` or from groups of the same questions in `material`.

    `depth` None: 1 for dependent questions. Raises UserError as `compose` and `compose_dependent` do.
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
    """The first `count` tasks of the endless sequence that `seed` determines, without repeated questions in a task.

    Raises UserError for too few objectives for the depth, or too little material.
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
