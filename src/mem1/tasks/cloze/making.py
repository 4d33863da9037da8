"""From passages to questions: what can be blanked out, removal of near-duplicates, and a search for each question.

    It was founded by Mira Toll in 1901.     ->  "Mira Toll", "1901"
    The Bob Hope Show ended.                 ->  "Bob Hope Show"     a name does not begin with a function word
    Despite this, Oslo grew. Bergen shrank   ->  "Oslo"              a single word that opens a sentence is no name

    window(words, Span(4, 6, "Mira Toll"), left=3, right=2)  ->  "was founded by ____ in 1901"

    made = make_clozes(passages, bm25.search, ClozeOptions())
    made.clozes     Cloze(text="Alvex was founded by ____ in the year 1901 and", answer="Mira Toll", rank=1), ...
    made.counts     {"passages": 4, "candidates": 31, "repeated": 5, ..., "not_found": 1, "questions": 14}

A span is one to four capitalised words in a row, or a number, in any script with capital letters; elsewhere only
numbers are found. Each candidate is counted exactly once, so the counts add up.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from mem1.errors import UserError
from mem1.protocol import strip_markup
from mem1.records import Passage
from mem1.scoring import normalize
from mem1.tasks.cloze.questions import BLANK, Cloze, ClozeOptions
from mem1.tasks.compose import part_of

LONGEST = 4
"""Maximum number of words in a name; longer rows of capitalised words are skipped."""
LONGEST_WORD = 100
"""Maximum number of characters in a word; longer ones are not parsed, which could take long."""
_CORE = re.compile(r"^(\W*)(.*?)(['\u2019]s?)?(\W*)$", re.DOTALL)
_NAME = re.compile(r"[^\W\d_]+(?:[-'\u2019.&][^\W\d_]+)*")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_SENTENCE_END = re.compile("[.!?:;\u2026\u3002]")
_LITTLE_WORDS = (
    "a after all also although an and another any as at because before both but by during each even every few for "
    "from he her here his how however i if in into it its later like many more most my no not of on once only or "
    "other our over several she since so some such than that the their then there these they this those though "
    "through thus to under until upon we what when where whether which while who why with within without yet you "
    "your according despite following including currently today"
)
_LITTLE = frozenset(_LITTLE_WORDS.split())
"""Function words, in lower case: never an answer, nor the first word of one."""


@dataclass(frozen=True, slots=True)
class Word:
    """A parsed word: '"Toll's,' is '"', "Toll", "'s,"."""

    before: str
    core: str
    after: str

    @property
    def initial(self) -> bool:
        """Whether this is an initial, as in J. Toll, whose full stop does not end a sentence."""
        return len(self.core) == 1 and self.after == "."


@dataclass(frozen=True, slots=True)
class Span:
    """Words `start` to `stop` - 1 of a text, without the punctuation around them."""

    start: int
    stop: int
    answer: str


def words_apart(text: str) -> list[Word]:
    """The words of a text, split at white space."""
    return [_apart(word) for word in text.split()]


def _apart(word: str) -> Word:
    match = _CORE.match(word) if len(word) <= LONGEST_WORD else None
    if match is None:
        return Word(word, "", "")
    before, core, genitive, after = match.groups()
    return Word(before, core, f"{genitive or ''}{after}")


def spans(words: Sequence[Word]) -> Iterator[Span]:
    """Every span that can be blanked out, in order, without overlaps."""
    position = 0
    while position < len(words):
        if _is_number(words[position]):
            yield Span(position, position + 1, words[position].core)
        elif _is_name(words[position]):
            stop = _end_of_run(words, position)
            if span := _named(words, position, stop):
                yield span
            position = stop
            continue
        position += 1


def _end_of_run(words: Sequence[Word], start: int) -> int:
    """The end of the row of capitalised words, which punctuation between two words ends."""
    stop = start + 1
    while stop < len(words) and _is_name(words[stop]) and not words[stop].before:
        if words[stop - 1].after and not words[stop - 1].initial:
            break
        stop += 1
    return stop


def _named(words: Sequence[Word], start: int, stop: int) -> Span | None:
    opens = start == 0 or (_SENTENCE_END.search(words[start - 1].after) and not words[start - 1].initial)
    while start < stop and words[start].core.lower() in _LITTLE:
        start, opens = start + 1, False
    length = stop - start
    if not 1 <= length <= LONGEST or (length == 1 and (opens or len(words[start].core) < 2)):
        return None
    inner = [f"{word.core}{word.after}" for word in words[start : stop - 1]]
    return Span(start, stop, " ".join((*inner, words[stop - 1].core)))


def _is_name(word: Word) -> bool:
    return word.core[:1].isupper() and _NAME.fullmatch(word.core) is not None


def _is_number(word: Word) -> bool:
    """Whether the word is a number of at least two digits; one digit is too easily guessed."""
    return sum(map(str.isdigit, word.core)) > 1 and _NUMBER.fullmatch(word.core) is not None


Refusal = Literal["odd", "short", "repeated", "title"]
REFUSALS: tuple[Refusal, ...] = get_args(Refusal)
_MARKS = re.compile(r"[|=]|__|(?:^|\s)Q\d|\bDoc \d")
_LEAST_BEFORE = 2


def window(words: Sequence[Word], span: Span, *, left: int, right: int) -> str:
    """`left` words before the blank and `right` after it; if one side has too few, the other provides more."""
    lacking_before, lacking_after = max(0, left - span.start), max(0, right - (len(words) - span.stop))
    low, high = max(0, span.start - left - lacking_after), min(len(words), span.stop + right + lacking_before)
    first, last = words[span.start], words[span.stop - 1]
    before = [_whole(word) for word in words[low : span.start]]
    after = [_whole(word) for word in words[span.stop : high]]
    return " ".join((*before, f"{first.before}{BLANK}{last.after}", *after))


def _whole(word: Word) -> str:
    return f"{word.before}{word.core}{word.after}"


def refused(text: str, answer: str, title: str, *, least: int) -> Refusal | None:
    """Why this window makes no question; None: it does.

    "odd"        a mark in it that prompts or states use, or a word of over 100 characters
    "short"      fewer than `least` words, or fewer than two before the blank
    "repeated"   the answer, or a word of it, occurs in the window
    "title"      the passage's title contains the answer, or most of it
    """
    around = text.replace(BLANK, " ", 1)
    answered = set(normalize(answer).split())
    if not answered or _MARKS.search(around) or max(map(len, around.split()), default=0) > LONGEST_WORD:
        return "odd"
    if len(around.split()) < least or len(text.split(BLANK)[0].split()) < _LEAST_BEFORE:
        return "short"
    if answered & set(normalize(around).split()):
        return "repeated"
    titled = set(normalize(title).split())
    if answered <= titled or (titled and titled <= answered):
        return "title"
    return None


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
    every = ranked(drawn, search, options.within, on_progress=on_progress)
    clozes = [cloze for cloze in every if cloze.rank is not None]
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
    marks = (f"{key}\0{shingle}".encode("utf-8", "surrogatepass") for shingle in shingles)
    return sorted(int.from_bytes(hashlib.blake2b(mark, digest_size=8).digest(), "big") for mark in marks)[:_SKETCH]


def ambiguous(clozes: Iterable[Cloze]) -> frozenset[str]:
    """Normalised texts of several questions with different answers."""
    answers: dict[str, str] = {}
    found: set[str] = set()
    for cloze in clozes:
        text = normalize(cloze.text)
        if answers.setdefault(text, cloze.answer) != cloze.answer:
            found.add(text)
    return frozenset(found)
