"""The scorers, for reward and for evaluation: exact match by SQuAD's rules ("squad") or to the sign ("exact"), and F1.

SQuAD's, the default: the official SQuAD v1.1 evaluation script (Rajpurkar et al. 2016, arXiv 1606.05250): lower case,
no punctuation, no articles, white space folded; the best over the gold aliases.

    exact_match("The Eiffel Tower.", ["Eiffel Tower"])          -> 1
    f1("in Paris, France", ["Paris"])                           -> 0.5
    same("-5 %", ["5%"]), same("C", ["C#"])                     -> 0, 0, where SQuAD's rules say 1
    contains("It is in Paris, France", ["Paris"])               -> 1
    score_answers("Paris; 1901", [["Paris"], ["1900"]]).em      -> [1.0, 0.0]

What others score is a `number`, or an error that says what it is instead.
"""

from __future__ import annotations

import itertools
import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mem1.errors import UserError
from mem1.records import Metric, Task
from mem1.words import apart

# \b(a|an|the)\b, with the letter first: faster to search for
_ARTICLES = re.compile(r"(?:a(?<!\wa)n?|t(?<!\wt)he)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_LABEL = re.compile(r"^\s*Q(\d{1,4})\b\s*(?:[:.)|\uff1a]|[\u2013\u2014](?!\d)|-(?!\S)|(?<=\d)-(?!\d))?\s*")
"""With what separates it from the answer; a dash or hyphen before a digit, and a hyphen before a word, are its own."""
_QUESTION = re.compile(r"Q\d{1,4}\b")
_MARKS = " \t-*#>;"
"""What may stand before a line of answers."""
_HEAD = re.compile(r"(?:[-\s*#>;`|\u2022\u2023\u25e6\u00b7]|\d{1,4}[.)]\s|(?i:(?:final )?answers?:))+(?=Q\d{1,4}\b)")
"""What may stand before a label too."""
_CLOSED = "*`|"
"""Marks that end what they begin."""
_ENDS = " \t;"
_OTHER_SEMICOLONS = frozenset("\uff1b\u061b")
"""Chinese and Arabic."""
_ALONE = re.compile(r"Q\d{1,4}\s*[-:.)\uff1a\u2013\u2014]?")
_SEVERAL = re.compile(r"Q\d{1,4}\s*(?:,|&|and\b|to\b|[-\u2013\u2014])\s*Q\d")


@dataclass(frozen=True, slots=True)
class Scores:
    """Per-objective scores, in the order of the questions; lists of length N."""

    em: list[float]
    """Exact matches, 0 or 1 each."""
    f1: list[float]
    """Token F1, in [0, 1] each."""


