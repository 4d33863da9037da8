"""Clozes over your own corpus, optionally mixed with real questions about it; and the folder that holds them.

ClozeTasks(corpus="clozes")    what `mem1 data own-documents corpus=notes --out clozes` wrote:

    index/                   BM25 over the corpus, passages included
    train.jsonl.gz           the questions, by the part of the corpus that their passage is in
    development.jsonl.gz
    test.jsonl.gz
    README.md                numbers and samples
    statistics.json          the same numbers, and the files above with their sizes and checksums

ClozeTasks(corpus="notes")     the documents themselves: such a folder is made first, under ~/.cache/mem1, identified by
                               the passages and the options
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from mem1.cache import cache_folder, open_cached
from mem1.configuration import fingerprint
from mem1.configuration.model import plain
from mem1.envs.base import Environment, TaskSource
from mem1.envs.hub_corpus import check_corpus, local_corpus
from mem1.envs.search import SearchEnvironment
from mem1.envs.tasks import QUESTION_TOKENS, TOKENS_PER_WORD, QuestionTasks, TextSizes, passage_texts
from mem1.errors import UserError, printable
from mem1.interrupts import stopped_while
from mem1.lock import alone_in
from mem1.protocol import Tags
from mem1.records import Passage, Question, Task
from mem1.retrieval.combine import Snippets
from mem1.retrieval.index_files import CLOZES, folder_kind, read_folder, save_folder
from mem1.retrieval.index_folder import read_corpus
from mem1.tasks.atlas import Laziness
from mem1.tasks.cloze import ClozeOptions
from mem1.tasks.cloze.compose import ClozeMaterial, compose_clozes
from mem1.tasks.cloze.expert import MARKS, ClozeExpert
from mem1.tasks.cloze.making import OnProgress, make_clozes
from mem1.tasks.cloze.questions import BLANK, Cloze, Ranked, read_ranked, write_clozes
from mem1.tasks.compose import (
    PARTS,
    Composition,
    Part,
    Split,
    check_depth,
    check_disjoint,
    compose_dependent,
)
from mem1.tasks.datasets import read_questions
from mem1.tasks.prompts import PromptChoice, TaskTemplate

if TYPE_CHECKING:
    from mem1.retrieval.bm25 import BM25


INDEX = "index"
README = "README.md"
_VERSION = 3
"""Raised when the same passages and options give other questions."""


@dataclass(frozen=True, slots=True)
class ClozeFolder:
    """What `make_cloze_folder` wrote."""

    path: Path

    def questions(self, part: Part) -> list[Ranked]:
        return read_ranked(self.path / _file(part))

    def index(self) -> BM25:
        from mem1.retrieval.bm25 import BM25

        return BM25.load(self.path / INDEX)

    def statistics(self) -> dict[str, Any]:
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

    with stopped_while("making clozes"):
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
            f"{corpus} is a damaged folder of clozes, or an older mem1 made it; make it again with mem1 data"
        )
    passages = read_corpus(corpus)
    kept = cache_folder() / f"cloze-{_key(passages, options)}"

    def load(folder: Path) -> ClozeFolder:
        read_folder(folder, kind=CLOZES)
        return ClozeFolder(folder)

    def make() -> None:
        on_progress = None if on_making is None else on_making(kept)
        make_cloze_folder(passages, kept, options, corpus=Path(corpus).name, on_progress=on_progress)

    return open_cached(kept, load=load, make=make)


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
        f"Questions made by `mem1 data`: {BLANK} stands for one to four capitalised words, or a number, of a "
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


class ClozeTasks(QuestionTasks):
    """Tasks from blanked facts of a corpus."""

    kind: str = "cloze"
    prompts: ClassVar[tuple[str, str, str]] = ("cloze", "mem1-example", "tools")
    special_tokens: ClassVar[tuple[str, ...]] = MARKS
    corpus: str
    """A file of passages, an index or a folder of documents, from which clozes are made and cached; or a folder of
    clozes that `mem1 data` wrote."""
    making: ClozeOptions = ClozeOptions()
    """How clozes are made, unless `corpus` already holds them."""
    held_out: Literal["development", "test"] = "development"
    """Part of the corpus that evaluations ask about."""
    worst_rank: int | None = Field(default=None, ge=1)
    """Only clozes whose passage ranks this or better in a search with the window; None: all."""
    window_words: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] | None = None
    """Minimum and maximum number of words around the blank; None: all clozes."""
    composition: Composition = "independent"
    """How the questions of a task depend on one another: independent, chain, shared or comparison."""
    depth: int | None = Field(default=None, ge=1)
    """Longest chain of references in a task; None: 1, or 0 with independent questions."""
    questions: str | None = None
    """File of real questions about the corpus, for evaluation; None: clozes alone."""
    train_questions: str | None = None
    """File of real questions for training; None: clozes alone."""
    real: float = Field(default=0.0, ge=0, le=1)
    """Probability that a question of a task is a real one, if its half has a file."""
    prompt: PromptChoice | None = None
    """Text at the head of every context. None: as [protocol] and these tasks need it."""
    top_k: int = Field(default=2, ge=1)
    """Passages per search."""
    snippet_words: int = Field(default=24, ge=1)
    """Number of words shown of each passage, around the best match of the query."""
    titles: bool = False
    """Show each passage's title before its words."""
    laziness: Laziness = Laziness()
    """Habits of the expert in demonstrations: diligent, stop and forget. Ignored for dependent or real questions, whose
    expert simply searches each question."""

    @model_validator(mode="after")
    def _options_go_together(self) -> ClozeTasks:
        check_depth(self.composition, self.depth)
        if self.window_words is not None and self.window_words[0] > self.window_words[1]:
            raise ValueError(f"window_words = {list(self.window_words)}: the fewest words come first, the most second")
        if self.real and self.composition != "independent":
            raise ValueError("real questions need composition = independent")
        if self.real and self.questions is None and self.train_questions is None:
            raise ValueError("real questions need files: give questions, train_questions")
        return self

    def source(self, split: Split, tags: Tags) -> TaskSource:
        """The tasks of one half: passages of the training part, or of the part that is held out."""
        return _Clozes(self, split, tags)

    def development(self) -> ClozeTasks:
        """Clozes of the development part alone: `questions` are those of the final evaluation."""
        return self.model_copy(update={"held_out": "development", "questions": None})

    def expert(self, tasks: Sequence[Task], environment: Environment, tags: Tags, *, seed: int) -> Callable[[str], str]:
        if self.composition == "independent" and not self.real:
            return ClozeExpert(tags=tags, laziness=self.laziness, seed=seed)
        return super().expert(tasks, environment, tags, seed=seed)

    def texts(self, tags: Tags) -> Iterable[str]:
        return passage_texts(self.folder().index().passages)

    def check_tasks(self) -> str:
        return check_corpus(self.corpus, "give documents of your own by corpus=FOLDER", "its clozes are made or read")

    def text_sizes(self, objectives: int) -> TextSizes:
        words = self.top_k * self.snippet_words
        return TextSizes(20 + QUESTION_TOKENS * objectives, 20 + round(words * TOKENS_PER_WORD))

    def write_folder(self, out: Path, on_progress: OnProgress) -> Mapping[str, Any]:
        """Make the clozes of the corpus in this folder."""
        name = Path(self.corpus).name
        with alone_in(out):
            passages = read_corpus(local_corpus(self.corpus))
            folder = make_cloze_folder(passages, out, self.making, corpus=name, on_progress=on_progress)
        return folder.statistics()

    def folder(self) -> ClozeFolder:
        """The clozes of the corpus. Raises UserError if there is nothing at `corpus`."""
        return open_cloze_folder(local_corpus(self.corpus), self.making, on_making=_say_where)


