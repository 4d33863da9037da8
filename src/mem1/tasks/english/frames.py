"""A world written out: one passage of 60 to 200 words for each entity, and the frames of its sentences.

    write(world, surface=0)[0].text
    ->  "Corin Ashmont is a potter by trade. He lives in Elmwick, close to the station. Until 2003 ..."

Facts and remarks follow an introduction in an order drawn for each passage. `surface` draws the sentences, never what
they say. A frame has slots; [a|b] stands for two frames:

    {N}         the full name
    {S} {s}     "She", "Ashmont", "The town": a short name at the start of a sentence; a pronoun within it
    {l}         "Ashmont", "the town": a short name within a sentence
    {P} {p}     "Her" or "Its", "her" or "its"
    {v} {b}     the value, and the one before it
    {f} {y}     the years in which the value before began and ended
    {o} {u}     something with a similar name; its trade, if it is a person
    {t}         the subject's own trade

Expanded frames are dealt like cards, so that each serves about equally many passages of a world, and none stands in
more than one passage of twenty.
"""

from __future__ import annotations

import itertools
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from mem1.records import Passage
from mem1.tasks.english.world import MONTHS, RELATIONS, EnglishWorld, Entity, Fact, Notice

INTRODUCTIONS: Mapping[str, tuple[str, ...]] = {
    "person": (
        "{N} is {t} by [trade|training|profession].",
        "{N} works as {t}[|, mostly alone|, like two uncles].",
        "[Among|Of all] the people [of this region|in these pages], {N}, {t}, is one of the [better|lesser] known.",
        "{N} is {t} whose [work|career] has been [followed|described] in several [papers|magazines].",
        "[Few|Not many] who have met {N}, {t}, [forget the meeting|forget it].",
        "The [name|life] of {N}, {t}, [comes up|turns up] in many [accounts|stories] of the period.",
    ),
    "town": (
        "{N} is a [market|small|quiet|busy] town.",
        "[Travellers|Visitors] who [come|arrive] by [train|road] see {N} from [far away|a distance].",
        "The town of {N} [keeps|has kept] its old [walls|gates] and most of its narrow [lanes|streets].",
        "{N} lies in a [wide|green] valley [between low hills|among fields].",
    ),
    "firm": (
        "{N} is a [firm|company] [of good standing|known in its line|that rarely makes headlines].",
        "[Buyers|Dealers] [abroad|at home] know {N} [chiefly|mainly] for its [patience|careful work].",
        "The [firm|company] called {N} has [outlived|survived] [two of its rivals|most of its rivals].",
    ),
    "novel": (
        "{N} is a novel in [two|three|four] parts.",
        "The novel {N} [opens|begins] with a [storm|funeral|journey|quarrel].",
        "{N} is a novel that [readers|critics] either [love|praise] or put away [unfinished|early].",
        "[Reviewers|Teachers] [often|still] [recommend|mention] the novel {N}.",
    ),
}
"""Kind of the subject -> first sentences of its passage."""

