"""Atlas: invented worlds of people, cities, companies and books, with passages and questions.

    Velan Toris is a person . Velan Toris 's birthplace is Moru Kest . Velan Toris 's employer is …
    one hop      Velan Toris 's birthplace ?             -> Moru Kest
    two hops     Velan Toris 's birthplace 's mayor ?    -> first the city, then its mayor
    chain        Q1 Velan Toris 's birthplace ?     Q2 answer Q1 's mayor ?
    shared       Q1 Velan Toris 's birthplace ?     Q2 answer Q1 's mayor ?     Q3 answer Q1 's twin ?
    comparison   Q1 Velan Toris 's birthplace ?     Q2 Dora Lint 's seat ?
                 Q3 answer Q1 ; answer Q2 's mayor is Sela Prand ?              -> the city whose mayor that is

A world is a pure function of its seed and its half (training or evaluation). Names consist of a first and a last word,
so that a policy learns to copy rather than memorise them. A hash assigns every name to one half, so nothing about an
evaluation world can be memorised in weights; single words occur in both halves.
"""

from __future__ import annotations

import itertools
import os
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import ClassVar

from mem1.errors import UserError
from mem1.records import Passage, Question
from mem1.tasks.compose import Draft, Group, Material, Split
from mem1.tasks.datasets import write_passages, write_questions

WORDS = 160
"""Number of first words, and of last words."""
_EVALUATION_SHARE = 4
"""One of this many names is reserved for evaluation worlds."""


def _words(onsets: str, vowels: str, middles: str, codas: tuple[str, ...]) -> tuple[str, ...]:
    everything = [
        (o + v + m + c).capitalize() for o, v, m, c in product(onsets.split(), vowels, middles.split(), codas)
    ]
    step = len(everything) // WORDS
    return tuple(everything[::step][:WORDS])


FIRST_WORDS = _words("b d f g h j k l m n p r s t v z", "aeiou", "l r n v", ("a", "en", "is", "o"))
"""Such as Balen, Dorvis, Keno."""
LAST_WORDS = _words("br ch dr fl gr kl pr sk st tr th wh", "aeiou", "nd st rk ll", ("", "er", "ov", "um"))
"""Such as Brandov, Kleller, Storkum."""


@cache
def names(split: Split) -> tuple[str, ...]:
    """All names of one half, in a fixed order: about 19,200 for training, 6,400 for evaluation."""
    return tuple(
        f"{first} {last}" for first in FIRST_WORDS for last in LAST_WORDS if split_of_name(first, last) == split
    )


def split_of_name(first: str, last: str) -> Split:
    code = zlib.crc32(f"{first} {last}".encode())
    return "evaluation" if code % _EVALUATION_SHARE == 0 else "train"


KINDS: dict[str, int] = {"person": 4, "city": 2, "company": 2, "book": 2}
"""Kind of entity -> its share of a world, in tenths."""

RELATIONS: dict[str, dict[str, str]] = {
    "person": {"birthplace": "city", "employer": "company"},
    "city": {"mayor": "person", "twin": "city"},
    "company": {"founder": "person", "seat": "city"},
    "book": {"author": "person", "publisher": "company"},
}
"""Kind of the subject -> relation -> kind of the object."""

POSSESSIVE = "'s"
"""Separates a name and a relation; a single token."""


@dataclass(frozen=True, slots=True)
class Entity:
    name: str
    kind: str


@dataclass(frozen=True)
class World:
    """Entities and facts, from which passages and questions are derived."""

    name: str
    entities: tuple[Entity, ...]
    facts: dict[tuple[str, str], str]
    """(subject's name, relation) -> object's name."""

    def passages(self) -> list[Passage]:
        """One short passage per entity, with all its facts."""
        return [Passage(id=self.passage_ids[e.name], title=e.name, text=self._describe(e)) for e in self.entities]

    def questions(self, *, seed: int, hops: tuple[int, ...] = (1, 2)) -> Iterator[Question]:
        """An endless stream of questions, with `hops` in equal shares, determined by the seed."""
        rng = random.Random(f"{self.name}/questions/{seed}")
        while True:
            question = self._one_hop(rng) if rng.choice(hops) == 1 else self._two_hop(rng)
            if question is not None:
                yield question

    def save(self, folder: str | os.PathLike[str], *, questions: int) -> None:
        """Write passages.jsonl and questions.jsonl, in the format of user data, with distinct questions.

        Raises UserError if the world has fewer different questions, or the files cannot be written.
        """
        drawn = itertools.islice(self.questions(seed=0), 100 * questions)
        distinct: dict[str, Question] = {}
        for question in drawn:
            if len(distinct) == questions:
                break
            distinct.setdefault(question.id, question)
        if len(distinct) < questions:
            raise UserError(f"{self.name} has only about {len(distinct)} different questions, not {questions}")
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_passages(Path(folder) / "passages.jsonl", self.passages())
        write_questions(Path(folder) / "questions.jsonl", distinct.values())

    @cached_property
    def kind_of(self) -> dict[str, str]:
        """Name of an entity -> its kind."""
        return {e.name: e.kind for e in self.entities}

    @cached_property
    def passage_ids(self) -> dict[str, str]:
        return {e.name: f"{self.name}-{i:05d}" for i, e in enumerate(self.entities)}

    def question(self, relations: tuple[str, ...], start: str) -> Question:
        """The question that leads from `start` through `relations`, in the order of the searches."""
        via = [start]
        for relation in relations:
            via.append(self.facts[via[-1], relation])
        return Question(
            id=f"{self.name}:{'.'.join(relations)}:{start.replace(' ', '_')}",
            text=f" {POSSESSIVE} ".join((start, *relations)) + " ?",
            answers=(via[-1],),
            source=self.name,
            hops=len(relations),
            passage_ids=tuple(self.passage_ids[name] for name in via[:-1]),
            titles=tuple(via[:-1]),
        )

    def _describe(self, entity: Entity) -> str:
        facts = (f"{entity.name} 's {r} is {self.facts[entity.name, r]} ." for r in RELATIONS[entity.kind])
        return f"{entity.name} is a {entity.kind} . " + " ".join(facts)

    def _one_hop(self, rng: random.Random) -> Question:
        start = rng.choice(self.entities)
        relation = rng.choice(tuple(RELATIONS[start.kind]))
        return self.question((relation,), start.name)

    def _two_hop(self, rng: random.Random) -> Question | None:
        start = rng.choice(self.entities)
        first = rng.choice(tuple(RELATIONS[start.kind]))
        bridge = self.facts[start.name, first]
        second = rng.choice(tuple(RELATIONS[self.kind_of[bridge]]))
        answer = self.facts[bridge, second]
        if answer in (start.name, bridge) or first == second:
            return None  # a loop, or a chain of two identical relations
        return self.question((first, second), start.name)


