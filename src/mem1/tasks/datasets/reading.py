"""Reads data sets as published: the format is recognised from the first record, or named.

    read_questions("dev.jsonl")                                   our own format, or any other known one
    read_dataset("hotpot_dev_distractor_v1.json").passages        the paragraphs that come with the questions
    read_questions("musique_ans_v1.0_dev.jsonl", decompose=True)  its single hops
    read_tasks("train.parquet")                                   the questions of each composed task
    read_pool(["nq.jsonl", "hotpot.json"], split="evaluation")    half of the distinct questions of several files

A Hugging Face address such as "hf:akariasai/PopQA:test" may replace a file everywhere. Your own format: register a
`Format` by `mem1.register.dataset`, or name it as package.module:NAME.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mem1.errors import UserError
from mem1.jsonl import read_objects
from mem1.records import Passage, Question
from mem1.registry import register
from mem1.tasks.compose import EVALUATION_SHARE, Split, same_text, split_of
from mem1.tasks.datasets import own, published
from mem1.tasks.datasets.files import (
    PREFIX,
    Aliases,
    Sample,
    Wanted,
    distinct,
    hashed,
    hub_records,
    peek,
    read_records,
    shown,
    strings,
)
from mem1.tasks.datasets.own import searchr1

log = logging.getLogger(__name__)

Translate = Callable[[Mapping[str, Any], Wanted], Sample]


@dataclass(frozen=True, slots=True)
class Format:
    """A layout of records, and the function that translates them."""

    translate: Translate
    layouts: tuple[tuple[str, ...], ...]
    """Field names: a record with all fields of one layout has this format, unless an earlier format matches."""
    apart: bool = False
    """Whether its questions can be decomposed into single hops."""
    aliased: bool = False
    """Whether answers get other names from a file of aliases."""
    composed: bool = False
    """Whether a record may hold the questions of a composed task."""
    repeats: bool = False
    """Whether questions may be repeated, because ids are made from texts, several tasks share a question or rows differ
    in their documents alone. One that is repeated has the answers of each time."""


FORMATS: Mapping[str, Format] = {
    "searchr1": Format(searchr1, (("prompt", "reward_model"),), composed=True, repeats=True),
    "tasks": Format(own.composed, (("id", "questions"),), composed=True, repeats=True),
    "musique": Format(published.musique, (("id", "question", "paragraphs"),), apart=True),
    "2wikimultihopqa": Format(
        published.twowiki,
        (("_id", "question", "context", "evidences"), ("question", "context", "supporting_facts", "evidences")),
        apart=True,
        aliased=True,
    ),
    "hotpotqa": Format(published.hotpotqa, (("question", "context", "supporting_facts"),)),
    "triviaqa": Format(
        published.triviaqa,
        (("QuestionId", "Question", "Answer"), ("question_id", "question", "answer")),
        repeats=True,
    ),
    "popqa": Format(published.popqa, (("id", "subj", "prop", "question", "possible_answers"),)),
    "bamboogle": Format(published.bamboogle, (("Question", "Answer"),), repeats=True),
    "browsecomp-plus": Format(published.browsecomp_plus, (("query_id", "query", "answer"),)),
    "own": Format(own.own, (("id", "text"),)),
    "nq": Format(published.nq_open, (("question", "answer"),), repeats=True),
}
"""Formats by name, in the order in which they are tried. `own` also reads other names of its fields."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """The content of a file."""

    questions: list[Question]
    passages: list[Passage]
    """The distinct paragraphs that come with the questions, if any."""


def read_dataset(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    aliases: str | os.PathLike[str] | None = None,
    decompose: bool = False,
) -> Dataset:
    """Every question of the file, in order, and its passages.

    `format` is a name of `register.dataset`; None: recognised from the first record. `aliases` is 2WikiMultihopQA's
    id_aliases.json. `decompose` replaces each question by its hops. Composed tasks are split into their questions.
    Raises UserError, with file and line or index, for a missing or truncated file, a question without id, text or
    answer, a field of the wrong type, a repeated id, an unknown format, and for a question that refers to the
    answers of others in its task.
    """
    passages: dict[str, Passage] = {}
    seen: dict[str, tuple[str, Question]] = {}
    known, samples = _samples(path, format, aliases, decompose)
    for where, sample in samples:
        passages.update((passage.id, passage) for passage in sample.passages)
        for question in sample.questions:
            if question.depends_on:
                raise UserError(
                    f"{where}: {question.id!r} refers to the answers of other questions of its task, so it cannot be "
                    'asked alone; use the composed tasks of the file (composition = "file")'
                )
            if question.id in seen:
                place, before = seen[question.id]
                if not (known.repeats and same_text(before.text) == same_text(question.text)):
                    raise UserError(f"{where}: question id {question.id!r} is already on {_short(place, path)}")
                answers = distinct((*before.answers, *question.answers))
                question = dataclasses.replace(before, answers=answers)
            seen[question.id] = (where, question)
    questions = [question for _, question in seen.values()]
    if not questions:
        raise UserError(f"{path} has no questions; each line must be an object with id, text and answers")
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


def read_tasks(path: str | os.PathLike[str]) -> list[tuple[Question, ...]]:
    """The questions of each task in a file that `mem1 data` wrote, or in MEM1's own Parquet.

    Raises UserError as `read_dataset` does, and for a format of single questions.
    """
    known, samples = _samples(path, None, None, False)
    if not known.composed:
        raise UserError(f"{path} has single questions, not composed tasks; leave out tasks.composition=file")
    tasks = [sample.questions for _, sample in samples if sample.questions]
    if not tasks:
        raise UserError(f"{path} has no tasks")
    return tasks


def read_aliases(path: str | os.PathLike[str]) -> Aliases:
    """Read 2WikiMultihopQA's id_aliases.json, with {"Q_id": "Q1", "aliases": [...], "demonyms": [...]} per line."""
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
    records = hub_records(str(path)) if str(path).startswith(PREFIX) else read_records(path)
    head, records = peek(records)
    known = _format(name) if name is not None else _detect(path, head)
    if decompose and not known.apart:
        apart = ", ".join(name for name, f in _formats() if f.apart)
        raise UserError(f"{path}: only {apart} can be decomposed into single hops")
    if aliases is not None and not known.aliased:
        log.warning("%s: the answers get no other names from %s, which has those of 2WikiMultihopQA's", path, aliases)
    wanted = Wanted(aliases=read_aliases(aliases) if aliases is not None else {}, decompose=decompose)
    return known, _translated(known, records, wanted)


