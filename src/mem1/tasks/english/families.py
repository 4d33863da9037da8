"""Families of tasks about an English world: what has to be remembered, and what makes it hard.

    independent     questions that have nothing to do with one another
    chain           each question of a chain is about the answer to the one before; level: how long the chains are
    shared          several questions are about the answer to one; level: how many
    constraint      rules, which one search shows, hold for all others; level: how many
    update          a passage is wrong, and those of other questions correct it; level: how often
    budget          several questions share passages, and searches are few; level 1: half more than needed, to 4: none

Every task is a pure function of the world, the seed and its number. So are the rules of a constraint, and the section
by whose name a search finds them:

    rules_of(seed=12, level=2)  ->  "Every query must contain the word tarnflax.", "No query may have more than 7 ..."
    section_of(seed=12)         ->  "K-17"
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from mem1.errors import UserError
from mem1.records import Question, Task
from mem1.tasks.compose import Draft, Group, Material, compose, numbered
from mem1.tasks.english.questions import POOL, Asker, Topic
from mem1.tasks.prompts import TaskTemplate

_NONSENSE = ("tarnflax", "quendle", "brimsock", "ostrel", "vandrake", "pilmoss", "gretch", "loombar", "skarn", "wimdel")
"""Words that occur in no passage."""
_SECTIONS = "ABCDEFGHJKLMNPRSTVWXZ"
MOST = 6
"""Number of different rules, hence the highest level."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: as it is stated, as a note of few words, a check of a query, and what makes a query follow it."""

    text: str
    note: str
    keeps: Callable[[str], bool]
    follow: Callable[[str], str]


def section_of(seed: int) -> str:
    """The section of the archive to which a task of this seed belongs: "K-17"."""
    rng = random.Random(f"english/section/{seed}")
    return f"{rng.choice(_SECTIONS)}-{rng.randint(10, 99)}"


def asks_for_rules(query: str, section: str) -> bool:
    """Whether a query looks for the rules of this section."""
    letter, number = section.split("-")
    return re.search(rf"\b{letter}\s?-?\s?{number}\b", query, re.IGNORECASE) is not None


def rules_of(seed: int, level: int) -> tuple[Rule, ...]:
    """As many rules as the level says, drawn by the seed. Following them one after the other keeps all of them."""
    rng = random.Random(f"english/rules/{seed}")
    within, first = rng.sample(_NONSENSE, 2)
    most, last = rng.randint(6, 8), rng.randint(101, 999)
    everything = (
        Rule(
            "No query may contain the word the.",
            "without the",
            lambda query: "the" not in query.lower().split(),
            lambda query: " ".join(word for word in query.split() if word.lower() != "the"),
        ),
        Rule("Every query must be in small letters.", "small letters", str.islower, str.lower),
        Rule(
            f"Every query must contain the word {within}.",
            f"with {within}",
            lambda query: within in query.lower().split(),
            lambda query: f"{query} {within}",
        ),
        Rule(
            f"Every query must begin with the word {first}.",
            f"first {first}",
            lambda query: query.lower().split()[:1] == [first],
            lambda query: f"{first} {query}",
        ),
        Rule(
            f"Every query must end with the number {last}.",
            f"last {last}",
            lambda query: query.split()[-1:] == [str(last)],
            lambda query: f"{query} {last}",
        ),
        Rule(
            f"No query may have more than {most} words.",
            f"{most} words",
            lambda query: len(query.split()) <= most,
            lambda query: query,
        ),
    )
    chosen = set(rng.sample(range(MOST), level))
    return tuple(rule for number, rule in enumerate(everything) if number in chosen)


Family = Literal["independent", "chain", "shared", "constraint", "update", "budget"]
LEVELS = {"independent": 1, "chain": 6, "shared": 4, "constraint": MOST, "update": 4, "budget": 4}
"""Highest level of each family."""
_SLACK = (0.5, 0.25, 0.1, 0.0)
"""Searches beyond the fewest that suffice, as a share, by level."""
RULES = (
    "This task belongs to section {section} of the archive, which has rules for queries. First search for: rules of "
    "section {section}. They hold for every other query. A query that breaks one ends the attempt, and nothing counts."
)


