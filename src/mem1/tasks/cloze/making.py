"""From passages to questions: candidates, removal of near-duplicates, and a search for each that remains.

    made = make_clozes(passages, bm25.search, ClozeOptions())
    made.clozes     Cloze(text="Alvex was founded by ____ in the year 1901 and", answer="Mira Toll", rank=1), ...
    made.counts     {"passages": 4, "candidates": 31, "repeated": 5, ..., "not_found": 1, "questions": 14}

Each candidate is counted exactly once, so the counts add up.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mem1.errors import UserError
from mem1.protocol import strip_markup
from mem1.records import Passage
from mem1.scoring import normalize
from mem1.tasks.cloze.blanks import REFUSALS, refused, spans, window, words_apart
from mem1.tasks.cloze.questions import BLANK, Cloze, ClozeOptions
from mem1.tasks.splits import part_of

Search = Callable[[Sequence[str], int], Sequence[Sequence[tuple[Passage, float]]]]
"""(queries, k) -> per query at most k (passage, score), best first."""
OnProgress = Callable[[str, int, int], None]
"""(activity, number done, total)."""
COUNTS = (*REFUSALS, "same_answer", "over_limit", "near_duplicate", "ambiguous", "not_found", "questions")
"""Outcomes of a candidate, in the order of the filters."""
_BATCH = 512
"""Questions per call of the search engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The questions of a corpus."""

    clozes: tuple[Cloze, ...]
    """Questions in the order of the passages, with their ranks."""
    counts: Mapping[str, int]
    """passages, candidates, and each of `COUNTS`."""


def make_clozes(
    passages: Sequence[Passage], search: Search, options: ClozeOptions, *, on_progress: OnProgress | None = None
) -> Made:
    """The questions of a corpus for which a search with the whole question finds the passage.

    `search` searches the same passages. Raises UserError if no question remains.
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
    """The steps before the search: at most `per_passage` distinct questions per passage. Adds to `counts`."""
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
    """At most `per_passage` questions with distinct answers, in a random order that the passage's id determines.

    Adds the outcome of the other candidates to `counts`; those not examined are over the limit.
    """
    words = words_apart(strip_markup(passage.text))  # as shown to a policy, so that windows can be found in it
    part = part_of(passage.text, development=options.development, test=options.test)
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
    """The clozes with the rank of their passage among the first `within` results; None: not among them."""
    for start in range(0, len(clozes), _BATCH):
        batch = clozes[start : start + _BATCH]
        for cloze, found in zip(batch, search([cloze.text for cloze in batch], within), strict=True):
            ids = [passage.id for passage, _ in found]
            yield replace(cloze, rank=ids.index(cloze.passage_id) + 1 if cloze.passage_id in ids else None)
        if on_progress is not None:
            on_progress("search", min(start + _BATCH, len(clozes)), len(clozes))


_SKETCH = 4
"""Hashes per window."""
_SHARED = 2
"""Shared hashes that make a near-duplicate."""
_SHINGLE = 3
"""Words per hash."""


class NearDuplicates:
    """Finds near-duplicates of earlier questions, in linear time; stores four numbers per new question.

        Alvex was founded in 1901 by ____ of Bergen          Mira Toll
        the firm Alvex was founded in 1901 by ____ of        Mira Toll      a near-duplicate

    The window's word triples are hashed together with the answer; the smallest hashes form a sketch (Broder, "On the
    resemblance and containment of documents", 1997). Sharing half of its sketch with an earlier question makes a
    near-duplicate. Only the first question of each hash is stored, so boilerplate in ten thousand passages costs only
    one comparison each.
    """

    def __init__(self) -> None:
        self._first: dict[int, int] = {}
        """Hash -> number of the first question with it."""
        self._known = 0

    def seen(self, answer: str, text: str) -> bool:
        """Whether this is a near-duplicate of an earlier question; stores it if not."""
        marks = _sketch(answer, text)
        earlier = Counter(self._first[mark] for mark in marks if mark in self._first)
        if earlier and max(earlier.values()) >= min(_SHARED, len(marks)):
            return True
        for mark in marks:
            self._first.setdefault(mark, self._known)
        self._known += 1
        return False


def _sketch(answer: str, text: str) -> Sequence[int]:
    words = normalize(text.replace(BLANK, " blank ", 1)).split()
    shingles = {" ".join(words[i : i + _SHINGLE]) for i in range(max(1, len(words) - _SHINGLE + 1))}
    key = normalize(answer)
    return sorted(_hash(f"{key}\0{shingle}") for shingle in shingles)[:_SKETCH]


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def ambiguous(clozes: Iterable[Cloze]) -> frozenset[str]:
    """Normalised texts of several questions with different answers."""
    answers: dict[str, str] = {}
    found: set[str] = set()
    for cloze in clozes:
        text = normalize(cloze.text)
        if answers.setdefault(text, cloze.answer) != cloze.answer:
            found.add(text)
    return frozenset(found)
