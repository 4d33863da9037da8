"""Questions about an English world as people ask them, with every form of the answer that counts as right.

    value     Who is the mayor of Elmwick now?                              Corin Ashmont
    past      In 1985, who was mayor of Elmwick?                            Selia Pellick
    list      Which instruments does Corin Ashmont play?                    oboe, harp and flute, in any order
    count     With how many towns is Elmwick twinned?                       four, 4
    odd       Which of these towns is not twinned with Elmwick: ...?        the one of four
    nickname  Who is the mayor of the Lantern City?
    two hops  When was the mayor of Elmwick born?                           14 March 1952, March 14, 1952, ...

What is asked follows from the world and the seed; `surface` draws the wording alone.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from mem1.records import Question
from mem1.tasks.english.frames import listed
from mem1.tasks.english.world import MONTHS, RELATIONS, WORDS, EnglishWorld

T = TypeVar("T")

ASKED: Mapping[str, tuple[str, ...]] = {
    "birthplace": ("Where was {} born?", "In which town was {} born?", "What is the birthplace of {}?"),
    "birthday": ("When was {} born?", "On what day was {} born?", "What is the date of birth of {}?"),
    "employer": ("Which firm does {} work for now?", "Who employs {} now?", "What is the present employer of {}?"),
    "employer/past": ("In {year}, which firm did {} work for?", "In {year}, who employed {}?"),
    "home": ("In which town does {} live now?", "Where is the home of {} now?", "Which town does {} live in today?"),
    "home/past": ("In {year}, in which town did {} live?", "In {year}, where was the home of {}?"),
    "instruments/list": ("Which instruments does {} play?", "What instruments are played by {}?"),
    "instruments/odd": ("Which of these instruments is not played by {}: {options}?",),
    "mayor": ("Who is the mayor of {} now?", "Who is mayor of {} today?", "Who is the present mayor of {}?"),
    "mayor/past": ("In {year}, who was mayor of {}?", "In {year}, who was the mayor of {}?"),
    "river": ("On which river does {} lie?", "Which river flows through {}?", "What is the river of {} called?"),
    "population": ("How many people live in {}?", "What is the population of {}?", "How many inhabitants has {}?"),
    "founded": ("In which year was {} founded?", "When was {} founded?"),
    "twins/count": ("With how many towns is {} twinned?", "How many twin towns does {} have?"),
    "twins/odd": ("Which of these towns is not twinned with {}: {options}?",),
    "founder": ("Who founded {}?", "Who is the founder of {}?", "By whom was {} founded?"),
    "seat": ("In which town does {} have its seat now?", "Where is the head office of {} now?"),
    "seat/past": ("In {year}, in which town was the seat of {}?", "In {year}, where did {} have its head office?"),
    "opened": ("In which year did {} open?", "When did {} begin business?"),
    "staff": ("How many employees does {} have?", "How large is the staff of {}?"),
    "products/list": ("Which products does {} make?", "What are the products of {}?"),
    "products/odd": ("Which of these products is not made by {}: {options}?",),
    "author": ("Who wrote {}?", "Who is the author of {}?", "By whom was {} written?"),
    "published": ("In which year was {} published?", "When did {} come out?"),
    "pages": ("How many pages does {} have?", "What is the number of pages of {}?"),
    "publisher": ("Which firm published {}?", "Who is the publisher of {}?"),
    "languages/count": ("Into how many languages has {} been translated?", "How many translations of {} are there?"),
    "languages/odd": ("Into which of these languages has {} not been translated: {options}?",),
}
"""Relation, and kind of question -> its wordings; {} is the subject."""

THROUGH: Mapping[str, tuple[str, ...]] = {
    "birthplace": ("the town where {} was born", "the birthplace of {}"),
    "employer": ("the firm that employs {}", "the present employer of {}"),
    "home": ("the town where {} lives now", "the town that is home to {}"),
    "mayor": ("the present mayor of {}", "the person who is now mayor of {}"),
    "founder": ("the founder of {}", "the person who founded {}"),
    "seat": ("the town where {} has its seat", "the town with the head office of {}"),
    "author": ("the author of {}", "the person who wrote {}"),
    "publisher": ("the publisher of {}", "the firm that published {}"),
}
"""Relation that leads to another entity -> ways to name the entity."""

KINDS: Mapping[str, tuple[tuple[str, str], ...]] = {
    kind: tuple((key.partition("/")[0], key.partition("/")[2]) for key in ASKED if key.partition("/")[0] in relations)
    for kind, relations in RELATIONS.items()
}
"""Kind of the subject -> (relation, kind of question: "", past, list, count or odd)."""

POOL = 512
"""Most different questions of a world, of which tasks are composed."""
_OPTIONS = 4
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six")


Asked = Literal["value", "past", "list", "count", "odd"]
ALL_ASKED: tuple[Asked, ...] = get_args(Asked)


class Topic(NamedTuple):
    """What is asked, before it is put into words."""

    start: str
    """The entity that the question names."""
    relation: str
    """What is asked about the entity that `through` leads to."""
    kind: str = ""
    """"", past, list, count or odd."""
    through: str = ""
    """Relation from the start to the entity in question; empty: the start itself."""


@dataclass(frozen=True)
class Asker:
    """Draws questions about one world."""

    world: EnglishWorld
    surface: int = 0
    two_hops: float = 0.4
    """Share of questions that lead through another entity."""
    asked: tuple[Asked, ...] = ALL_ASKED
    """Kinds of questions that are drawn."""
    _made: dict[Topic, Question] = field(default_factory=dict, repr=False, compare=False)
    _known: dict[tuple[str, str, str], _Details] = field(default_factory=dict, repr=False, compare=False)
    """(subject, relation, kind of question) -> what is asked and answered."""

    def questions(self, seed: int = 0) -> Iterator[Question]:
        """An endless stream, determined by the seed."""
        return (self.question(topic) for topic in self._topics(seed))

    def drawn(self, rng: random.Random, start: str) -> Question | None:
        """A question that begins with this entity; None where chance led nowhere."""
        topic = self._topic(rng, start)
        return None if topic is None else self.question(topic)

    @cached_property
    def pool(self) -> Sequence[Question]:
        """The questions of which independent tasks are composed; each is put into words when it is needed."""
        found: dict[Topic, None] = {}
        # small worlds have fewer
        for topic in itertools.islice(self._topics(0), 40 * POOL):
            found[topic] = None
            if len(found) == POOL:
                break
        return _Pool(self, tuple(found))

    def question(self, topic: Topic) -> Question:
        """One question."""
        if topic not in self._made:
            self._made[topic] = self._question(topic)
        return self._made[topic]

    def text(self, topic: Topic, named: str) -> str:
        """A question whose start is called so: "the answer to Q1", "{}"."""
        return self._text(topic, named, self._details(self.titles(topic)[-1], topic.relation, topic.kind))

    def id_of(self, topic: Topic) -> str:
        """Of the question about it."""
        start, relation, kind, through = topic
        asked = f"{relation}/{kind}" if kind else relation
        return f"{self.world.name}:{through and f'{through}.'}{asked}:{start.replace(' ', '_')}"

    def titles(self, topic: Topic) -> tuple[str, ...]:
        """The passages that its question needs, in order."""
        start, through = topic.start, topic.through
        return (start, self.reached(start, through)) if through else (start,)

    def answer(self, topic: Topic) -> str:
        """The entity that a topic leads to."""
        return self.reached(self.reached(topic.start, topic.through), topic.relation)

    def _topics(self, seed: int) -> Iterator[Topic]:
        rng = random.Random(f"{self.world.name}/questions/{seed}")
        while True:
            topic = self._topic(rng, rng.choice(self.names))
            if topic is not None:
                yield topic

    def _topic(self, rng: random.Random, start: str) -> Topic | None:
        through = self.step(rng, start) if rng.random() < self.two_hops else ""
        relation, kind = self.last(rng, self.reached(start, through))
        if not relation or (through and self.circular(start, through, relation)):
            return None
        return Topic(start, relation, kind, through)

    def _question(self, topic: Topic) -> Question:
        titles = self.titles(topic)
        details = self._details(titles[-1], topic.relation, topic.kind)
        return Question(
            id=self.id_of(topic),
            text=self._text(topic, self._named(topic.start), details),
            answers=details.answers,
            source=self.world.name,
            hops=len(titles),
            passage_ids=tuple([self.world.passage_ids[title] for title in titles]),
            titles=titles,
        )

    def _text(self, topic: Topic, named: str, details: _Details) -> str:
        start, relation, kind, through = topic
        key = f"{relation}/{kind}" if kind else relation
        drawn = f"{self.world.name}/{self.surface}/{start}/{through}/{key}"
        if through:
            named = _one_of(THROUGH[through], f"{drawn}/through").format(named)
        text = _one_of(ASKED[key], drawn).format(named, year=details.year, options=_listed_or(details.options))
        return text.replace(" now now", " now").replace(" now today", " today")  # both hops say when

    def stale(self, question: Question) -> str:
        """The wrong answer that the subject's own passage suggests; empty: it tells the truth."""
        relation, kind = key_of(question)
        subject = question.titles[-1]
        return "" if kind or (subject, relation) not in self._wrong else self.world.stated(subject, relation).values[0]

    @cached_property
    def _wrong(self) -> frozenset[tuple[str, str]]:
        return frozenset(self.world.corrected)

    @cached_property
    def _kinds(self) -> dict[str, list[tuple[str, str]]]:
        wanted = {"" if one == "value" else one for one in self.asked}
        return {subject: [one for one in kinds if one[1] in wanted] for subject, kinds in KINDS.items()}

    @cached_property
    def names(self) -> list[str]:
        return list(self.world.entities)

    def step(self, rng: random.Random, start: str) -> str:
        """A relation to another entity whose truth stands in the passage."""
        ways = self._ways[start]
        return rng.choice(ways) if ways else ""

    @cached_property
    def _ways(self) -> dict[str, list[str]]:
        wrong, to = self._wrong, {kind: [name for name in RELATIONS[kind] if name in THROUGH] for kind in RELATIONS}
        entities = self.world.entities.values()
        return {one.name: [name for name in to[one.kind] if (one.name, name) not in wrong] for one in entities}

    def reached(self, start: str, through: str) -> str:
        """The entity that the last relation is about."""
        return self.world.facts[start, through].values[0] if through else start

    def last(self, rng: random.Random, subject: str) -> tuple[str, str]:
        """(relation, kind of question), or ("", "") where chance led nowhere."""
        kinds = self._kinds[self.world.entities[subject].kind]
        if not kinds:
            return "", ""
        relation, kind = rng.choice(kinds)
        fact = self.world.facts[subject, relation]
        if kind == "past" and not fact.before:
            return "", ""
        if kind == "odd" and len(fact.values) < _OPTIONS - 1:
            return "", ""
        if (subject, relation) in self._wrong:
            return "", ""  # only for those who ask what corrects it, too
        return relation, kind

    def circular(self, start: str, through: str, relation: str) -> bool:
        """Whether the second answer is a name that the question has, or could be guessed from the first hop."""
        subject = self.reached(start, through)
        fact = self.world.facts[subject, relation]
        return relation == through or start in (subject, fact.before, *fact.values)

    def _named(self, name: str) -> str:
        nickname = self.world.entities[name].nickname
        # which name is used is no matter of wording: one of the two needs a search for the other
        return _one_of((name, f"the {nickname}"), f"{self.world.name}/{name}") if nickname else name

    def _details(self, subject: str, relation: str, kind: str) -> _Details:
        asked = subject, relation, kind
        if asked not in self._known:
            self._known[asked] = self._looked_up(*asked)
        return self._known[asked]

    def _looked_up(self, subject: str, relation: str, kind: str) -> _Details:
        fact = self.world.facts[subject, relation]
        if not kind:
            return _Details(self._forms(fact.values[0], relation, subject))
        if kind == "list":
            return _Details(_lists(fact.values))
        if kind == "count":
            number = len(fact.values)
            return _Details((_NUMBERS[number], str(number)))
        key = f"{self.world.name}/{subject}/{relation}/{kind}"
        if kind == "past":
            year = _one_of(range(max(fact.start, fact.since - 3), fact.since), key)
            return _Details(self._forms(fact.before, relation, subject), year=str(year))
        drawn = random.Random(key)
        everything = WORDS.get(relation) or tuple(self.world.by_kind["town"])
        wrong = drawn.choice([one for one in everything if one not in fact.values and one != subject])
        options = [wrong, *drawn.sample(fact.values, _OPTIONS - 1)]
        drawn.shuffle(options)
        return _Details((wrong,), options=tuple(options))

    def _forms(self, value: str, relation: str, subject: str) -> tuple[str, ...]:
        about = RELATIONS[self.world.entities[subject].kind][relation]
        if about.value == "date":
            return dates(value)
        if about.value == "river":
            return (value, f"River {value}", f"{value} River")
        nickname = self.world.entities[value].nickname if about.value == "town" else ""
        return (value, f"the {nickname}") if nickname else (value,)


