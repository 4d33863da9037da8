"""The parts of a text that can be blanked out, and the words shown around the blank.

    It was founded by Mira Toll in 1901.     ->  "Mira Toll", "1901"
    The Bob Hope Show ended.                 ->  "Bob Hope Show"     a name does not begin with a function word
    Despite this, Oslo grew. Bergen shrank   ->  "Oslo"              a single word that opens a sentence is no name

    window(words, Span(4, 6, "Mira Toll"), left=3, right=2)  ->  "was founded by ____ in 1901"

A span is one to four capitalised words in a row, or a number, in any script with capital letters; elsewhere only
numbers are found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from mem1.scoring import normalize
from mem1.tasks.cloze.questions import BLANK

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
    low, high = _borders(len(words), span, left, right)
    first, last = words[span.start], words[span.stop - 1]
    before = [_whole(word) for word in words[low : span.start]]
    after = [_whole(word) for word in words[span.stop : high]]
    return " ".join((*before, f"{first.before}{BLANK}{last.after}", *after))


def _borders(length: int, span: Span, left: int, right: int) -> tuple[int, int]:
    lacking_before, lacking_after = max(0, left - span.start), max(0, right - (length - span.stop))
    return max(0, span.start - left - lacking_after), min(length, span.stop + right + lacking_before)


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