def make_world(seed: int, *, split: Split = "train", entities: int = 400) -> World:
    """The world of this seed. Raises UserError for too few entities, or more than there are names."""
    pool = names(split)
    if not 20 <= entities <= len(pool):
        raise UserError(f"a world of split {split!r} has 20 to {len(pool)} entities, not {entities}")
    rng = random.Random(f"atlas/{split}/{seed}")
    chosen = rng.sample(pool, entities)
    kinds = [kind for kind, share in KINDS.items() for _ in range(share)]
    members = tuple(Entity(name, kinds[i % len(kinds)]) for i, name in enumerate(chosen))
    by_kind = {kind: [e.name for e in members if e.kind == kind] for kind in KINDS}
    facts: dict[tuple[str, str], str] = {}
    for entity in members:
        for relation, kind in RELATIONS[entity.kind].items():
            facts[entity.name, relation] = rng.choice([n for n in by_kind[kind] if n != entity.name])
    return World(name=f"atlas-{split}-{seed}", entities=members, facts=facts)


def question_words() -> list[str]:
    """Every word in Atlas's passages and questions except names and `POSSESSIVE`."""
    relations = sorted({r for by_relation in RELATIONS.values() for r in by_relation})
    return [*relations, *KINDS, "is", "a", ".", "?", ";"]


@dataclass(frozen=True)
class AtlasMaterial(Material):
    """Questions of one world."""

    world: World
    hops: tuple[int, ...] = (1, 2)
    """Numbers of searches per question, in equal shares; comparisons need one."""
    tries: ClassVar[int] = 1000
    reference: ClassVar[str] = "answer Q{}"

    def shortage(self, size: int) -> str:
        return f"{self.world.name} is too small for such questions; give it more entities"

    def attempt(self, group: Group, taken: frozenset[str], rng: random.Random) -> list[Draft]:
        drafts: list[Draft] = []
        seen: set[str] = set()
        for references in group:
            before = [drafts[i].question.answers[0] for i in references]
            if len(before) == 2:
                made = self._compared(before[0], before[1], rng)
            else:
                start = before[0] if before else rng.choice(self.world.entities).name
                made = self._asked(start, bool(before), seen, rng)
            if made is None:
                return drafts
            drafts.append(made)
        return drafts

    def _asked(self, start: str, refers: bool, seen: set[str], rng: random.Random) -> Draft | None:
        """A question about `start`; None if it leads back to an entity of the group."""
        relations: tuple[str, ...] = ()
        names = [start]
        for _ in range(rng.choice(self.hops)):
            relations += (rng.choice(tuple(RELATIONS[self.world.kind_of[names[-1]]])),)
            names.append(self.world.facts[names[-1], relations[-1]])
        new = names[1:] if refers else names
        if len(set(relations)) < len(relations) or len(set(names)) < len(names) or seen & set(new):
            return None
        seen.update(new)
        question = self.world.question(relations, start)
        return Draft(question, ("", question.text.removeprefix(start)) if refers else (question.text,))

    def _compared(self, one: str, other: str, rng: random.Random) -> Draft | None:
        """A question which of two names has a certain value; None if their kinds differ or their values agree."""
        kind = self.world.kind_of[one]
        relation = rng.choice(tuple(RELATIONS[kind]))
        answer = rng.choice((one, other))
        if kind != self.world.kind_of[other] or one == other:
            return None
        values = {name: self.world.facts[name, relation] for name in (one, other)}
        if values[one] == values[other]:
            return None
        ends = f" {POSSESSIVE} {relation} is {values[answer]} ?"
        question = Question(
            id=f"{self.world.name}:{relation}:{one.replace(' ', '_')}|{other.replace(' ', '_')}",
            text=f"{one} ; {other}{ends}",
            answers=(answer,),
            source=self.world.name,
            hops=1,  # if it is not the one, it is the other
            passage_ids=(self.world.passage_ids[one], self.world.passage_ids[other]),
        )
        return Draft(question, ("", " ; ", ends))