def _translated(
    known: Format, records: Iterator[tuple[str, dict[str, Any]]], wanted: Wanted
) -> Iterator[tuple[str, Sample]]:
    for where, record in records:
        try:
            sample: Any = known.translate(record, wanted)
        except ValueError as error:
            raise UserError(f"{where}: {error}") from error
        except Exception as error:  # whatever a stranger's function raises
            raise UserError(f"{where}: the format's translate fails: {type(error).__name__}: {error}") from error
        if not isinstance(sample, Sample):
            raise UserError(f"{where}: the format's translate returned {shown(sample)}; it must return a Sample")
        yield where, sample


def _detect(path: str | os.PathLike[str], head: Mapping[str, Any] | None) -> Format:
    if head is None:
        return FORMATS["own"]  # an empty file, which has no questions in any format
    for _, known in _formats():
        if any(all(field in head for field in layout) for layout in known.layouts):
            # Search-R1's JSONL, which has NQ-open's fields and an id, has our own format
            return FORMATS["own"] if known is FORMATS["nq"] and ("id" in head or "_id" in head) else known
    if "id" in head or "_id" in head or "text" in head:
        return FORMATS["own"]
    layouts = "; ".join(f"{name} ({', '.join(f.layouts[0])})" for name, f in _formats())
    raise UserError(
        f"{path}: no known format has the fields {', '.join(head) or '(none)'}; known: {layouts}; name the format "
        "by tasks.format, or give each question an id, a text and answers"
    )


def _formats() -> Iterator[tuple[str, Format]]:
    """Shipped formats first, then registered ones and those of installed packages."""
    return ((name, _format(name)) for name in register.dataset.names())


def _format(name: str) -> Format:
    found = register.dataset.get(name)
    if not isinstance(found, Format):
        raise UserError(f"the format {name!r} is {shown(found)}; it must be a mem1.tasks.datasets.reading.Format")
    return found


def _short(where: str, path: str | os.PathLike[str]) -> str:
    """file.jsonl:3 -> line 3, for a message that already names the file."""
    place = where.removeprefix(str(path))
    return f"line {place[1:]}" if place.startswith(":") else f"entry {place}"


def read_pool(
    paths: Sequence[str],
    *,
    format: str | None = None,
    aliases: str | None = None,
    decompose: bool = False,
    split: Split | None = None,
    evaluation_share: float = EVALUATION_SHARE,
    without: Sequence[str] = (),
) -> list[list[Question]]:
    """Per file its questions, without repetitions (`same_text`) over all files, of one half or (`split` None) both.

    Questions of the files `without`, such as those of a test, are dropped as repetitions. If two questions with
    different texts share an id, as in files numbered from 0, the later one gets an id made from its text.

    Raises UserError where no question is left.
    """
    how: dict[str, Any] = {"format": format, "aliases": aliases, "decompose": decompose}
    read = [(path, read_questions(path, **how)) for path in paths]
    asked = [question.text for _, questions in read for question in questions]
    evaluated = {same_text(text) for text in asked if split_of(text, evaluation_share=evaluation_share) == "evaluation"}
    files: list[list[Question]] = []
    texts = {same_text(q.text) for path in without for q in read_questions(path, format=format)}
    repeated = 0
    ids: set[str] = set()
    for path, questions in read:
        files.append([])
        for question in questions:
            key = same_text(question.text)
            if split is not None and (key in evaluated) != (split == "evaluation"):
                continue
            if key in texts:
                repeated += 1
                continue
            if question.id in ids:
                name = hashed(question.source or Path(path).name, question.text)
                question = dataclasses.replace(question, id=name)
            ids.add(question.id)
            texts.add(key)
            files[-1].append(question)
    if not any(files):
        place = "left" if split is None else f"in the {split} half"
        raise UserError(f"no question of {', '.join(paths)} is {place}; give more questions")
    if repeated:
        log.warning("%d repeated questions of %s are left out", repeated, ", ".join((*paths, *without)))
    return files
