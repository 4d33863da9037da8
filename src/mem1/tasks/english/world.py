"""Invented worlds of people, towns, firms and novels: who lived where, and what has changed since.

    make_english_world(7)                     ->  EnglishWorld "english-evaluation-7" of 400 entities
    world.facts["Elmwick", "mayor"]           ->  Fact(values=("Corin Ashmont",), before="Selia Pellick", start=1971,
                                                       since=1988)

A world is a pure function of its seed, its half and its size; how it is written out (`wording`) has a seed of its own.
With `updates`, passages state some facts wrongly, and correct them below the passages of other entities:

    Elmwick's own passage       ... lies on the Calther ...
    below Dunford's             Correction of 3 May 2021: Elmwick lies on the Morvin, not on the Calther.
    below Velan Toris's         Correction of 9 June 2022: Elmwick lies on the Ostel.             the latest holds
"""

from __future__ import annotations

import datetime
import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from mem1.errors import UserError
from mem1.tasks.atlas.world import split_of_name
from mem1.tasks.compose import Split
from mem1.tasks.english import names

ENTITIES = 400
"""Default size of a world."""
_SHARES = {"person": 8, "town": 5, "firm": 4, "novel": 3}
"""Kind of entity -> its share, in twentieths."""


@dataclass(frozen=True, slots=True)
class Relation:
    """What a kind of entity has, and what it takes as value."""

    value: str
    """A kind of entity, or river, date, year, number, words (a list), towns (a list)."""
    changes: float = 0.0
    """Share of the subjects for which the value was another one before."""
    low: int = 0
    """Smallest value, or fewest entries of a list."""
    high: int = 0
    since: tuple[int, int] = (0, 0)
    """First and last year of a change."""
    lasted: tuple[int, int] = (0, 0)
    """Fewest and most years of the value before it."""


RELATIONS: Mapping[str, Mapping[str, Relation]] = {
    "person": {
        "birthplace": Relation("town"),
        "birthday": Relation("date", low=1940, high=1968),
        "employer": Relation("firm", changes=0.6, since=(2010, 2020), lasted=(2, 5)),
        "home": Relation("town", changes=0.5, since=(1996, 2019), lasted=(4, 12)),
        "instruments": Relation("words", low=2, high=3),
    },
    "town": {
        "mayor": Relation("person", changes=0.7, since=(2000, 2019), lasted=(4, 12)),
        "river": Relation("river"),
        "population": Relation("number", low=1_800, high=96_000),
        "founded": Relation("year", low=1150, high=1790),
        "twins": Relation("towns", low=2, high=6),
    },
    "firm": {
        "founder": Relation("person"),
        "seat": Relation("town", changes=0.5, since=(2009, 2020), lasted=(3, 4)),
        "opened": Relation("year", low=1986, high=2004),
        "staff": Relation("number", low=40, high=9_500),
        "products": Relation("words", low=2, high=3),
    },
    "novel": {
        "author": Relation("person"),
        "published": Relation("year", low=2005, high=2021),
        "pages": Relation("number", low=96, high=890),
        "publisher": Relation("firm"),
        "languages": Relation("words", low=2, high=6),
    },
}
"""Kind of the subject -> relation -> its values."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


WORDS: Mapping[str, tuple[str, ...]] = {
    "instruments": _words(
        "accordion bagpipes banjo bassoon cello clarinet cornet drums fiddle flute guitar harmonica harp horn "
        "lute mandolin oboe organ piano saxophone trombone trumpet viola zither"
    ),
    "products": _words(
        "anvils barometers bearings bells boilers buttons candles carpets chains clocks compasses dyes "
        "funnels gears hinges kettles ladders lenses looms needles pumps ropes scales sextants springs stoves "
        "valves wheels"
    ),
    "languages": _words(
        "Basque Breton Catalan Czech Danish Dutch Estonian Finnish French Galician German Greek Hungarian "
        "Icelandic Irish Italian Japanese Korean Latvian Lithuanian Maltese Norwegian Polish Portuguese "
        "Romanian Slovak Spanish Swedish Turkish Welsh"
    ),
}
"""Relation -> the words of which its lists consist."""
TRADES = _words(
    "astronomer architect baker botanist cartographer chemist dentist engineer geologist gardener "
    "historian illustrator joiner journalist lawyer librarian mathematician nurse optician painter "
    "physician potter printer sculptor surveyor teacher translator violinist watchmaker zoologist"
)
MONTHS = _words("January February March April May June July August September October November December")
CORRECTED = ("birthplace", "birthday", "river", "population", "founded", "founder", "opened", "author", "pages")
"""Relations that passages may state wrongly."""
_CORRECTED_SHARE = 3
"""With updates, one of this many entities has a wrong fact; fewer where there are not enough passages to correct it."""


@dataclass(frozen=True, slots=True)
class Entity:
    name: str
    kind: str
    pronoun: str = "it"
    trade: str = ""
    """Of a person."""
    nickname: str = ""
    """Of a town, without its article."""


@dataclass(frozen=True, slots=True)
class Fact:
    """What holds of a subject, and what held before."""

    values: tuple[str, ...]
    """As passages write them; several: a list."""
    before: str = ""
    """Value from `start` to `since`; empty: it has not changed."""
    start: int = 0
    since: int = 0
    """Year in which the present value began."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A correction, shown below the passage of another entity."""

    subject: str
    relation: str
    value: str
    """What it says is right."""
    stated: str
    """What it says is wrong."""
    day: datetime.date
    """The latest holds."""