TOLD: Mapping[str, tuple[str, ...]] = {
    "birthplace": (
        "{S} was born in {v} [and left it early|and grew up there|in the middle of a hard winter].",
        "{P} [birthplace|native town] is {v}[, where relatives still live|, a place {s} seldom mentions|].",
        "[A plaque|A small sign] in {v} [marks|shows] the house where {s} was born.",
        "{S} [came into the world|was born] in {v}, [the second child|the youngest] of the family.",
        "{v} [claims|counts] {l} as a native, for {s} was born there.",
    ),
    "birthday": (
        "{S} was born on {v}[|, according to the register|, a date {s} likes to celebrate].",
        "{P} [date of birth is|birthday, by the parish book, is] {v}.",
        "The [register|parish book] gives {v} as the day of {p} birth.",
        "{P} life began on {v}[|, two weeks too early].",
    ),
    "employer": (
        "{S} [works for|is employed by|earns {p} living at] {v}[|, mostly in the drawing office].",
        "{S} [works for|is employed by] {v} and says little of it.",
        "{P} [employer|present employer] is {v}[|, which {s} [calls|has called] a second home].",
        "{v} [employs {l}|has {l} on its books|pays {p} salary][| and sends {p} reports abroad].",
    ),
    "employer/changed": (
        "From {f} to {y} {s} worked for {b}; since {y} {v} has been {p} employer.",
        "{S} [left|gave notice at] {b}, where {s} had been since {f}, in {y}, and has worked for {v} ever since.",
        "Between {f} and {y} {p} employer was {b}, [but in {y} {s} moved to {v}|and after that, to this day, {v}].",
        "{b} employed {l} from {f} until {y}, when {s} [changed to|joined] {v}, where {s} still works.",
        "In {y} {v} [hired|took on] {l}, who had been at {b} since {f}, and {s} has stayed there.",
    ),
    "home": (
        "{S} lives in {v}[|, close to the station|, in a house with a blue door|, where {s} keeps bees].",
        "{P} home is [a flat|a house] in {v}[|, full of books].",
        "[Anyone looking|Whoever looks] for {l} must go to {v}, where {s} [lives|has settled].",
    ),
    "home/changed": (
        "Until {y} {p} home was {b}; since then {s} has lived in {v}.",
        "{S} lived in {b} from {f} to {y}, when {s} [moved to|settled in] {v}, {p} present home.",
        "In {y} {s} [sold the house in|gave up the flat in] {b} that had been {p} home since {f}, and moved to {v}, "
        "where {s} lives [now|today].",
        "After years in {b}, from {f} on, {s} moved in {y} to {v} and [lives there now|has stayed there since].",
    ),
    "instruments": (
        "{S} plays the {v}[|, though never before guests|, and has done so since school].",
        "In the evenings {s} [practises|plays] the {v}.",
        "{P} instruments are the {v}[|, in that order|, all bought second-hand].",
        "[Friends|Neighbours] [hear|have heard] {l} play the {v}, and no other instrument.",
        "{S} [learnt|taught {p} own hands] to play the {v}.",
    ),
    "mayor": (
        "Its mayor is {v}[|, elected without a rival|, who lives above the town hall].",
        "{v} [is mayor here|is the mayor|governs the town as its mayor][|, and has been for long].",
        "The [mayor's office|office of mayor] is [held|filled] by {v}.",
    ),
    "mayor/changed": (
        "{b} was mayor from {f} to {y}; since {y} the mayor has been {v}.",
        "In {y} {v} [followed|replaced] {b}, mayor since {f}, and has been mayor ever since.",
        "The mayor is {v}, who took [the office|over] in {y} from {b}, [mayor since {f}|in office since {f}].",
        "From {f} until {y} the town had {b} as its mayor, and from then to this day {v}.",
    ),
    "river": (
        "{S} lies on the {v}[|, which floods in March|, whose water drives a mill].",
        "The river that [runs|flows] through {l} is the {v}.",
        "[Three|Four] bridges [cross|span] the {v}, the river on which {l} lies.",
        "Its river, the {v}, [freezes in most winters|is too shallow for ships].",
    ),
    "population": (
        "{S} has {v} inhabitants[|, by the last count].",
        "[The last count found|At the last count there were] {v} inhabitants.",
        "[Its population is|It has a population of] {v}[|, a little more than ten years ago].",
        "{v} people [live here|live in {l}].",
    ),
    "founded": (
        "{S} was founded in {v}[|, after a fire had destroyed an older village|, on drained land].",
        "The [founding charter|charter of the town] [is dated|bears the year] {v}.",
        "Its [history|story] as a town [begins|began] in {v}, the year of its founding.",
    ),
    "twins": (
        "{S} is twinned with {v}.",
        "Its twin towns are {v}.",
        "[Delegations|Choirs] [come|visit] every summer from its twin towns, {v}.",
        "The twin towns, {v}, [are named|stand] on a board at the [station|town hall].",
    ),
    "nickname": (
        "[People|Locals|Newspapers] [call it|know it as] the {v}.",
        "{S} is [also|widely|better] known as the {v}.",
        "Its second name is the {v}[|, and nobody remembers why].",
    ),
    "founder": (
        "{S} was founded by {v}[|, with borrowed money|, in a rented shed].",
        "Its founder [is|was] {v}[|, whose portrait hangs in the hall].",
        "It was {v} who founded the [firm|company].",
    ),
    "seat": (
        "Its seat is in {v}[|, near the canal|, behind the market].",
        "{S} has its seat in {v}[|, and a small store elsewhere].",
        "The [head office|headquarters] [is|stands] in {v}.",
    ),
    "seat/changed": (
        "Its seat was in {b} until {y}, when it moved to {v}, where it is today.",
        "In {y} the head office moved from {b} to {v}[|, and has stayed there].",
        "{S} left {b} in {y} and has had its seat in {v} since.",
    ),
    "opened": (
        "{S} [opened|began business] in {v}[|, in two rooms].",
        "The [doors|workshop] opened [for the first time |]in {v}.",
        "[Its first year of business|The year in which it opened] was {v}.",
    ),
    "staff": (
        "{S} has {v} employees[|, not counting apprentices].",
        "[There are|It counts] {v} people on the staff.",
        "A staff of {v} [keeps it going|does the work].",
        "[According to|By] the books it has a staff of {v}.",
    ),
    "products": (
        "{S} makes {v}[|, and nothing else].",
        "Its products are {v}[|, sold in plain boxes].",
        "[Lorries|Carts|Trains] [leave|roll out of] the [works|workshop] with {v}.",
    ),
    "author": (
        "Its author is {v}[|, who wrote it in one winter].",
        "{v} wrote it[|, mostly on trains].",
        "{v} is its author.",
        "[It was written by|It is the work of] {v}.",
    ),
    "published": (
        "{S} [was published|came out] in {v}.",
        "[The first edition|The first printing] dates from {v}.",
        "[Readers|Shops] had to wait until {v}, the year of its publication.",
    ),
    "pages": (
        "{S} has {v} pages[|, in small print].",
        "[It runs to|Its length is] {v} pages.",
        "The [book|volume] [fills|takes] {v} pages.",
    ),
    "publisher": (
        "It was published by {v}[|, after [two|three] refusals].",
        "Its publisher is {v}[|, which paid very little].",
        "{v} [published it|brought it out].",
    ),
    "languages": (
        "{S} has been translated into {v}.",
        "There are translations into {v}.",
        "[So far|By now] it can be read in {v} as well[| as in the original].",
    ),
}
"""Relation, and "/changed" where the value was another one before -> sentences that state it."""

