"""Names of two words, so that copying them is learnt and not memorised.

Every name is a first word and a last word ("Velan Toris"). A name belongs for ever to the training or to the
evaluation half, by a hash of the pair: single words are shared, whole names never are.
"""

from __future__ import annotations

import itertools
import os
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path

from mem1.errors import UserError
from mem1.records import Passage, Question
from mem1.tasks.datasets import write_passages, write_questions
from mem1.tasks.splits import Split

WORDS = 160
"""First words, and as many last words."""
_EVALUATION_SHARE = 4
"""One name in so many is kept for evaluation worlds."""


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


def names(split: Split) -> list[str]:
    """All names of one half, in a fixed order: 19,200 or so for training, 6,400 or so for evaluation."""
    return [f"{first} {last}" for first in FIRST_WORDS for last in LAST_WORDS if split_of_name(first, last) == split]


def split_of_name(first: str, last: str) -> Split:
    """The half to which a name belongs."""
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
"""Between a name and a relation; the tokenizer keeps it whole."""


@dataclass(frozen=True, slots=True)
class Entity:
    name: str
    kind: str


@dataclass(frozen=True)
class World:
    """Entities and facts; passages and questions are derived from them."""

    name: str
    entities: tuple[Entity, ...]
    facts: dict[tuple[str, str], str]
    """(subject's name, relation) -> object's name."""

    def passages(self) -> list[Passage]:
        """One short passage an entity, all its facts in it."""
        return [
            Passage(id=f"{self.name}-{i:05d}", title=e.name, text=self._describe(e))
            for i, e in enumerate(self.entities)
        ]

    def questions(self, *, seed: int, hops: tuple[int, ...] = (1, 2)) -> Iterator[Question]:
        """An endless stream of questions, `hops` in equal shares; the same for the same seed."""
        rng = random.Random(f"{self.name}/questions/{seed}")
        while True:
            question = self._one_hop(rng) if rng.choice(hops) == 1 else self._two_hop(rng)
            if question is not None:
                yield question

    def save(
        self, folder: str | os.PathLike[str], *, questions: int, seed: int = 0, hops: tuple[int, ...] = (1, 2)
    ) -> None:
        """Write passages.jsonl and questions.jsonl, the files that one's own data comes in; no question twice.

        Raises UserError where the world has fewer different questions, or the files cannot be written.
        """
        drawn = itertools.islice(self.questions(seed=seed, hops=hops), 100 * questions)
        distinct: dict[str, Question] = {}
        for question in drawn:
            if len(distinct) == questions:
                break
            distinct.setdefault(question.id, question)
        if len(distinct) < questions:
            raise UserError(f"{self.name} has fewer than {questions} different questions; it has {len(distinct)} or so")
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_passages(Path(folder) / "passages.jsonl", self.passages())
        write_questions(Path(folder) / "questions.jsonl", distinct.values())

    @cached_property
    def kind_of(self) -> dict[str, str]:
        """Entity's name -> kind."""
        return {e.name: e.kind for e in self.entities}

    @cached_property
    def _passage_ids(self) -> dict[str, str]:
        return {e.name: f"{self.name}-{i:05d}" for i, e in enumerate(self.entities)}

    def passage_id(self, name: str) -> str:
        """Id of the passage about the entity of this name."""
        return self._passage_ids[name]

    def question(self, relations: tuple[str, ...], start: str) -> Question:
        """What is reached from `start` by `relations`, in the order in which they are looked up."""
        via = [start]
        for relation in relations:
            via.append(self.facts[via[-1], relation])
        return Question(
            id=f"{self.name}:{'.'.join(relations)}:{start.replace(' ', '_')}",
            text=f" {POSSESSIVE} ".join((start, *relations)) + " ?",
            answers=(via[-1],),
            source=self.name,
            hops=len(relations),
            passage_ids=tuple(map(self.passage_id, via[:-1])),
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
            return None  # a loop, or a chain whose two searches read alike
        return self.question((first, second), start.name)


def make_world(seed: int, *, split: Split = "train", entities: int = 400) -> World:
    """The world of this seed. Raises UserError where there are not enough names or too few entities."""
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
    """Every word that Atlas's passages and questions use, names and `POSSESSIVE` apart."""
    relations = sorted({r for by_relation in RELATIONS.values() for r in by_relation})
    return [*relations, *KINDS, "is", "a", ".", "?", ";"]