@dataclass(frozen=True)
class EnglishWorld:
    """Entities and what holds of them."""

    name: str
    entities: Mapping[str, Entity]
    """By name."""
    facts: Mapping[tuple[str, str], Fact]
    """(subject's name, relation) -> what is true."""
    notices: Mapping[str, Notice]
    """Name of an entity -> the correction below its passage."""

    def stated(self, subject: str, relation: str) -> Fact:
        """What the subject's own passage says: the truth, unless it is corrected elsewhere."""
        return self._wrong.get((subject, relation)) or self.facts[subject, relation]

    def corrections(self, subject: str, relation: str) -> tuple[str, ...]:
        """Names of the entities below whose passages the fact is corrected, in the order of time."""
        return self._correcting.get((subject, relation), ())

    @cached_property
    def _correcting(self) -> dict[tuple[str, str], tuple[str, ...]]:
        found: defaultdict[tuple[str, str], list[tuple[datetime.date, str]]] = defaultdict(list)
        for name, notice in self.notices.items():
            found[notice.subject, notice.relation].append((notice.day, name))
        return {corrected: tuple(name for _, name in sorted(said)) for corrected, said in found.items()}

    @cached_property
    def corrected(self) -> tuple[tuple[str, str], ...]:
        """(subject, relation) of every fact that is corrected, in order."""
        return tuple(self._wrong)

    @cached_property
    def passage_ids(self) -> dict[str, str]:
        return {name: f"{self.name}-{number:04d}" for number, name in enumerate(self.entities)}

    @cached_property
    def by_kind(self) -> dict[str, list[str]]:
        """Kind -> names, in order."""
        return {kind: [e.name for e in self.entities.values() if e.kind == kind] for kind in _SHARES}

    @cached_property
    def _wrong(self) -> dict[tuple[str, str], Fact]:
        first: dict[tuple[str, str], Notice] = {}
        for notice in sorted(self.notices.values(), key=lambda notice: notice.day):
            first.setdefault((notice.subject, notice.relation), notice)
        return {key: Fact((notice.stated,)) for key, notice in sorted(first.items())}


def make_english_world(
    seed: int, *, split: Split = "evaluation", entities: int = ENTITIES, updates: int = 0
) -> EnglishWorld:
    """The world of this seed. `updates`: corrections of each wrong fact; 0: no fact is wrong.

    Raises UserError for too few entities, or more than there are names.
    """
    most = 3 * len(names.towns(split))
    if not 40 <= entities <= most:
        raise UserError(f"an English world of split {split!r} has 40 to {most} entities, not {entities}")
    world, state = _true(seed, split, entities)
    if not updates:
        return world
    rng = random.Random()
    rng.setstate(state)
    return EnglishWorld(f"{world.name}-u{updates}", world.entities, world.facts, _notices(rng, world, split, updates))