REMARKS: Mapping[str, tuple[str, ...]] = {
    "person": (
        "{S} is not to be confused with {o}, {u}[|, to whom {s} is not related].",
        "[Letters|Parcels] for {o}, {u}, [often|sometimes] reach {p} door by mistake.",
        "{S} [keeps|has kept] a diary [since school|in green ink|that nobody may read].",
        "[A former teacher|An old friend|A cousin] [describes|remembers] {l} as [patient|stubborn|curious].",
        "{S} [walks|cycles] a good deal, [even in bad weather|mostly before breakfast|usually alone].",
        "{P} [lectures|talks] are [short|long] and [end with a joke|rarely go as announced].",
        "{S} [collects|repairs] [maps|old radios|postcards|keys] [in spare hours|on Sundays].",
        "[Twice|Once] {s} [refused|declined] a prize, [without giving a reason|for reasons of health].",
        "{P} handwriting is [famous among colleagues|known to be hard to read].",
    ),
    "town": (
        "[Strangers|Maps] [mix it up|confuse it] with {o}, which is [smaller|larger|far away].",
        "The [market|fair] is held [on Thursdays|twice a year|under old lime trees].",
        "[A fire|A flood] [once |]destroyed [the school|the old mill|half of the harbour].",
        "The [church|town hall] clock is [slow|fast] by [two|three|five] minutes.",
        "There is a [museum|library] with a [good|poor] collection of [coins|shells|portraits].",
        "[Summers|Winters] are [mild|windy], and the [storks|swallows] [return late|stay long].",
        "Its [bakers|potters] [are proud of|sell] a recipe that [no one shares|is older than the school].",
        "The [railway|road] [reached|came to] the town [late|after long disputes].",
    ),
    "firm": (
        "It has [no connection|nothing to do] with {o}[|, whatever the papers say].",
        "[A strike|A fire] [once |]stopped the work for [a week|a month].",
        "The [canteen|yard] is [praised|known] [by visitors|among apprentices].",
        "Its [catalogue|price list] is printed [once|twice] a year on [grey|yellow] paper.",
        "[Orders|Complaints] are answered [by hand|within a day|in the order of their arrival].",
        "The [lorries|vans] are painted [green|white|dark blue].",
        "It [has never|never] [advertised|borrowed], and [means to keep it so|is proud of it].",
    ),
    "novel": (
        "[It should not be taken for|Libraries confuse it with] {o}, a [shorter|longer] book.",
        "The [hero|narrator] is a [ferryman|widow|schoolboy|clerk] who [never gives a name|lies a great deal].",
        "[A film|A play] [was made of it|was planned] and [forgotten|never shown].",
        "The [last|middle] chapter is [the best|often skipped|a letter].",
        "Its [cover|title page] shows a [door|bird|harbour] [in red|without a word of explanation].",
        "[Critics|Students] [argue|disagree] about [its ending|the meaning of its title].",
        "[Old|Signed] copies are [rare|dear][| and usually damp].",
    ),
}
"""Kind of the subject -> sentences that answer no question."""