class _Pool(Sequence[Question]):
    """Questions about topics."""

    def __init__(self, asker: Asker, topics: Sequence[Topic]) -> None:
        self._asker, self._topics = asker, topics

    def __len__(self) -> int:
        return len(self._topics)

    def __getitem__(self, place: Any) -> Any:
        topics = self._topics[place]
        return [*map(self._asker.question, topics)] if isinstance(place, slice) else self._asker.question(topics)


@dataclass(frozen=True, slots=True)
class _Details:
    answers: tuple[str, ...]
    options: tuple[str, ...] = ()
    year: str = ""


def key_of(question: Question) -> tuple[str, str]:
    """(relation, kind) of a question's id."""
    relation, _, kind = question.id.split(":")[1].rpartition(".")[2].partition("/")
    return relation, kind


def _one_of(options: Sequence[T], key: str) -> T:
    """One of a few, drawn by the key."""
    return options[zlib.crc32(key.encode()) % len(options)]


def _listed_or(options: tuple[str, ...]) -> str:
    """a, b, c  ->  "a, b or c" """
    return " or ".join(filter(None, (", ".join(options[:-1]), *options[-1:])))


def dates(value: str) -> tuple[str, ...]:
    """The ways to write a date: "14 March 1952" -> also "March 14, 1952", "14th of March 1952", "1952-03-14" ..."""
    day, month, year = value.split()
    end = "th" if day in ("11", "12", "13") else {"1": "st", "2": "nd", "3": "rd"}.get(day[-1], "th")
    iso = f"{year}-{MONTHS.index(month) + 1:02d}-{int(day):02d}"
    return (
        value,
        f"{month} {day}, {year}",
        f"{day}{end} {month} {year}",
        f"{day}{end} of {month} {year}",
        f"{month} {day}{end}, {year}",
        f"{day} of {month} {year}",
        iso,
    )


def _lists(values: tuple[str, ...]) -> tuple[str, ...]:
    """A list in every order, with and without "and"."""
    orders = list(itertools.permutations(values))
    return tuple(dict.fromkeys(text for order in orders for text in (listed(order), ", ".join(order))))
