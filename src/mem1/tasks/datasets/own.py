"""Our own JSONL of questions, read and written; the JSONL of Search-R1 and FlashRAG differs only in names.

    {"id": "q1", "text": "Who founded Alvex?", "answers": ["Mira Toll"], "hops": 1}                  our own format
    {"id": "nq_3", "question": "...", "answers": ["..."], "dataset": "nq", "gold_ids": ["..."]}
    {"id": "test_0", "question": "...", "golden_answers": ["..."]}                             Search-R1, FlashRAG
    {"id": "n2-seed0-0", "questions": [{...}, {...}]}                                          a composed task

A field has one of several names (`_NAMES`); other fields of a line are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from mem1.jsonl import write_objects
from mem1.records import Passage, Question
from mem1.tasks.datasets.fields import Record, Sample, Wanted, first, identifier, items, mapping, strings

_NAMES = {
    "id": ("id", "_id"),
    "text": ("text", "question"),
    "answers": ("answers", "golden_answers", "answer"),
    "source": ("source", "dataset"),
    "hops": ("hops",),
    "passage_ids": ("passage_ids", "gold_ids"),
    "titles": ("titles", "gold_titles"),
    "depends_on": ("depends_on",),
}


def own(record: Record, wanted: Wanted) -> Sample:
    return Sample((question_from(record),))


def composed(record: Record, wanted: Wanted) -> Sample:
    """The questions of one task."""
    questions = tuple(question_from(mapping(q, "a question of a task")) for q in items(record, "questions"))
    for number, question in enumerate(questions, start=1):
        if not all(1 <= earlier < number for earlier in question.depends_on):
            raise ValueError(f"Q{number} depends on {list(question.depends_on)}, but not all of these come before it")
    return Sample(questions)


def question_record(question: Question) -> dict[str, Any]:
    """The inverse of `own`, without empty optional fields."""
    record: dict[str, Any] = {
        "id": question.id,
        "text": question.text,
        "answers": list(question.answers),
        "source": question.source,
        "hops": question.hops,
        "passage_ids": list(question.passage_ids),
    }
    for name, values in (("titles", question.titles), ("depends_on", question.depends_on)):
        if values:
            record[name] = list(values)
    return record


def question_from(record: Record) -> Question:
    """The question of a record. Raises ValueError naming a missing or wrong field."""
    fields = {field: first(record, names) for field, names in _NAMES.items()}
    name = identifier(fields["id"])
    text, answers, hops = fields["text"], fields["answers"], fields["hops"]
    if text is not None and not isinstance(text, str):
        raise ValueError(f"the text of question {name!r} is not a string")
    if hops is not None and (isinstance(hops, bool) or not isinstance(hops, int)):
        raise ValueError(f"hops of question {name!r} must be an integer or null, not {hops!r}")
    if fields["source"] is not None and not isinstance(fields["source"], str):
        raise ValueError(f"the source of question {name!r} is not a string")
    return Question(
        id=name,
        text=text or "",
        answers=strings([answers] if isinstance(answers, str) else answers, f"the answers of question {name!r}"),
        source=fields["source"] or "",
        hops=hops,
        passage_ids=strings(fields["passage_ids"], f"the passage ids of question {name!r}"),
        titles=strings(fields["titles"], f"the titles of question {name!r}"),
        depends_on=_numbers(fields["depends_on"], name),
    )


def _numbers(values: Any, name: str) -> tuple[int, ...]:
    if values is None:
        return ()
    if not isinstance(values, list) or any(isinstance(v, bool) or not isinstance(v, int) for v in values):
        raise ValueError(f"depends_on of question {name!r} must be a list of integers, not {values!r}")
    return tuple(values)


def write_questions(path: str | os.PathLike[str], questions: Iterable[Question]) -> None:
    """Write questions in our own format, gzipped if the name ends in .gz; the inverse of `read_questions`.

    Raises UserError if the file cannot be written.
    """
    write_objects(path, map(question_record, questions))


def write_passages(path: str | os.PathLike[str], passages: Iterable[Passage]) -> None:
    """Write {"id", "title", "text"} per line, gzipped if the name ends in .gz, for `retrieval.corpus.read_passages`.

    Raises UserError if the file cannot be written.
    """
    write_objects(path, ({"id": p.id, "title": p.title, "text": p.text} for p in passages))
