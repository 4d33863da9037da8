"""From passages to questions: candidates, near-duplicates, and a search for each of those that are left.

    made = make_clozes(passages, bm25.search, ClozeOptions())
    made.clozes     Cloze(text="Alvex was founded by ____ in the year 1901 and", answer="Mira Toll", rank=1), ...
    made.counts     {"passages": 4, "candidates": 31, "repeated": 5, ..., "not_found": 1, "questions": 14}

Each candidate ends in exactly one count, so they add up.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mem1.errors import UserError
from mem1.protocol import neutralize
from mem1.records import Passage
from mem1.scoring import normalize
from mem1.tasks.cloze.duplicates import NearDuplicates, ambiguous
from mem1.tasks.cloze.options import ClozeOptions
from mem1.tasks.cloze.record import Cloze, part_of
from mem1.tasks.cloze.spans import spans, words_apart
from mem1.tasks.cloze.windows import REFUSALS, refused, window

Search = Callable[[Sequence[str], int], Sequence[Sequence[tuple[Passage, float]]]]
"""(queries, k) -> per query at most k (passage, score), best first: what every search engine does."""
OnProgress = Callable[[str, int, int], None]
"""(what is done, so many, of so many)."""
COUNTS = (*REFUSALS, "same_answer", "over_limit", "near_duplicate", "ambiguous", "not_found", "questions")
"""Where a candidate can end, in the order of the filters."""
_BATCH = 512
"""Questions of one call of the search engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a corpus gave."""

    clozes: tuple[Cloze, ...]
    """In the order of the passages, each with its rank."""
    counts: Mapping[str, int]
    """passages, candidates, and each of `COUNTS`."""


def make_clozes(
    passages: Sequence[Passage], search: Search, options: ClozeOptions, *, on_progress: OnProgress | None = None
) -> Made:
    """The questions of a corpus whose passages a search with the whole question finds.

    `search` looks through the same passages. Raises UserError where no question is left.
    """
    counts: Counter[str] = Counter(dict.fromkeys(("passages", "candidates", *COUNTS), 0))
    drawn = draw_clozes(passages, options, counts, on_progress=on_progress)
    clozes: list[Cloze] = []
    for cloze in ranked(drawn, search, options.within, on_progress=on_progress):
        if cloze.rank is not None:
            clozes.append(cloze)
    counts["not_found"], counts["questions"] = len(drawn) - len(clozes), len(clozes)
    if not clozes:
        raise UserError(
            f"no question could be made from {counts['passages']:,} passages ({counts['candidates']:,} names and "
            "numbers, none of which passed the filters); give more text, in a script with capital letters"
        )
    return Made(clozes=tuple(clozes), counts=dict(counts))


def draw_clozes(
    passages: Sequence[Passage],
    options: ClozeOptions,
    counts: Counter[str],
    *,
    on_progress: OnProgress | None = None,
) -> list[Cloze]:
    """Everything before the search: at most `per_passage` questions a passage, none of them twice. Adds to `counts`."""
    known = NearDuplicates()
    kept: list[Cloze] = []
    for number, passage in enumerate(passages, start=1):
        for cloze in of_passage(passage, options, counts):
            if known.seen(cloze.answer, cloze.text):
                counts["near_duplicate"] += 1
            else:
                kept.append(cloze)
        if on_progress is not None and (number % _BATCH == 0 or number == len(passages)):
            on_progress("blank", number, len(passages))
    counts["passages"] += len(passages)
    unclear = ambiguous(kept)
    clear = [cloze for cloze in kept if normalize(cloze.text) not in unclear] if unclear else kept
    counts["ambiguous"] += len(kept) - len(clear)
    return clear


def of_passage(passage: Passage, options: ClozeOptions, counts: Counter[str]) -> list[Cloze]:
    """At most `per_passage` questions in a random order that the passage's id fixes, each answer once.

    Adds what becomes of the passage's other names and numbers to `counts`; those that were not looked at any more
    are over the limit.
    """
    words = words_apart(neutralize(passage.text))  # as it is shown to a policy, so that windows can be found in it
    part = part_of(passage, development=options.development, test=options.test)
    least = (options.left + options.right) // 2
    found = list(spans(words))
    counts["candidates"] += len(found)
    made: dict[str, Cloze] = {}
    order = random.Random(f"cloze {options.seed} {passage.id}").sample(found, len(found))
    for looked_at, span in enumerate(order):
        if len(made) == options.per_passage:
            counts["over_limit"] += len(found) - looked_at
            break
        text = window(words, span, left=options.left, right=options.right)
        if reason := refused(text, span.answer, passage.title, least=least):
            counts[reason] += 1
        elif (key := normalize(span.answer)) in made:
            counts["same_answer"] += 1
        else:
            made[key] = Cloze(
                passage_id=passage.id, title=passage.title, start=span.start, text=text, answer=span.answer, part=part
            )
    return list(made.values())


def ranked(
    clozes: Sequence[Cloze], search: Search, within: int, *, on_progress: OnProgress | None = None
) -> Iterator[Cloze]:
    """Each with the place of its passage among the first `within` results; None: it is not among them."""
    for start in range(0, len(clozes), _BATCH):
        batch = clozes[start : start + _BATCH]
        for cloze, found in zip(batch, search([cloze.text for cloze in batch], within), strict=True):
            ids = [passage.id for passage, _ in found]
            yield replace(cloze, rank=ids.index(cloze.passage_id) + 1 if cloze.passage_id in ids else None)
        if on_progress is not None:
            on_progress("search", min(start + _BATCH, len(clozes)), len(clozes))
