"""A world written out: one passage of 60 to 200 words for each entity.

    write(world, surface=0)[0].text
    ->  "Corin Ashmont is a potter by trade. He lives in Elmwick, close to the station. Until 2003 ..."

Facts and remarks follow an introduction in an order drawn for each passage. `surface` draws the sentences, never what
they say. Sentence frames are dealt like cards, so that each serves about equally many passages of a world.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from mem1.records import Passage
from mem1.tasks.english.frames import CORRECTIONS, INTRODUCTIONS, REMARKS, SHORT, TOLD, expand
from mem1.tasks.english.world import MONTHS, RELATIONS, EnglishWorld, Entity, Fact, Notice

_FEWEST_WORDS = 60
_REMARKS = (2, 2, 3, 4, 6)
"""Numbers of remarks, one of which is drawn; more where a passage would be shorter than `_FEWEST_WORDS`."""


@dataclass(frozen=True, slots=True)
class Written:
    """A passage, and the frames of its sentences."""

    passage: Passage
    frames: tuple[str, ...]


_Frame = tuple[str, str]
"""(the frame with its alternatives, one of the frames that it stands for)."""


def write(world: EnglishWorld, *, surface: int = 0) -> list[Written]:
    """The passages of all entities, in their order."""
    deal = _Deck(random.Random(f"{world.name}/surface/{surface}"))
    others = {name: found for names in world.by_kind.values() for name, found in _others(names).items()}
    return [_written(world, entity, others[entity.name], deal) for entity in world.entities.values()]


def notice_text(notice: Notice) -> str:
    """Correction of 3 May 2022: Elmwick lies on the Morvin, not on the Calther."""
    day = f"{notice.day.day} {MONTHS[notice.day.month - 1]} {notice.day.year}"
    frames = CORRECTIONS[notice.relation]
    said = frames[notice.day.day % len(frames)].format(N=notice.subject, v=notice.value, b=notice.stated)
    return f"Correction of {day}: {said}"


def listed(values: Sequence[str]) -> str:
    """oboe, harp, flute  ->  "oboe, harp and flute" """
    return values[0] if len(values) == 1 else f"{', '.join(values[:-1])} and {values[-1]}"


class _Deck:
    """Deals frames: each of a kind once before any is repeated."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._left: defaultdict[str, list[_Frame]] = defaultdict(list)

    def __call__(self, group: str) -> _Frame:
        left = self._left[group]
        if not left:
            left.extend(_frames(group))
            self.rng.shuffle(left)
        return left.pop()


@cache
def _frames(group: str) -> tuple[_Frame, ...]:
    """Of "introduction/town", "remark/town", or a key of TOLD."""
    name, _, kind = group.partition("/")
    given = {"introduction": INTRODUCTIONS, "remark": REMARKS}.get(name, TOLD)
    return tuple((one, frame) for one in given[group if given is TOLD else kind] for frame in expand(one))


def _written(world: EnglishWorld, entity: Entity, others: Sequence[str], deal: _Deck) -> Written:
    """`others`: entities of which a remark can be."""
    rng = deal.rng
    source, frame = deal(f"introduction/{entity.kind}")
    frames, sources = [frame], {source}
    sentences = [_filled(frame, entity, rng, {})]
    told: list[tuple[str, Fact | None]] = list(_facts(world, entity))
    told += [("remark", None)] * rng.choice(_REMARKS)
    rng.shuffle(told)
    while told or sum(len(sentence.split()) for sentence in sentences) < _FEWEST_WORDS:
        name, fact = told.pop() if told else ("remark", None)
        if fact is None:
            source, frame = deal(f"remark/{entity.kind}")
            if source in sources:
                continue  # two clocks that are fast would be one too many
            other = rng.choice(others)
            trade = world.entities[other].trade
            slots = {"o": other, "u": _one(trade) if trade else ""}
        else:
            source, frame = deal(f"{name}/changed" if fact.before else name)
            slots = {"v": listed(fact.values), "b": fact.before, "f": str(fact.start), "y": str(fact.since)}
        frames.append(frame)
        sources.add(source)
        sentences.append(_filled(frame, entity, rng, slots))
    passage = Passage(world.passage_ids[entity.name], entity.name, " ".join(sentences))
    return Written(passage, tuple(frames))


def _facts(world: EnglishWorld, entity: Entity) -> Iterator[tuple[str, Fact]]:
    for name in RELATIONS[entity.kind]:
        yield name, world.stated(entity.name, name)
    if entity.nickname:
        yield "nickname", Fact((entity.nickname,))


def _others(names: Sequence[str]) -> dict[str, list[str]]:
    """Name -> those that share a word or the first five letters with it, in order; all others if there are none."""
    parts = [{*name.split(), f"{name[:5]}-"} - {"The"} for name in names]
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for number, found in enumerate(parts):
        for part in found:
            numbers[part].append(number)
    alike = ({one for part in parts[own] for one in numbers[part]} - {own} for own in range(len(names)))
    return {
        name: [names[number] for number in sorted(near)] or [one for one in names if one != name]
        for name, near in zip(names, alike, strict=True)
    }


def _one(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _filled(frame: str, entity: Entity, rng: random.Random, slots: Mapping[str, str]) -> str:
    person = entity.kind == "person"
    pronoun = entity.pronoun
    last = entity.name.split()[-1]
    start = rng.choice((pronoun.capitalize(), last)) if person else rng.choice(SHORT[entity.kind])
    possessive = {"she": "her", "he": "his", "it": "its"}[pronoun]
    trade = {"t": _one(entity.trade)} if person else {}
    text = frame.format(
        **{"N": entity.name, "S": start, "s": pronoun, "l": last if person else SHORT[entity.kind][1].lower()},
        **{"P": possessive.capitalize(), "p": possessive},
        **trade,
        **slots,
    )
    return text[0].upper() + text[1:]