@dataclass(frozen=True)
class _Clozes(TaskSource):
    config: ClozeTasks
    split: Split
    tags: Tags

    @cached_property
    def folder(self) -> ClozeFolder:
        return self.config.folder()

    @cached_property
    def environment(self) -> SearchEnvironment:
        config = self.config
        retriever = Snippets(self.folder.index(), config.snippet_words)
        style = "titled" if config.titles else "bare"
        return SearchEnvironment({self._corpus: retriever}, top_k=config.top_k, style=style, reward=config.own_reward)

    @property
    def _corpus(self) -> str:
        return Path(self.config.corpus).name

    @cached_property
    def clozes(self) -> list[Ranked]:
        """The clozes of this half within the limits. Raises UserError if there are none."""
        part = "train" if self.split == "train" else self.config.held_out
        least, most = self.config.window_words or (0, sys.maxsize)
        worst = self.config.worst_rank or sys.maxsize
        found = [c for c in self.folder.questions(part) if c.rank <= worst and least <= c.words <= most]
        if not found:
            raise UserError(
                f"{self.config.corpus} has no {part} clozes with this worst_rank and window_words; loosen them, give "
                "more text, or make the clozes with a larger share of that part"
            )
        return found

    @cached_property
    def _real(self) -> list[Question]:
        train, evaluation = self.config.train_questions, self.config.questions
        if train is not None and evaluation is not None:
            check_disjoint(read_questions(train), read_questions(evaluation))
        path = train if self.split == "train" else evaluation
        return [] if path is None or not self.config.real else read_questions(path)

    @cached_property
    def _material(self) -> ClozeMaterial:
        return ClozeMaterial(self.clozes)

    @cached_property
    def _form(self) -> TaskTemplate:
        return self.config.template(self.tags, self._corpus)

    def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
        config = self.config
        if config.composition == "independent":
            share = config.real if self._real else 0.0
            return compose_clozes(
                self.clozes, self._real, self._form, share=share, objectives=objectives, count=count, seed=seed
            )
        return compose_dependent(
            self._material,
            self._form,
            dependence=config.composition,
            depth=config.depth or 1,
            objectives=objectives,
            count=count,
            seed=seed,
        )


def _say_where(folder: Path) -> OnProgress:
    """Announce on stderr that questions are being made: about a minute for ten thousand passages."""
    from rich.console import Console

    Console(stderr=True, highlight=False, markup=False).print(printable(f"Making clozes (once); kept in {folder}"))
    return lambda what, done, of: None
