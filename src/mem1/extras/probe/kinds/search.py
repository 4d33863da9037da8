"""A search agent, which reads passages of a corpus.

    assistant   search({"query": "Alvex Mira Toll Bergen"})
    tool        [1] Alvex: Alvex was founded by Mira Toll on 3 May 1901 ...
                [2] Alvex Valley: ...
    fact        On Alvex: "Alvex was founded by ____ on 3 May 1901"          Mira Toll, near Alvex

Facts are dates, numbers of three or more characters, and names of two or more words, blanked out in their sentence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from mem1.errors import UserError
from mem1.extras.probe.kinds.parts import Exchange, Scene, Split, Told, Wanted, cut, dated, plain, split_of
from mem1.jsonl import read_objects
from mem1.tasks.cloze.making import Span, Word, refused, spans, window, words_apart
from mem1.tasks.cloze.questions import aliases
from mem1.tasks.english.world import MONTHS

_LEFT, _RIGHT = 12, 8
"""Words of a cloze before and after its blank."""
_FEWEST_WORDS = 25
"""Of a passage; shorter ones are left out, and those whose subject is a single word, which may mean much else."""
_ASPECTS = ("history", "origin", "dates", "people", "overview", "background", "who and when")
"""Second half of a query."""
_YEARS = range(1000, 2100)
_Texts = Sequence[tuple[str, str]]
"""(title, text) of passages."""


def make_search(wanted: Wanted) -> Scene:
    """See `KINDS`. Raises UserError without a corpus, or where it has too few passages."""
    return Scene(
        system="You answer questions with the tool search, which finds passages of an encyclopedia.",
        task="Collect what the passages say about the people, places and works on my list, one after the other. "
        "I will ask you about all of it at the end: dates, numbers, names, and what the archive notes on the side.",
        note="[note of the archive] {}",
        exchanges=_exchanges(wanted, *_passages(wanted)),
    )


def _passages(wanted: Wanted) -> tuple[_Texts, Mapping[str, Sequence[int]]]:
    corpus = wanted.settings.corpus
    if corpus is None:
        raise UserError("transcripts of search need a corpus: lines of JSON with id, title and text; name one")
    found = _read(corpus)[wanted.split]
    if len(found[0]) < 3:
        raise UserError(f"{corpus} has {len(found[0])} passages of {_FEWEST_WORDS} words for {wanted.split}; give more")
    return found


@lru_cache(maxsize=2)
def _read(corpus: Path) -> dict[Split, tuple[_Texts, Mapping[str, Sequence[int]]]]:
    """For each split its passages, and word of a title -> the passages that have it."""
    texts: dict[Split, list[tuple[str, str]]] = {"development": [], "test": []}
    for number, record in read_objects(corpus):
        title, text = record.get("title"), record.get("text")
        if not isinstance(title, str) or not isinstance(text, str):
            raise UserError(f"{corpus}:{number}: a passage has a title and a text")
        if len(text.split()) >= _FEWEST_WORDS and " " in _subject(title):
            texts[split_of(title)].append((title, text))
    found: dict[Split, tuple[_Texts, Mapping[str, Sequence[int]]]] = {}
    for split, kept in texts.items():
        titled: defaultdict[str, list[int]] = defaultdict(list)
        for at, (title, _) in enumerate(kept):
            for word in title.split():
                titled[word].append(at)
        found[split] = kept, dict(titled)
    return found


def _exchanges(wanted: Wanted, texts: _Texts, titled: Mapping[str, Sequence[int]]) -> Iterator[Exchange]:
    random, words = wanted.random, wanted.settings.result_words
    while True:
        for at in random.sample(range(len(texts)), min(len(texts), wanted.settings.exchanges)):
            title, text = texts[at]
            alike = titled[random.choice(title.split())]
            others = {random.choice(alike), *random.sample(range(len(texts)), random.choice((1, 2)))} - {at}
            shown = [(title, cut(text, words // 2))]
            shown += [(texts[i][0], cut(texts[i][1], words // 2 // len(others))) for i in sorted(others)]
            told = tuple(facts_of(title, shown[0][1]))
            random.shuffle(shown)
            query = f"{_subject(title)} {random.choice(_ASPECTS)}"
            result = "\n".join(f"[{number}] {name}: {said}" for number, (name, said) in enumerate(shown, start=1))
            yield Exchange("search", {"query": query}, result, told)


def _subject(title: str) -> str:
    """The title without what tells it from others: "Alvex Timber (film) - Reception"  ->  "Alvex Timber" """
    return title.split(" (")[0].split(" - ")[0].strip()


def facts_of(title: str, text: str) -> Iterator[Told]:
    """Facts of a passage, in no particular order."""
    words = words_apart(text)
    days = {span.start: (span, forms) for span, forms in _days(words)}
    inside = {at for span, _ in days.values() for at in range(span.start, span.stop)}
    for span in spans(words):
        if not inside & set(range(span.start, span.stop)) and (kind := _kind(span.answer)):
            forms = aliases(span.answer) if kind == "name" else plain(span.answer)
            yield from _cloze(title, words, span, kind, forms)
    for span, forms in days.values():
        yield from _cloze(title, words, span, "date", forms)


def _cloze(title: str, words: Sequence[Word], span: Span, kind: str, forms: tuple[str, ...]) -> Iterator[Told]:
    """The fact, unless its blank can be filled without the passage, or not even with it."""
    text = window(words, span, left=_LEFT, right=_RIGHT)
    if refused(text, span.answer, title, least=(_LEFT + _RIGHT) // 2) is None:
        cloze = f'On {_subject(title)}: "{text}"'
        yield Told(kind=kind, cloze=cloze, forms=forms, subject=_subject(title))


def _kind(answer: str) -> str:
    """Of a fact; empty: it makes none."""
    if answer.isdigit() and len(answer) == 4 and int(answer) in _YEARS:
        return "date"
    if answer[0].isdigit():
        return "number" if len(answer) > 2 else ""
    return "name" if " " in answer and not set(answer.split()) & set(MONTHS) else ""


def _days(words: Sequence[Word]) -> Iterator[tuple[Span, tuple[str, ...]]]:
    """Whole dates as they are written, "May 3, 1961" or "3 May 1961", with their forms."""
    for at in range(len(words) - 2):
        one, two, year = (word.core for word in words[at : at + 3])
        day, month = (one, two) if two in MONTHS else (two, one)
        if month in MONTHS and day.isdecimal() and 1 <= int(day) <= 31 and year.isdecimal() and int(year) in _YEARS:
            written = " ".join((f"{one}{words[at].after}", f"{two}{words[at + 1].after}", year))
            yield Span(at, at + 3, written), tuple(dict.fromkeys((written, *dated(int(day), month, int(year)))))
