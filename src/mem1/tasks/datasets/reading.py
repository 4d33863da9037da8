"""Read a data set as it is published: the format is seen in its first record, or named.

    read_questions("dev.jsonl")                                   one's own form, or any other that is known
    read_dataset("hotpot_dev_distractor_v1.json").passages        the paragraphs that come with the questions
    read_questions("musique_ans_v1.0_dev.jsonl", decompose=True)  its single hops
    read_tasks("train.parquet")                                   the questions of each composed task

A Hugging Face id such as "hf:akariasai/PopQA:test" stands for a file everywhere (`hub`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mem1.errors import UserError
from mem1.jsonl import read_objects
from mem1.records import Passage, Question
from mem1.scoring import normalize
from mem1.tasks.datasets import own, published
from mem1.tasks.datasets.fields import Aliases, Sample, Wanted, distinct, hashed, strings
from mem1.tasks.datasets.files import PREFIX, hub_records, peek, read_records
from mem1.tasks.datasets.parquet import searchr1
from mem1.tasks.splits import EVALUATION_SHARE, Split, split_of

Translate = Callable[[Mapping[str, Any], Wanted], Sample]


@dataclass(frozen=True, slots=True)
class Format:
    """A layout of records."""

    translate: Translate
    layouts: tuple[tuple[str, ...], ...]
    """A record with all fields of one of these is of this format, unless an earlier one of `FORMATS` claims it."""
    apart: bool = False
    """Whether its questions can be taken apart into single hops."""
    repeats: bool = False
    """Whether a question may stand in it twice, where its id comes from its text or several tasks hold it."""


FORMATS: Mapping[str, Format] = {
    "searchr1": Format(searchr1, (("prompt", "reward_model"),), repeats=True),
    "tasks": Format(own.composed, (("id", "questions"),), repeats=True),
    "musique": Format(published.musique, (("id", "question", "paragraphs"),), apart=True),
    "2wikimultihopqa": Format(published.twowiki, (("_id", "question", "context", "evidences"),), apart=True),
    "hotpotqa": Format(published.hotpotqa, (("question", "context", "supporting_facts"),)),
    "triviaqa": Format(
        published.triviaqa, (("QuestionId", "Question", "Answer"), ("question_id", "question", "answer"))
    ),
    "popqa": Format(published.popqa, (("id", "subj", "prop", "question", "possible_answers"),)),
    "bamboogle": Format(published.bamboogle, (("Question", "Answer"),), repeats=True),
    "own": Format(own.own, (("id", "text"),)),
    "nq": Format(published.nq_open, (("question", "answer"),), repeats=True),
}
"""By name, in the order in which they are tried. `own` is also what has an id and a question by another name."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """What a file holds."""

    questions: list[Question]
    passages: list[Passage]
    """The paragraphs that come with the questions, each once; empty for data sets without."""


def read_dataset(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    aliases: str | os.PathLike[str] | None = None,
    decompose: bool = False,
) -> Dataset:
    """Every question of the file, in its order, and its passages.

    `format` is a name of `FORMATS`; None: it is seen in the first record. `aliases` is 2WikiMultihopQA's
    id_aliases.json. With `decompose` the hops of each question stand in its place. Composed tasks are taken apart
    into their questions. Raises UserError, with file and line or index, for a missing or cut file, a question
    without id, text or answer, a field of the wrong type, an id that stands twice, an unknown format, and for a
    question that speaks of the answers of its task's others.
    """
    questions: list[Question] = []
    passages: dict[str, Passage] = {}
    seen: dict[str, tuple[str, Question]] = {}
    known, samples = _samples(path, format, aliases, decompose)
    for where, sample in samples:
        passages.update((passage.id, passage) for passage in sample.passages)
        for question in sample.questions:
            if question.depends_on:
                raise UserError(
                    f"{where}: {question.id!r} speaks of the answers of other questions of its task, so it cannot be "
                    'asked without them; use the file as it is composed (composition = "file")'
                )
            if question.id in seen:
                place, before = seen[question.id]
                if known.repeats and before.text == question.text:
                    continue
                raise UserError(f"{where}: question id {question.id!r} stands on {_short(place, path)} already")
            seen[question.id] = (where, question)
            questions.append(question)
    if not questions:
        raise UserError(f"{path} holds no question; each line must be an object with id, text and answers")
    return Dataset(questions, list(passages.values()))


def read_questions(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    aliases: str | os.PathLike[str] | None = None,
    decompose: bool = False,
) -> list[Question]:
    """The questions of `read_dataset`."""
    return read_dataset(path, format=format, aliases=aliases, decompose=decompose).questions


def read_tasks(path: str | os.PathLike[str], *, format: str | None = None) -> list[tuple[Question, ...]]:
    """The questions of each task of a composed file: what `mem1 data compose` wrote, or MEM1's own Parquet.

    Raises UserError as `read_dataset` does, and for a format of single questions.
    """
    known, samples = _samples(path, format, None, False)
    if known not in (FORMATS["searchr1"], FORMATS["tasks"]):
        raise UserError(f"{path} holds single questions, not composed tasks; make them by `mem1 data compose`")
    tasks = [sample.questions for _, sample in samples if sample.questions]
    if not tasks:
        raise UserError(f"{path} holds no task")
    return tasks


def read_aliases(path: str | os.PathLike[str]) -> Aliases:
    """2WikiMultihopQA's id_aliases.json: {"Q_id": "Q1", "aliases": [...], "demonyms": [...]} a line."""
    aliases: dict[str, tuple[str, ...]] = {}
    for line, record in read_objects(path):
        try:
            names = (*strings(record.get("aliases"), "'aliases'"), *strings(record.get("demonyms"), "'demonyms'"))
        except ValueError as error:
            raise UserError(f"{path}:{line}: {error}") from error
        aliases[str(record.get("Q_id"))] = distinct(names)
    return aliases