SHORT: Mapping[str, tuple[str, ...]] = {
    "town": ("It", "The town", "The place"),
    "firm": ("It", "The firm", "The company"),
    "novel": ("It", "The novel", "The book"),
}
"""Kind of the subject -> short ways to name it; a person is called by pronoun or last name."""

CORRECTIONS: Mapping[str, tuple[str, ...]] = {
    "birthplace": ("{N} was born in {v}, not in {b}.", "the birthplace of {N} is {v} and not {b}."),
    "birthday": ("{N} was born on {v}, not on {b}.", "the birthday of {N} is {v} and not {b}."),
    "river": ("{N} lies on the {v}, not on the {b}.", "the river at {N} is the {v} and not the {b}."),
    "population": ("{N} has {v} inhabitants, not {b}.", "the population of {N} is {v} and not {b}."),
    "founded": ("{N} was founded in {v}, not in {b}.", "the town of {N} dates from {v} and not from {b}."),
    "founder": ("{N} was founded by {v}, not by {b}.", "the founder of {N} is {v} and not {b}."),
    "opened": ("{N} opened in {v}, not in {b}.", "the first year of {N} was {v} and not {b}."),
    "author": ("{N} was written by {v}, not by {b}.", "the author of {N} is {v} and not {b}."),
    "pages": ("{N} has {v} pages, not {b}.", "the length of {N} is {v} pages and not {b}."),
}
"""Relation -> the rest of a notice that begins with "Correction of 3 May 2022: "."""

_CHOICE = re.compile(r"\[([^\[\]]*)\]")


def expand(frame: str) -> list[str]:
    """All frames that alternatives stand for: "a [b|c]" -> "a b", "a c". Alternatives may hold alternatives."""
    found = _CHOICE.search(frame)
    if found is None:
        return [" ".join(frame.split()).replace(" ,", ",")]
    parts = (frame[: found.start()] + choice + frame[found.end() :] for choice in found[1].split("|"))
    return list(dict.fromkeys(itertools.chain.from_iterable(expand(part) for part in parts)))


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


def write(world: EnglishWorld, *, surface: int = 0, remarks: bool = True) -> list[Written]:
    """The passages of all entities, in their order; without `remarks`, they say nothing but facts."""
    deal = _Deck(random.Random(f"{world.name}/surface/{surface}"))
    others = {name: found for names in world.by_kind.values() for name, found in _others(names).items()}
    return [_written(world, entity, others[entity.name], deal, remarks) for entity in world.entities.values()]


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


def _written(world: EnglishWorld, entity: Entity, others: Sequence[str], deal: _Deck, remarks: bool) -> Written:
    """`others`: entities of which a remark can be."""
    rng = deal.rng
    source, frame = deal(f"introduction/{entity.kind}")
    frames, sources = [frame], {source}
    sentences = [_filled(frame, entity, rng, {})]
    told: list[tuple[str, Fact | None]] = list(_facts(world, entity))
    told += [("remark", None)] * (rng.choice(_REMARKS) if remarks else 0)
    rng.shuffle(told)
    while told or (remarks and sum(len(sentence.split()) for sentence in sentences) < _FEWEST_WORDS):
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
