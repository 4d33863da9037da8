"""Kinds of transcripts that are made here, each like the work of one kind of agent.

    make_transcript("office", "test", 7, Settings(exchanges=200))    mails, orders and products; about 100 facts

search      passages of a corpus of yours, found one after the other
atlas       passages of an invented world, which later ones correct
software    results of tools that read a repository: git, grep, wc, stack traces
office      invented mails, orders and appointments, and the pages of an invented shop

A transcript is a pure function of its kind, split, number and settings, and of the files that these name. Development
and test share no seed and no invented name; real passages, files and commits belong to one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from mem1.errors import UserError
from mem1.extras.probe.kinds.atlas import make_atlas
from mem1.extras.probe.kinds.drafting import Draft
from mem1.extras.probe.kinds.office import make_office
from mem1.extras.probe.kinds.parts import Maker, Settings, Split, Wordings
from mem1.extras.probe.kinds.search import make_search
from mem1.extras.probe.kinds.software import make_software
from mem1.extras.probe.transcripts import Transcript

__all__ = ["FEWEST", "KINDS", "Maker", "Settings", "Split", "Wordings", "make_transcript"]
KINDS: Mapping[str, Maker] = {
    "search": make_search,
    "atlas": make_atlas,
    "software": make_software,
    "office": make_office,
}
FEWEST = 20
"""Exchanges of the shortest transcript."""


def make_transcript(kind: str, split: Split, number: int, settings: Settings) -> Transcript:
    """The transcript of this number, from 0.

    Raises UserError for an unknown kind, too few exchanges, a missing corpus, or a repository that is no checkout.
    """
    if kind not in KINDS:
        raise UserError(f"unknown kind of transcript {kind!r}; known: {', '.join(KINDS)}")
    if settings.exchanges < FEWEST:
        raise UserError(f"a transcript has at least {FEWEST} exchanges, not {settings.exchanges}")
    draft = Draft(Random(f"probe/{kind}/{split}/{number}"), split, settings)
    return draft.finished(kind, KINDS[kind](draft.wanted))