def _samples(
    path: str | os.PathLike[str], name: str | None, aliases: str | os.PathLike[str] | None, decompose: bool
) -> tuple[Format, Iterator[tuple[str, Sample]]]:
    if name is not None and name not in FORMATS:
        raise UserError(f"unknown format {name!r}; known: {', '.join(FORMATS)}")
    records = hub_records(str(path)) if str(path).startswith(PREFIX) else read_records(path)
    head, records = peek(records)
    known = FORMATS[name] if name is not None else _detect(path, head)
    if decompose and not known.apart:
        apart = ", ".join(name for name, f in FORMATS.items() if f.apart)
        raise UserError(f"{path}: the single hops of questions are known for {apart} alone")
    wanted = Wanted(aliases=read_aliases(aliases) if aliases is not None else {}, decompose=decompose)
    return known, _translated(known, records, wanted)


def _translated(
    known: Format, records: Iterator[tuple[str, dict[str, Any]]], wanted: Wanted
) -> Iterator[tuple[str, Sample]]:
    for where, record in records:
        try:
            yield where, known.translate(record, wanted)
        except ValueError as error:
            raise UserError(f"{where}: {error}") from error


def _detect(path: str | os.PathLike[str], head: Mapping[str, Any] | None) -> Format:
    if head is None:
        return FORMATS["own"]  # an empty file: it holds no question, whatever its format
    for known in FORMATS.values():
        if any(all(field in head for field in layout) for layout in known.layouts):
            return _renamed(known, head)
    if "id" in head or "_id" in head or "text" in head:
        return FORMATS["own"]
    layouts = "; ".join(f"{name} ({', '.join(f.layouts[0])})" for name, f in FORMATS.items())
    raise UserError(
        f"{path}: the format is not known by the fields {', '.join(head) or '(none)'}; known: {layouts}; name it by "
        "--format, or give each question an id, a text and answers"
    )


def _renamed(known: Format, head: Mapping[str, Any]) -> Format:
    """Our own form under the names of Search-R1's JSONL has NQ-open's fields and an id."""
    return FORMATS["own"] if known is FORMATS["nq"] and ("id" in head or "_id" in head) else known


def _short(where: str, path: str | os.PathLike[str]) -> str:
    """file.jsonl:3 -> line 3, as the file is named in the message already."""
    place = where.removeprefix(str(path))
    return f"line {place[1:]}" if place.startswith(":") else f"entry {place}"


@dataclass(frozen=True, slots=True)
class Pool:
    """Questions to compose tasks of."""

    questions: list[Question]
    passages: list[Passage]
    """All that come with the files, each once, whatever half their questions are in: distractors are needed too."""
    repeats: int
    """Questions left out because their text, after normalisation, stood before them."""


def read_pool(
    paths: Sequence[str],
    *,
    format: str | None = None,
    aliases: str | None = None,
    decompose: bool = False,
    split: Split | None = None,
    evaluation_share: float = EVALUATION_SHARE,
) -> Pool:
    """The questions of one half, or of both where `split` is None. Raises UserError where none is left.

    Of two questions with one id and different texts, as files numbered from 0 have them, the later one gets an id
    that is made from its text.
    """
    questions: dict[str, Question] = {}
    passages: dict[str, Passage] = {}
    ids: set[str] = set()
    repeats = 0
    for path in paths:
        data = read_dataset(path, format=format, aliases=aliases, decompose=decompose)
        passages.update((passage.id, passage) for passage in data.passages)
        for question in data.questions:
            if split is not None and split_of(question.text, evaluation_share=evaluation_share) != split:
                continue
            key = normalize(question.text) or question.text
            if key in questions:
                repeats += 1
                continue
            if question.id in ids:
                name = hashed(question.source or Path(path).name, question.text)
                question = dataclasses.replace(question, id=name)
            ids.add(question.id)
            questions[key] = question
    if not questions:
        raise UserError(f"no question of {', '.join(paths)} belongs to the {split} half; give more questions")
    return Pool(list(questions.values()), list(passages.values()), repeats)