@lru_cache(maxsize=64)
def _true(seed: int, split: Split, entities: int) -> tuple[EnglishWorld, Any]:
    """The world without corrections, and the state of the generator that draws them."""
    rng = random.Random(f"english/{split}/{seed}/{entities}")
    made = _entities(rng, split, entities)
    by_kind = {kind: [e.name for e in made if e.kind == kind] for kind in _SHARES}
    facts = {
        (entity.name, name): _fact(rng, entity.name, name, relation, by_kind, split)
        for entity in made
        for name, relation in RELATIONS[entity.kind].items()
    }
    return EnglishWorld(f"english-{split}-{seed}", {e.name: e for e in made}, facts, {}), rng.getstate()


def _entities(rng: random.Random, split: Split, count: int) -> list[Entity]:
    numbers = {kind: share * count // 20 for kind, share in _SHARES.items()}
    numbers["person"] += count - sum(numbers.values())
    # few first and last words for many people, so that names are half shared
    firsts = rng.sample(names.FIRST_NAMES, min(len(names.FIRST_NAMES), max(12, numbers["person"] // 4)))
    lasts = rng.sample(names.LAST_NAMES, min(len(names.LAST_NAMES), max(24, numbers["person"] // 2)))
    pool = [(f"{a} {b}", pronoun) for a, pronoun in firsts for b in lasts if split_of_name(a, b) == split]
    people = [Entity(n, "person", p, rng.choice(TRADES)) for n, p in rng.sample(pool, numbers["person"])]
    second = rng.sample(names.nicknames(split), min(len(names.nicknames(split)), numbers["town"] // 2))
    towns = [
        Entity(name, "town", nickname=second[i] if i < len(second) else "")
        for i, name in enumerate(rng.sample(names.towns(split), numbers["town"]))
    ]
    firms = [Entity(name, "firm") for name in rng.sample(names.firms(split), numbers["firm"])]
    novels = [Entity(name, "novel") for name in rng.sample(names.novels(split), numbers["novel"])]
    made = [*people, *towns, *firms, *novels]
    rng.shuffle(made)
    return made


def _fact(
    rng: random.Random, subject: str, name: str, relation: Relation, by_kind: Mapping[str, list[str]], split: Split
) -> Fact:
    if relation.value in ("words", "towns"):
        others = [one for one in by_kind["town"] if one != subject] if relation.value == "towns" else WORDS[name]
        return Fact(tuple(rng.sample(others, rng.randint(relation.low, relation.high))))
    value = _value(rng, subject, relation, by_kind, split)
    if rng.random() >= relation.changes:
        return Fact((value,))
    before = value
    while before == value:
        before = _value(rng, subject, relation, by_kind, split)
    since = rng.randint(*relation.since)
    return Fact((value,), before, since - rng.randint(*relation.lasted), since)


def _value(rng: random.Random, subject: str, relation: Relation, by_kind: Mapping[str, list[str]], split: Split) -> str:
    if relation.value in by_kind:
        while (found := rng.choice(by_kind[relation.value])) == subject:
            pass
        return found
    if relation.value == "river":
        return rng.choice(names.rivers(split))
    if relation.value == "date":
        return f"{rng.randint(1, 28)} {rng.choice(MONTHS)} {rng.randint(relation.low, relation.high)}"
    number = rng.randint(relation.low, relation.high)
    return str(number) if relation.value == "year" else f"{number:,}"


def _notices(rng: random.Random, world: EnglishWorld, split: Split, updates: int) -> dict[str, Notice]:
    everyone = list(world.entities)
    wrong = rng.sample(everyone, min(len(everyone) // _CORRECTED_SHARE, (len(everyone) - 1) // updates))
    carriers = rng.sample(everyone, len(wrong) * updates + 1)  # one more, as no passage corrects itself
    notices: dict[str, Notice] = {}
    for subject in wrong:
        kind = world.entities[subject].kind
        name = rng.choice([relation for relation in RELATIONS[kind] if relation in CORRECTED])
        true = world.facts[subject, name].values[0]
        said = [true]
        while len(said) <= updates:
            value = _value(rng, subject, RELATIONS[kind][name], world.by_kind, split)
            said += [value] if value not in said else []
        said.reverse()  # the truth comes last
        days = sorted(rng.sample(range(700), updates))
        for stated, value, day in zip(said, said[1:], days, strict=False):
            at = next(i for i, carrier in enumerate(carriers) if carrier != subject)
            when = datetime.date(2022, 1, 3) + datetime.timedelta(days=day)
            notices[carriers.pop(at)] = Notice(subject, name, value, stated, when)
    return notices