def normalize(text: str) -> str:
    """SQuAD's normalisation: lower case, drop punctuation, drop articles, fold white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, golds: Sequence[str]) -> int:
    """1 if the normalised prediction equals any normalised gold alias, else 0."""
    normalized = normalize(prediction)
    return int(any(normalized == normalize(gold) for gold in golds))


_ALIKE = str.maketrans(
    {
        **{raised: f"^{plain}" for raised, plain in zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-", strict=True)},
        **{c: f" {unicodedata.normalize('NFKC', c)}" for c in (*"¼½¾", *map(chr, range(0x2150, 0x215F)))},
        **dict.fromkeys("\u201c\u201d\u201e\u201f«»「」『』《》〈〉", '"'),
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u02bc\u2032", "'"),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe63\uff0d", "-"),
        **dict(zip("。｡।、،؛؟٪\u066b٬", "...,,;?%.,", strict=True)),
        **dict.fromkeys(map(chr, (0xAD, *range(0x200B, 0x2010), 0x2060, 0xFEFF))),
    }
)
"""Signs that mean the same -> one of them; None: invisible. A raised digit is none of the number before it."""
_REWRITES: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"\s+"), " "),
    (re.compile(r"(?<=\d)[, '](?=\d{3}(?!\d))"), ""),
    (re.compile(r"(?<=[-+$€£¥₹]) (?=\d)|(?<=\d) (?=[^\W\d_]|[%‰°])"), ""),
    (re.compile(r"(?<=\w)[.,;:](?= |$)|(?<=[^\W\d_])[!?](?= |$)"), ""),
)
_AROUND = "\"'` "
_FULL_STOP = re.compile(r"(?<=[^.])\.$")
"""At the end of an answer, behind a sign, too."""
_LEADING = re.compile(r"(?:an?|the) (?!(?:an?|the)\b)")


def exactly(text: str) -> str:
    """What `same` compares: signs, points, units and lone articles stay.

    Case, Unicode form and width, the script of digits, quotes around, a full stop and a leading article do not count.
    """
    plain = unicodedata.normalize("NFKC", text.translate(_ALIKE)).translate(_ALIKE).replace("\u2044", "/").casefold()
    plain = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in plain)
    for pattern, by in _REWRITES:
        plain = pattern.sub(by, plain.strip())
    plain = _FULL_STOP.sub("", plain.strip(_AROUND)).strip(_AROUND) or plain
    return _LEADING.sub("", plain, count=1) if _LEADING.match(plain) else plain


def same(prediction: str, golds: Sequence[str]) -> int:
    """1 if the prediction equals any gold alias, but for what `exactly` leaves out, else 0; "" equals nothing."""
    written = exactly(prediction)
    return int(bool(written) and any(written == exactly(gold) for gold in golds))


Scorer = Callable[[str, Sequence[str]], int]
"""(prediction, gold aliases) -> 1 if they match, else 0."""
SQUAD = "squad"
SCORERS: dict[str, Scorer] = {SQUAD: exact_match, "exact": same}


def contains(prediction: str, golds: Sequence[str]) -> int:
    """1 if the prediction contains a gold alias as `whole_words`, else 0.

    Not SQuAD's: the lenient match of open-domain question answering (Mallen et al. 2023, arXiv 2212.10511, look for
    characters instead, which finds "us" in "Houston"). An alias that normalises to nothing is never found.
    """
    words = whole_words(prediction)
    return int(any(whole_words(gold) in words for gold in golds if normalize(gold)))


def whole_words(text: str) -> str:
    """The normalised text between blanks, in which others of this form are found as whole words.

    Of scripts without blanks between words each letter stands alone: " 答 案 是 北 京 " holds " 北 京 ".
    """
    return f" {apart(normalize(text))} "


def f1(prediction: str, golds: Sequence[str]) -> float:
    """Best token F1 over the gold aliases; token *counts*, not sets. 0 if either side is empty."""
    predicted = normalize(prediction).split()
    return max((_f1(predicted, normalize(gold).split()) for gold in golds), default=0.0)


def _f1(predicted: list[str], gold: list[str]) -> float:
    common = sum((Counter(predicted) & Counter(gold)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(predicted), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def split_answers(
    answer: str, labels: Sequence[int], golds: Sequence[Sequence[str]] = (), *, whole: bool = False
) -> list[str]:
    """Cut "Q1 a ; Q2 b" or "a; b" into the answers to the questions with these labels.

    A piece labelled "Qk" goes to the question with that label, an unlabelled one to the question at its own position,
    if none is labelled so. Missing answers are "", surplus ones are ignored, and of two answers to the same question
    the first counts. Where labels stand on lines of their own, it is read by lines (`labelled`). A single question has
    no other labels, "Q3 2021" is its answer as it stands; nor is an answer cut inside one of its `golds`, a list of
    aliases for each question, that has a semicolon. `whole`: answers have semicolons, and go on to the next label.
    """
    uncut = {label: gold for label, gold in zip(labels, golds, strict=False) if any(";" in alias for alias in gold)}
    said = _said(answer)
    if not any(_OTHER_SEMICOLONS.intersection(alias) for gold in golds for alias in gold):
        said = said.translate(dict.fromkeys(map(ord, _OTHER_SEMICOLONS), ";"))
    if len(labels) == 1 and (uncut or f"Q{labels[0]}" not in said):
        return _pieces([said] if whole or uncut else said.split(";"), labels, uncut)[0]
    plain, found = _pieces(said.split(";"), labels, uncut, whole)
    by_lines, more = _pieces(labelled(said).split(";"), labels, uncut, whole)
    return by_lines if more > found or (more == found and not whole and any("\n" in one for one in plain)) else plain


def _pieces(
    pieces: Sequence[str], labels: Sequence[int], uncut: Mapping[int, Sequence[str]], whole: bool = False
) -> tuple[list[str], int]:
    """(answers of these labels, how many of them have their label)."""
    answers: dict[int, str] = {}
    behind: dict[int, str] = {}
    named: set[int] = set()
    latest: int | None = None
    for position, piece in enumerate(pieces):
        match = _LABEL.match(piece)
        if match is not None and (len(labels) > 1 or int(match[1]) in labels):
            label = int(match[1])
            named.add(label)
            latest = 0 if label in answers else label
            answers.setdefault(label, piece[match.end() :])
        elif latest and (whole or any(_goes_on(f"{answers[latest]};{piece}", a) for a in uncut.get(latest, ()))):
            answers[latest] += f";{piece}"
        elif position < len(labels):
            (answers if latest is None else behind).setdefault(labels[position], piece)
    return [(behind | answers).get(label, "").strip() for label in labels], len(named.intersection(labels))


def _goes_on(text: str, alias: str) -> bool:
    """Whether an alias begins so."""
    return normalize(alias).startswith(normalize(text))


def _said(text: str) -> str:
    """A model's last message without its thoughts and tags of the answer around it."""
    said = text.rpartition("</think>")[2].strip()
    if said.count("<answer>") == said.count("</answer>") == 1 and said.endswith("</answer>"):
        return said.removesuffix("</answer>").replace("<answer>", "\n").strip()
    return said