def tasks_of(
    family: Family, level: int, asker: Asker, form: TaskTemplate, *, objectives: int, count: int, seed: int
) -> list[Task]:
    """The first `count` tasks of a family about one world. Raises UserError for a level or a size that it lacks."""
    if not 1 <= level <= LEVELS[family]:
        raise UserError(f"family {family} has levels 1 to {LEVELS[family]}, not {level}")
    if objectives < 1 or objectives > POOL:
        raise UserError(f"tasks about an English world have 1 to {POOL} questions, not {objectives}")
    if family in ("independent", "constraint"):
        tasks = compose(asker.pool, form, objectives=objectives, count=count, seed=seed)
        return [_ruled(task, level) for task in tasks] if family == "constraint" else tasks
    made: list[Task] = []
    for number in range(count):
        name = f"{family}-l{level}-n{objectives}-seed{seed}-{number}"
        rng = random.Random(f"{asker.world.name}/{name}")
        questions = _DRAWN[family](asker, level, objectives, rng)
        task = form.task(name, questions, rng)
        if family == "budget":
            fewest = searches(questions)
            task = replace(task, turn_limit=fewest + -int(-_SLACK[level - 1] * fewest // 1) + 1)
        made.append(task)
    return made


def smallest(family: Family, level: int) -> int:
    """The fewest questions with which a task of this level differs from one of a lower level."""
    return level + 1 if family in ("chain", "shared", "update") else 1


def searches(questions: Sequence[Question]) -> int:
    """The fewest searches that answer all questions: the number of passages that they need."""
    return len({title for question in questions for title in question.titles})


def _ruled(task: Task, level: int) -> Task:
    text = RULES.format(section=section_of(task.seed))
    return replace(task, id=f"{task.id}-rules{level}", prompt=f"{task.prompt.rstrip()}\n\n{text}\n")


@dataclass(frozen=True)
class EnglishMaterial(Material):
    """Fills groups of questions that refer to one another."""

    asker: Asker
    tries: ClassVar[int] = 1000

    def shortage(self, size: int) -> str:
        return f"{self.asker.world.name} is too small for groups of {size} questions; give it more entities"

    def attempt(self, group: Group, taken: frozenset[str], rng: random.Random) -> list[Draft]:
        asker = self.asker
        referred = {one for references in group for one in references}
        topics: list[Topic] = []
        names: set[str] = set()
        for position, references in enumerate(group):
            topic = self._topic(topics[references[0]] if references else None, position in referred, rng)
            if topic is None or asker.id_of(topic) in taken:
                return []
            new = set() if references else set(asker.titles(topic))
            if position in referred:
                new.add(asker.answer(topic))
            if names & new:
                return []
            names |= new
            topics.append(topic)
        if len(set(topics)) < len(topics):
            return []
        return [self._draft(topic, bool(references)) for topic, references in zip(topics, group, strict=True)]

    def _topic(self, before: Topic | None, leads_on: bool, rng: random.Random) -> Topic | None:
        """`leads_on`: another question refers to its answer."""
        asker = self.asker
        start = rng.choice(asker.names) if before is None else asker.answer(before)
        through = asker.step(rng, start) if before is None and rng.random() < asker.two_hops else ""
        subject = asker.reached(start, through)
        relation, kind = (asker.step(rng, subject), "") if leads_on else asker.last(rng, subject)
        if not relation or (through and asker.circular(start, through, relation)):
            return None
        return Topic(start, relation, kind, through)

    def _draft(self, topic: Topic, refers: bool) -> Draft:
        question = self.asker.question(topic)
        return Draft(question, tuple(self.asker.text(topic, "{}").split("{}")) if refers else (question.text,))


def _chained(asker: Asker, level: int, objectives: int, rng: random.Random) -> tuple[Question, ...]:
    return _filled(asker, [_chain(size) for size in _sizes(objectives, level + 1)], rng)


def _shared(asker: Asker, level: int, objectives: int, rng: random.Random) -> tuple[Question, ...]:
    return _filled(asker, [((), *(((0,),) * (size - 1))) for size in _sizes(objectives, level + 1)], rng)


def _chain(size: int) -> Group:
    return ((), *((before,) for before in range(size - 1)))


def _sizes(objectives: int, size: int) -> list[int]:
    full, rest = divmod(objectives, size)
    return [size] * full + [rest] * bool(rest)


def _filled(asker: Asker, shapes: Sequence[Group], rng: random.Random) -> tuple[Question, ...]:
    material = EnglishMaterial(asker)
    drawn: list[list[Draft]] = []
    taken: frozenset[str] = frozenset()
    for shape in shapes:
        drawn.append(material.draw(shape, taken, rng))
        taken |= {draft.question.id for draft in drawn[-1]}
    return numbered(shapes, drawn, material, rng)


def _updated(asker: Asker, level: int, objectives: int, rng: random.Random) -> tuple[Question, ...]:
    """Questions about wrong facts, one about each passage that corrects them, and others to fill up."""
    corrected = asker.world.corrected
    wanted = objectives // (level + 1)
    if wanted > len(corrected):
        raise UserError(f"{asker.world.name} corrects {len(corrected)} facts, not {wanted}; give it more entities")
    found: dict[str, Question] = {}
    for subject, relation in rng.sample(corrected, wanted):
        wrong = asker.question(Topic(subject, relation))
        found[wrong.id] = wrong
        for carrier in asker.world.corrections(subject, relation):
            while (question := asker.drawn(rng, carrier)) is None or question.id in found:
                pass
            found[question.id] = question
    return _completed(asker, found, objectives, rng)


def _budgeted(asker: Asker, level: int, objectives: int, rng: random.Random) -> tuple[Question, ...]:
    """Pairs of questions that need the same passage first."""
    found: dict[str, Question] = {}
    starts = rng.sample(asker.names, -(-objectives // 2))
    for start in starts:
        pair: dict[str, Question] = {}
        while len(pair) < min(2, objectives - len(found)):
            question = asker.drawn(rng, start)
            if question is not None:
                pair[question.id] = question
        found |= pair
    return _completed(asker, found, objectives, rng)


def _completed(asker: Asker, found: dict[str, Question], objectives: int, rng: random.Random) -> tuple[Question, ...]:
    """The questions, with others up to the number that is wanted, in an order drawn anew."""
    while len(found) < objectives:
        question = rng.choice(asker.pool)
        found.setdefault(question.id, question)
    chosen = list(found.values())
    rng.shuffle(chosen)
    return tuple(chosen)


_DRAWN = {"chain": _chained, "shared": _shared, "update": _updated, "budget": _budgeted}
