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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mem1.configuration import fingerprint
from mem1.configuration.model import plain
from mem1.errors import UserError
from mem1.lock import alone_in
from mem1.records import Passage
from mem1.retrieval.index_folder import CLOZES, holds, read_folder, save_folder
from mem1.retrieval.open_index import cache_folder, read_corpus
from mem1.tasks.cloze import ClozeOptions
from mem1.tasks.cloze.making import OnProgress, make_clozes
from mem1.tasks.cloze.questions import Ranked, read_ranked, write_clozes
from mem1.tasks.cloze.readme import readme, statistics
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
        """What `mem1.tasks.cloze.readme.statistics` gave, and the options. Raises UserError for a damaged folder."""
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
    if holds(corpus, kind=CLOZES):
        return ClozeFolder(Path(corpus))
    if all((Path(corpus) / _file(part)).is_file() for part in PARTS):
        raise UserError(
            f"{corpus} is a damaged folder of clozes, or an older mem1 made it; make it again with mem1 data cloze"
        )
    passages = read_corpus(corpus)
    kept = cache_folder() / f"cloze-{_key(passages, options)}"
    if holds(kept, kind=CLOZES):
        return ClozeFolder(kept)
    with alone_in(kept, wait=True):
        if holds(kept, kind=CLOZES):  # another command has just made it
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
