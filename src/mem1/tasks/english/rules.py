"""Rules that hold for every query of a task, and that only a search for them shows.

rules_of(seed=12, level=2)     ->  "Every query must contain the word tarnflax.", "No query may have more than 7 words."
section_of(seed=12)            ->  "K-17"
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

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
