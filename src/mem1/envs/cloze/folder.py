"""A folder of clozes: questions, the index that was searched for them, and a README. All that a task needs.

    index/                   BM25 over the corpus, passages included
    train.jsonl.gz           the questions, by the part of the corpus that their passage is in
    development.jsonl.gz
    test.jsonl.gz
    README.md                numbers and samples
    statistics.json          the same numbers, and the files above with their sizes and checksums

Any other corpus gets such a folder under ~/.cache/mem1, identified by its passages and the options.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mem1.configuration import fingerprint
from mem1.configuration.model import plain
from mem1.errors import UserError
from mem1.lock import alone_in
from mem1.records import Passage
from mem1.retrieval.index_folder import CLOZES, cache_folder, folder_kind, read_corpus, read_folder, save_folder
from mem1.tasks.cloze import ClozeOptions
from mem1.tasks.cloze.making import OnProgress, make_clozes
from mem1.tasks.cloze.questions import BLANK, Cloze, Ranked, read_ranked, write_clozes
from mem1.tasks.splits import PARTS, Part

if TYPE_CHECKING:
    from mem1.retrieval.bm25 import BM25

INDEX = "index"
README = "README.md"
_VERSION = 2
"""Raised when the same passages and options give other questions."""


@dataclass(frozen=True, slots=True)
class ClozeFolder:
    """What `make_cloze_folder` wrote."""

    path: Path

    def questions(self, part: Part) -> list[Ranked]:
        """Raises UserError if the file is damaged."""
        return read_ranked(self.path / _file(part))

    def index(self) -> BM25:
        """Raises UserError if it is damaged."""
        from mem1.retrieval.bm25 import BM25

        return BM25.load(self.path / INDEX)

    def statistics(self) -> dict[str, Any]:
        """The result of `statistics`, and the options. Raises UserError for a damaged folder."""
        return read_folder(self.path, kind=CLOZES)


def make_cloze_folder(
    passages: Sequence[Passage],
    out: Path,
    options: ClozeOptions,
    *,
    corpus: str,
    on_progress: OnProgress | None = None,
) -> ClozeFolder:
    """Index the passages, make the questions, and write both; an earlier folder of clozes is replaced.

    `corpus` is its name in the README. Raises UserError if `out` is something else, no question can be made, or a file
    cannot be written.
    """
    from mem1.retrieval.bm25 import BM25

    known: dict[str, Any] = {"version": _VERSION, "options": plain(options)}

    def write(folder: Path) -> None:
        index = BM25.build(passages)
        made = make_clozes(passages, index.search, options, on_progress=on_progress)
        index.save(folder / INDEX)
        for part in PARTS:
            write_clozes(folder / _file(part), (cloze for cloze in made.clozes if cloze.part == part))
        known.update(statistics(made.clozes, made.counts))
        text = readme(made.clozes, known, corpus=corpus, options=known["options"])
        (folder / README).write_text(text, encoding="utf-8", errors="replace")

    save_folder(out, kind=CLOZES, facts=known, write=write)  # `write` adds to the facts
    return ClozeFolder(out)


def open_cloze_folder(
    corpus: str | os.PathLike[str],
    options: ClozeOptions,
    *,
    on_making: Callable[[Path], OnProgress] | None = None,
) -> ClozeFolder:
    """The folder of clozes at `corpus`, else that of the passages or documents there, made if it is not in the cache.

    `on_making` is called with the folder before it is made. Raises UserError if there is neither.
    """
    if folder_kind(corpus) == CLOZES:
        return ClozeFolder(Path(corpus))
    if all((Path(corpus) / _file(part)).is_file() for part in PARTS):
        raise UserError(
            f"{corpus} is a damaged folder of clozes, or an older mem1 made it; make it again with mem1 data cloze"
        )
    passages = read_corpus(corpus)
    kept = cache_folder() / f"cloze-{_key(passages, options)}"
    if folder_kind(kept) == CLOZES:
        return ClozeFolder(kept)
    with alone_in(kept, wait=True):
        if folder_kind(kept) == CLOZES:  # another command has just made it
            return ClozeFolder(kept)
        on_progress = None if on_making is None else on_making(kept)
        return make_cloze_folder(passages, kept, options, corpus=Path(corpus).name, on_progress=on_progress)


def _key(passages: Sequence[Passage], options: ClozeOptions) -> str:
    digest = hashlib.sha256(f"{_VERSION} {fingerprint(options)}".encode())
    for passage in passages:
        record = json.dumps([passage.id, passage.title, passage.text])
        digest.update(record.encode())
    return digest.hexdigest()[:32]


def _file(part: Part) -> str:
    return f"{part}.jsonl.gz"


_MARKUP = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>~&$:@^])")
"""Questions come from documents, so every character that Markdown could interpret is escaped."""
_SAMPLES = 8
"""Samples per part."""
_MEANING = {
    "passages": "passages of the corpus",
    "candidates": "names and numbers in them",
    "short": "too few words around the blank",
    "odd": "a mark in the window that prompts are made of, or something too long to be a word",
    "repeated": "the answer, or a word of it, occurs in the window",
    "title": "the passage's title contains the answer",
    "same_answer": "the passage has a question with this answer",
    "over_limit": "the passage has enough questions",
    "near_duplicate": "nearly the same words as an earlier question",
    "ambiguous": "the same words, with another answer elsewhere",
    "not_found": "a search with the window does not find the passage",
    "questions": "**questions**",
}


def statistics(clozes: Sequence[Cloze], counts: Mapping[str, int]) -> dict[str, Any]:
    """Statistics of the questions, ready for JSON."""
    lengths = Counter(len(cloze.text.split()) - 1 for cloze in clozes)
    return {
        "counts": dict(counts),
        "parts": {part: sum(cloze.part == part for cloze in clozes) for part in PARTS},
        "passages": {part: len({c.passage_id for c in clozes if c.part == part}) for part in PARTS},
        "ranks": {str(rank): n for rank, n in sorted(Counter(cloze.rank for cloze in clozes).items()) if rank},
        "window_words": {str(words): n for words, n in sorted(lengths.items())},
        "different_answers": len({cloze.answer for cloze in clozes}),
        "numbers": sum(cloze.answer[0].isdigit() for cloze in clozes),
    }


def readme(clozes: Sequence[Cloze], known: Mapping[str, Any], *, corpus: str, options: Mapping[str, Any]) -> str:
    """The file's text; `known` is the result of `statistics`."""
    lines = [
        f"# Clozes of {_escaped(corpus)}",
        "",
        f"Questions made by `mem1 data cloze`: {BLANK} stands for one to four capitalised words, or a number, of a "
        "passage. A search with the whole question finds the passage. `index/` is the index that was searched.",
        "",
        "| file | questions | passages |",
        "|---|--:|--:|",
        *(f"| {part}.jsonl.gz | {known['parts'][part]:,} | {known['passages'][part]:,} |" for part in PARTS),
        "",
        f"{known['different_answers']:,} different answers; {known['numbers']:,} questions ask for a number. Place of "
        f"the passage in the search: {_listed(known['ranks'])}. Words of the window: {_listed(known['window_words'])}.",
        "",
        "| what became of the names and numbers | |",
        "|---|--:|",
        *(f"| {_MEANING[name]} | {number:,} |" for name, number in known["counts"].items()),
        "",
        f"Options: {', '.join(f'{name} {value}' for name, value in options.items())}.",
    ]
    for part in PARTS:
        samples = [cloze for cloze in clozes if cloze.part == part]
        drawn = random.Random(0).sample(samples, min(_SAMPLES, len(samples)))
        if drawn:
            lines += ["", f"## Some of {part}", "", "| question | answer | passage |", "|---|---|---|"]
            lines += [f"| {' | '.join(map(_escaped, (c.text, c.answer, c.passage_id)))} |" for c in drawn]
    return "\n".join(lines) + "\n"


def _listed(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({number:,})" for name, number in numbers.items())


def _escaped(text: str) -> str:
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))
