"""Facts that the user and the work plant in a transcript of any kind.

    user         From now on never touch /srv/ledger/quota-481.toml; it belongs to the nightly ledger import.
    assistant    Tried thornqueue-318 for the weekly billing export; it failed and must not be tried again.
    result       The regional payroll cache runs on cache-417.payroll.internal.
    later        The regional payroll cache has moved from cache-417.payroll.internal to cache-902.payroll.internal.

Values are words that occur nowhere else; each split has its own. How a fact is said is in `wordings`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from mem1.extras.probe.kinds.parts import Told, Wordings, in_half, plain
from mem1.extras.probe.kinds.wordings import OVERTAKEN, SENTENCES
from mem1.tasks.cloze.questions import BLANK
from mem1.tasks.compose import Split

PLANTED = ("identifier", "path", "number", "decision", "rule", "correction", "negative")
"""Kinds of facts that can be planted."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_WHEN = _words(
    "nightly weekly hourly monthly quarterly yearly regional national legacy partner mobile internal external archived "
    "public private manual shared local former"
)
_SYSTEMS = _words(
    "billing ledger payroll catalogue shipping returns pricing search mailing audit booking archive metrics gateway "
    "loyalty staging customs tariff inventory voucher"
)
_PARTS = _words(
    "import export queue cache report mirror index backup scheduler proxy rollup feed digest sweep replay webhook "
    "snapshot ranking checkout lookup"
)
_ROOTS = _words("thorn alder quill larch ember heron basalt willow copper marten osprey flint")
_TAILS = _words("queue store mq db cast flow vault grid bus sync")
_TICKETS = ("OPS", "REQ", "CASE", "INC", "TASK")

_Voice = Literal["user", "assistant", "result"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A sentence that states a fact, and who says it."""

    topic: str
    """What it is about."""
    told: Told
    sentence: str
    voice: _Voice
    later: Planted | None = None
    """The correction that overtakes it; None: it holds to the end."""


def plant(random: Random, half: Split, kind: str, wordings: Wordings) -> Planted:
    """A fact of a kind of `PLANTED`; for a correction, what it will overtake, with the correction as `later`."""
    topic = _topic(random, half)
    if kind != "correction":
        made, noun, sentence = random.choice(SENTENCES[wordings][kind])
        return _planted(random, kind, topic, _value(random, half, made, topic), (noun, sentence, sentence))
    first_kind, made, noun, first, sentences = random.choice(OVERTAKEN[wordings])
    old, value = _value(random, half, made, topic), _value(random, half, made, topic)
    while value == old:
        value = _value(random, half, made, topic)
    cloze = f"After a change: {first[0].lower()}{first[1:]}"
    later = _planted(random, "correction", topic, value, (noun, random.choice(sentences), cloze), key=old)
    return replace(_planted(random, first_kind, topic, old, (noun, first, first), key=old), later=later)


def _planted(
    random: Random, kind: str, topic: str, value: str, words: tuple[str, str, str], *, key: str = ""
) -> Planted:
    """`words`: what a note calls it, how it is said, its cloze; `key`: the value that is overtaken; empty: none is."""
    noun, sentence, cloze = words
    told = Told(
        kind=kind,
        cloze=cloze.format(topic=topic, value=BLANK),
        forms=plain(value),
        subject=topic.partition(" ")[2],  # a summary may well leave out when it runs
        key=key,
        label=f"{topic} {noun}",
    )
    voice: _Voice = "user" if kind in ("rule", "decision") else random.choice(("assistant", "result", "result"))
    return Planted(topic=topic, told=told, sentence=sentence.format(topic=topic, value=value, old=key), voice=voice)


def _topic(random: Random, half: Split) -> str:
    while True:
        topic = " ".join((random.choice(_WHEN), random.choice(_SYSTEMS), random.choice(_PARTS)))
        if in_half(topic, half):
            return topic


def _value(random: Random, half: Split, made: str, topic: str) -> str:
    """A value of this half: a ticket, path, host, number or product."""
    _, system, part = topic.split()
    while True:
        number = random.randrange(100, 10_000)
        value = {
            "ticket": f"{random.choice(_TICKETS)}-{random.randrange(10_000, 1_000_000)}",
            "path": f"/srv/{system}/{part}-{number}.{random.choice(('toml', 'yaml', 'env', 'csv'))}",
            "host": f"{part}-{number}.{system}.internal",
            "number": f"{random.randrange(100_000, 1_000_000):,}",
            "product": f"{random.choice(_ROOTS)}{random.choice(_TAILS)}-{number}",
        }[made]
        if in_half(value, half):
            return value
