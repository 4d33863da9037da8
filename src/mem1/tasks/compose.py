"""Questions divided into halves and joined into tasks (MEM1, arXiv 2506.15841, section 3.3).

    compose(questions, TaskTemplate(prompt="plain", tags=PAPER), objectives=2, count=3, seed=0)
    -> three tasks "n2-seed0-0", "n2-seed0-1", "n2-seed0-2" of two questions each and 9 turns

Task i depends only on the questions, the seed and i: the questions are shuffled and cut into tasks of `objectives`;
when they are used up (a remainder is dropped), they are shuffled again. Questions may refer to others of their task:

    chain        Q1 Who founded Alvex?  Q2 Where was the answer to Q1 born?              Q3 ... the answer to Q2 ...
    shared       Q1 Who founded Alvex?  Q2 Where was the answer to Q1 born?              Q3 ... the answer to Q1 ...
    comparison   Q1 Who founded Alvex?  Q2 Who owns Berl?     Q3 Which comes first, the answer to Q1 or to Q2?

The depth of a question is the length of the longest chain of references that leads to it; the depth of a task is that
of its deepest question. A task consists of groups: `groups` says how questions refer to one another, a `Material` (an
Atlas world, real questions, clozes) fills each group, and `compose_dependent` numbers the questions of all groups in
one random order in which every reference points backwards.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

from mem1.errors import UserError
from mem1.records import Question, Task
from mem1.scoring import normalize
from mem1.tasks.prompts import TaskTemplate

Split = Literal["train", "evaluation"]
"""The half that a policy is trained on, and the half that it is evaluated on."""
Part = Literal["train", "development", "test"]
"""Three parts, where one of them is for choosing between policies and another for the final number."""
PARTS: tuple[Part, ...] = get_args(Part)
EVALUATION_SHARE = 0.1


def split_of(text: str, *, evaluation_share: float = EVALUATION_SHARE) -> Split:
    """The half of a question with this text. A larger share only moves questions from training to evaluation."""
    return "evaluation" if _fraction(text) < evaluation_share else "train"


def part_of(text: str, *, development: float, test: float) -> Part:
    """The part of a passage with this text. Larger shares only move passages out of training."""
    fraction = _fraction(text)
    if fraction < test:
        return "test"
    return "development" if fraction >= 1 - development else "train"


def _fraction(text: str) -> float:
    """A number in [0, 1) drawn by the normalised text."""
    key = (normalize(text) or text).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") / 2**64


def compose(questions: Sequence[Question], form: TaskTemplate, *, objectives: int, count: int, seed: int) -> list[Task]:
    """The first `count` tasks of the endless sequence that `seed` determines.

    No task has two questions with the same text (`same_text`). Raises UserError for fewer than `objectives` different
    questions.
    """
    if objectives < 1 or count < 0:
        raise UserError(f"objectives must be at least 1, count at least 0: {objectives}, {count}")
    if objectives > len(questions):
        raise UserError(
            f"{objectives} objectives need {objectives} different questions, but there are {len(questions)}; "
            "lower the number of objectives or add questions"
        )
    tasks: list[Task] = []
    for index, drawn in zip(range(count), _draws(questions, objectives, seed), strict=False):
        chosen = _without_repeats(drawn, questions, f"replace {seed} {index}")
        rng = random.Random(f"task {seed} {index}")
        tasks.append(form.task(f"n{objectives}-seed{seed}-{index}", chosen, rng))
    return tasks


def _draws(questions: Sequence[Question], objectives: int, seed: int) -> Iterator[list[Question]]:
    for shuffles in itertools.count():
        order = list(range(len(questions)))
        random.Random(f"shuffle {seed} {shuffles}").shuffle(order)
        for first in range(0, len(questions) - objectives + 1, objectives):
            yield [questions[i] for i in order[first : first + objectives]]


def _without_repeats(drawn: Sequence[Question], pool: Sequence[Question], seed: str) -> tuple[Question, ...]:
    """The draw, with repeated questions replaced by others from the pool, which the seed draws."""
    chosen: dict[str, Question] = {}
    for question in drawn:
        chosen.setdefault(same_text(question.text), question)
    if len(chosen) < len(drawn):
        for i in random.Random(seed).sample(range(len(pool)), len(pool)):
            chosen.setdefault(same_text(pool[i].text), pool[i])
            if len(chosen) == len(drawn):
                break
        else:
            raise UserError(
                f"{len(drawn)} objectives need {len(drawn)} different questions, but there are {len(chosen)} (texts "
                "that differ only in case, articles or marks of sentences count once); lower the number of objectives"
            )
    return tuple(chosen.values())


def consecutive(questions: Sequence[Question], objectives: int) -> list[tuple[Question, ...]]:
    """Neighbours of one source, as MEM1's released code groups them; what is left over at a source's end is dropped.

    sources a a a b b, two objectives  ->  (a1, a2), (b1, b2)
    """
    runs = (list(run) for _, run in itertools.groupby(questions, key=lambda question: question.source))
    return [
        tuple(run[first : first + objectives])
        for run in runs
        for first in range(0, len(run) - objectives + 1, objectives)
    ]


def closed(text: str) -> str:
    """The text on one line, with a question mark at its end, as in MEM1's and Search-R1's files."""
    folded = " ".join(text.split())
    return folded if folded.endswith("?") else f"{folded}?"


def marked(question: Question) -> Question:
    """The question with a question mark at its end."""
    return replace(question, text=closed(question.text))


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
            f"the file has {len(fitting)} tasks of {objectives} objectives, not {count} (its tasks have "
            f"{sizes or 'none: too few questions'}); request fewer tasks or another number of objectives"
        )
    random.Random(f"as composed {seed}").shuffle(fitting)
    return [
        form.task(f"file-n{objectives}-seed{seed}-{number}", groups[number], random.Random(f"task {seed} {number}"))
        for number in fitting[:count]
    ]


def check_disjoint(
    train: Sequence[Question],
    evaluation: Sequence[Question],
    *,
    trained: str = "training questions",
    evaluated: str = "evaluation questions",
    own_ids: bool = False,
) -> None:
    """Raises UserError, with examples, if both sides of a split share a question's text or id.

    Questions that depend on others are compared only by their ids, because their texts say too little. `trained` and
    `evaluated` name the sides in the error.

    own_ids     the sides may number their questions alike: ids are compared of questions that depend on others
    """
    keys, ids = {_key(q) for q in train}, set[str]() if own_ids else {q.id for q in train}
    shared = [q for q in evaluation if _key(q) in keys or q.id in ids]
    if shared:
        examples = "; ".join(f"{q.id!r} ({q.text})" for q in shared[:3])
        raise UserError(
            f"{len(shared)} of {len(evaluation)} {evaluated} are also {trained}, by text or id: {examples}; take them "
            "out of one side"
        )


def question_keys(task: Task) -> tuple[str, ...]:
    """A key per question, equal for equal questions about the same collection, in this task or another.

    Questions are equal if their texts are (`same_text`), or, if they depend on others, their ids.
    """
    return tuple(f"{task.corpus}/{_key(q)}" for q in task.questions)


def _key(question: Question) -> str:
    return f"id {question.id}" if question.depends_on else same_text(question.text)


def different(tasks: Sequence[Task]) -> list[Task]:
    """The tasks, without repetitions of the same questions in the same order about the same collection."""
    found: dict[tuple[tuple[str, str], ...], Task] = {}
    for task in tasks:
        texts = (q.text if q.depends_on else "" for q in task.questions)
        found.setdefault(tuple(zip(question_keys(task), texts, strict=True)), task)
    return list(found.values())


_MARKS = re.compile(r"[!?'\"`\u2018\u2019\u201c\u201d\u00ab\u00bb()\[\]{}]|(?<!\d)[.,;:]|[.,;:](?!\d)")
"""Marks of sentences and quotations, but for those within numbers."""
_ARTICLES = re.compile(r"\b(?:a|an|the) ")


def same_text(text: str) -> str:
    """Key of questions with the same text, but for case, white space, articles and marks of sentences; "C" and "C++",
    "2 - 1" and "2 + 1" differ. A text of nothing but these is its own key."""
    words = " ".join(_MARKS.sub(" ", text.casefold()).split())
    return _ARTICLES.sub("", words) or text


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
    reach: int | None = None,
) -> list[Task]:
    """Tasks of this composition, from independent `questions` or from groups of the same questions in `material`.

    `depth` None: 1 for dependent questions. `reach` as for `numbered`. Raises UserError as `compose` and
    `compose_dependent` do.
    """
    if composition == "independent":
        return compose(questions, form, objectives=objectives, count=count, seed=seed)
    return compose_dependent(
        material,
        form,
        dependence=composition,
        depth=depth or 1,
        objectives=objectives,
        count=count,
        seed=seed,
        reach=reach,
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
    reach: int | None = None,
) -> list[Task]:
    """The first `count` tasks of the endless sequence that `seed` determines, without repeated questions in a task.

    `reach` as for `numbered`. Raises UserError for too few objectives for the depth, or too little material.
    """
    shapes = groups(dependence, objectives, depth)
    name = f"{dependence}{depth}-n{objectives}-seed{seed}"
    tasks: list[Task] = []
    for index in range(count):
        # with the corpus: the worlds of one source would otherwise share the order of their questions, task by task
        rng = random.Random(f"dependent {form.corpus} {dependence} {depth} {objectives} {seed} {index}")
        drawn: list[list[Draft]] = []
        for shape in shapes:
            taken = frozenset(draft.question.id for drafts in drawn for draft in drafts)
            drawn.append(material.draw(shape, taken, rng))
        labels = form.drawn_labels(f"{name}-{index}", objectives)
        questions = numbered(shapes, drawn, material, rng, labels, reach)
        tasks.append(form.task(f"{name}-{index}", questions, rng))
    return tasks


def numbered(
    shapes: Sequence[Group],
    drawn: Sequence[Sequence[Draft]],
    material: Material,
    rng: random.Random,
    labels: Sequence[int] = (),
    reach: int | None = None,
) -> tuple[Question, ...]:
    """The questions of all groups in a random order that keeps the order within each group.

    labels   what references call the questions; none: 1 to N
    reach    largest distance of a question from one that it refers to, if not all of its group's fit; None: any
    """
    turns = [group for group, drafts in enumerate(drawn) for _ in drafts]
    if reach is None:
        rng.shuffle(turns)
    else:
        turns = _nearby(turns, reach + 1, rng)
    numbers: list[list[int]] = [[] for _ in drawn]
    questions: list[Question] = []
    for number, group in enumerate(turns, start=1):
        position = len(numbers[group])
        numbers[group].append(number)
        earlier = [numbers[group][reference] for reference in shapes[group][position]]
        draft = drawn[group][position]
        text = material.text(draft.parts, [labels[i - 1] for i in earlier] if labels else earlier)
        questions.append(replace(draft.question, text=text, depends_on=tuple(earlier)))
    return tuple(questions)


def _nearby(turns: Sequence[int], size: int, rng: random.Random) -> list[int]:
    """The turns of as many groups at a time as fit into `size`, in random order; at least one group at a time."""
    groups_left = [list(run) for _, run in itertools.groupby(turns)]
    rng.shuffle(groups_left)
    ordered: list[int] = []
    while groups_left:
        block = groups_left.pop()
        while groups_left and len(block) + len(groups_left[-1]) <= size:
            block += groups_left.pop()
        rng.shuffle(block)
        ordered += block
    return ordered
