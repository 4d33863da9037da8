"""An agent in an invented world, whose passages say who lives where, and correct one another.

assistant   search({"query": "Elmwick"})
tool        [1] Elmwick: Elmwick is a town ... It lies on the Calther ...
fact        Elmwick lies on the river ____.                  Calther, near Elmwick, until the next message
tool        [1] Dunford: ...  Correction of 3 May 2022: Elmwick lies on the Morvin, not on the Calther.
fact        Elmwick lies on the river ____.                  Morvin, near Elmwick; stale: Calther
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mem1.extras.probe.kinds.parts import Exchange, Scene, Told, Wanted, cut, dated, plain
from mem1.tasks.english import names
from mem1.tasks.english.frames import notice_text, write
from mem1.tasks.english.world import RELATIONS, EnglishWorld, make_english_world

_NOUNS: Mapping[str, str] = {"birthday": "born", "population": "inhabitants", "staff": "employees"}
"""What a note calls a relation, where that is another word."""
_CLOZES: Mapping[str, tuple[str, str]] = {
    "birthplace": ("name", "{} was born in ____."),
    "birthday": ("date", "{} was born on ____."),
    "employer": ("name", "{} now works for ____."),
    "home": ("name", "{} now lives in ____."),
    "mayor": ("name", "The mayor of {} is now ____."),
    "river": ("name", "{} lies on the river ____."),
    "population": ("number", "{} has ____ inhabitants."),
    "founded": ("date", "{} was founded in the year ____."),
    "founder": ("name", "{} was founded by ____."),
    "seat": ("name", "{} now has its seat in ____."),
    "opened": ("date", "{} opened in the year ____."),
    "staff": ("number", "{} has ____ employees."),
    "author": ("name", "The author of {} is ____."),
    "published": ("date", "{} was published in the year ____."),
    "pages": ("number", "{} has ____ pages."),
    "publisher": ("name", "The publisher of {} is ____."),
}
"""Relation -> kind of fact, cloze about a subject."""
_FEWEST, _PER_EXCHANGE = 120, 2.2
"""Entities of a world: at least, and per exchange."""
_AGAIN = 0.1
"""Share of the passages that were shown before; more in a world with fewer than are shown."""


def make_atlas(wanted: Wanted) -> Scene:
    """See `KINDS`."""
    most = 3 * len(names.towns(wanted.half))
    entities = min(most, max(_FEWEST, int(_PER_EXCHANGE * wanted.settings.exchanges)))
    world = make_english_world(wanted.random.randrange(10**9), split=wanted.half, entities=entities, updates=1)
    return Scene(
        system="You answer questions with the tool search, which finds passages of an atlas. Some passages are wrong; "
        "corrections stand below others, and the latest holds.",
        task="Go through the atlas, entry by entry, and keep what it says about people, towns, firms and novels. I "
        "will ask about any of it at the end; where the atlas was corrected, I want to hear what is right.",
        note="Note of the editors: {}",
        exchanges=_exchanges(wanted, world),
    )


def _exchanges(wanted: Wanted, world: EnglishWorld) -> Iterator[Exchange]:
    random, words = wanted.random, wanted.settings.result_words // 2
    texts = {written.passage.title: written.passage.text for written in write(world, surface=random.randrange(1000))}
    everyone = list(texts)
    queue = random.sample(everyone, len(everyone))
    new = min(1 - _AGAIN, len(everyone) / (2 * wanted.settings.exchanges))
    keys = {f"{subject}/{relation}": (subject, relation) for subject, relation in world.corrected}
    corrected: set[str] = set()
    """Subjects of corrections, whose passages are not shown again: they would repeat what is wrong."""
    free = list(everyone)
    """All others."""
    carriers = {key: world.corrections(*about)[0] for key, about in keys.items()}
    while True:
        known = [key for key in wanted.taken if key in keys and keys[key][0] not in corrected]
        due = [key for key in known if carriers[key] not in corrected]
        told: list[Told] = []
        below = ""
        if wanted.corrects(len(due)):
            key = random.choice(due)
            name, (subject, relation) = carriers[key], keys[key]
            below = f"\n{notice_text(world.notices[name])}"
            told.append(_told(world, subject, relation, corrected=True))
            corrected.add(subject)
            free = [one for one in free if one != subject]
            queue = [one for one in queue if one != subject]
        else:
            name = queue.pop() if queue and random.random() < new else random.choice(free)
        other = name
        while other == name:
            other = queue.pop() if queue and random.random() < new else random.choice(free)
        shown = {one: cut(texts[one], words) for one in (name, other)}
        for one, text in shown.items():
            for relation in RELATIONS[world.entities[one].kind]:
                if relation in _CLOZES:
                    fact = _told(world, one, relation)
                    told += [fact] if fact.forms[0] in text else []
        result = f"[1] {name}: {shown[name]}{below}\n[2] {other}: {shown[other]}"
        yield Exchange("search", {"query": name}, result, tuple(told))


def _told(world: EnglishWorld, subject: str, relation: str, *, corrected: bool = False) -> Told:
    """What the subject's passage says, or what is right, of a fact that is corrected."""
    kind, cloze = _CLOZES[relation]
    fact = world.facts[subject, relation] if corrected else world.stated(subject, relation)
    value = fact.values[0]
    forms = plain(value)
    if relation == "birthday":
        day, month, year = value.split()
        forms = dated(int(day), month, int(year))
    text = cloze.format(subject)
    return Told(
        kind="correction" if corrected else kind,
        cloze=f"After a correction: {text}" if corrected else text,
        forms=forms,
        subject=subject,
        key=f"{subject}/{relation}" if world.corrections(subject, relation) else "",
        label=f"{subject} {_NOUNS.get(relation, relation)}",
    )