def labelled(text: str) -> str:
    """The labelled answers in a model's last message, in one line; a text without any, or in one line, as it is.

    "Here you are:\\n**Q1**: Moru Kest\\n- Q2: 14 March"    ->    "Q1: Moru Kest; Q2: 14 March"

    docs/bench.md lists the forms. Of two answers to a question the first counts; those behind numbers, bullets, bars
    or "Answer:", as plans have them too, come after all others, and none counts beside a list without such marks.
    """
    said = _said(text)
    lines = [_bare(line.replace("**", "")) for line in said.splitlines()]
    plain, behind, listed = list[str](), list[str](), False
    for at, line in enumerate(lines):
        begun = line if _QUESTION.match(line) else _behind_marks(line)
        listed = listed or (begun is None and ";" in line and line[-1] not in ".!?:")  # else it is prose
        if begun is None or (_SEVERAL.match(begun) and ";" not in begun):
            continue
        if _ALONE.fullmatch(label := begun.rstrip(f"{_MARKS}{_CLOSED}")):
            begun = f"{label} {_below(lines[at + 1 :])}"
        (plain if _QUESTION.match(line) else behind).append(begun.rstrip(_ENDS))
    return said if listed and not plain else "; ".join(plain + behind) or said


def _bare(line: str) -> str:
    """The line without the marks around it; "C#" and "A-" end in none."""
    bare = line.lstrip(_MARKS)
    return _closed(bare, line[: len(line) - len(bare)])


def _closed(text: str, before: str) -> str:
    return text.rstrip(_ENDS + "".join(mark for mark in _CLOSED if mark in before))


def _behind_marks(line: str) -> str | None:
    """The line from its label on; None: none begins it, it is a row of a table with more than one answer, or an answer
    has labels in it."""
    head = _HEAD.match(line)
    if head is None:
        return None
    begun = _closed(line[head.end() :], head[0])
    row = "|" in head[0] and begun.count("|") != 1
    return None if row or any(len(_QUESTION.findall(piece)) > 1 for piece in begun.split(";")) else begun


def _below(lines: Sequence[str]) -> str:
    """The only line between a label and the next label, or the next empty line; "": there is none, or more."""
    first = next((at for at, line in enumerate(lines) if line), len(lines))
    found = list(
        itertools.takewhile(lambda line: line and not (_QUESTION.match(line) or _HEAD.match(line)), lines[first:])
    )
    return found[0] if len(found) == 1 and ";" not in found[0] else ""


def answers_given(answer: str, task: Task) -> list[str]:
    """The answers to the questions of a task, in order; that to a single one with all that was said."""
    golds = [question.answers for question in task.questions]
    return split_answers(answer, task.numbers, golds, whole=task.whole or len(golds) == 1)


def score_answers(
    answer: str, golds: Sequence[Sequence[str]], labels: Sequence[int] | None = None, *, scorer: Scorer = exact_match
) -> Scores:
    """Score an answer text against N lists of gold aliases, by the labels of the questions; None: 1 to N.

    A missing answer scores 0 even where a gold alias normalises to nothing ("!!!", "The A"), which "" would match.
    Raises UserError where the scorer fails or returns neither 0 nor 1.
    """
    numbers = range(1, len(golds) + 1) if labels is None else labels
    pieces = split_answers(answer, numbers, golds)
    return Scores(
        em=[_matched(scorer, p, g) if p else 0.0 for p, g in zip(pieces, golds, strict=True)],
        f1=[f1(p, g) for p, g in zip(pieces, golds, strict=True)],
    )


def _matched(scorer: Scorer, prediction: str, golds: Sequence[str]) -> float:
    try:
        found = number(scorer(prediction, golds))
        if found not in (0, 1):
            raise ValueError(f"{found:g}, not 0 or 1")
    except Exception as error:  # whatever a stranger's scorer raises
        raise UserError(
            f"the scorer {getattr(scorer, '__name__', scorer)!r} must return 0 or 1; for the answer {prediction!r:.80} "
            f"it gave {type(error).__name__}: {error}"
        ) from error
    return float(found)


def number(value: Any) -> float:
    """A finite number as Python's own; those of numpy and torch without dimensions are numbers too.

    Raises ValueError for anything else, text that reads like a number included.
    """
    shape = getattr(value, "shape", None)
    plain = value.item() if shape == () and hasattr(value, "item") else value
    with suppress(TypeError, OverflowError):
        if not shape and math.isfinite(plain):
            return plain if type(plain) is int else float(plain)
    raise ValueError(f"{' '.join(repr(value).split())[:80]}, not a finite number")


def check_metrics(names: Iterable[str], taken: Collection[str]) -> None:
    """Raises UserError where the metric of an environment has a name that is `taken` by a number of mem1's own."""
    if clash := sorted(set(names) & set(taken)):
        raise UserError(
            f"the environment's metric {clash[0]!r} has the name of a number that mem1 measures itself "
            "(docs/metrics.md); give it another name"
        )


def measurement(value: Any) -> Metric:
    """A metric: a `number`, or one per objective in any kind of list. Raises ValueError as `number` does."""
    many = isinstance(value, (list, tuple)) or len(getattr(value, "shape", ())) == 1
    return tuple(map(number, value)) if many else number(value)
