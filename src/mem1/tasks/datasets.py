"""Questions (and the passages that answer them) in JSONL files, plain or gzipped.

    {"id": "q1", "text": "Who founded Alvex?", "answers": ["Mira Toll"], "hops": 1}                  our own form
    {"id": "nq_3", "question": "...", "answers": ["..."], "dataset": "nq", "gold_ids": ["..."]}
    {"id": "test_0", "question": "...", "golden_answers": ["..."]}                             Search-R1, FlashRAG

A field has one of several names (`_NAMES`); other fields of a line are left unread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from mem1.errors import UserError
from mem1.jsonl import read_objects, write_objects
from mem1.records import Passage, Question

_NAMES = {
    "id": ("id", "_id"),
    "text": ("text", "question"),
    "answers": ("answers", "golden_answers", "answer"),
    "source": ("source", "dataset"),
    "hops": ("hops",),
    "passage_ids": ("passage_ids", "gold_ids"),
}


def read_questions(path: str | os.PathLike[str]) -> list[Question]:
    """Every question of the file, in its order.

    Raises UserError, with file and line, for a missing or cut file, a question without id, text or answer, a field
    of the wrong type, or an id that stands twice.
    """
    questions: list[Question] = []
    line_of: dict[str, int] = {}
    for line, record in read_objects(path):
        try:
            question = _question(record)
        except ValueError as error:
            raise UserError(f"{path}:{line}: {error}") from error
        if question.id in line_of:
            raise UserError(f"{path}:{line}: question id {question.id!r} stands on line {line_of[question.id]} already")
        line_of[question.id] = line
        questions.append(question)
    if not questions:
        raise UserError(f"{path} holds no question; each line must be an object with id, text and answers")
    return questions


def write_questions(path: str | os.PathLike[str], questions: Iterable[Question]) -> None:
    """Write our own form, gzipped if the name ends in .gz; `read_questions` is its inverse. Raises UserError."""
    write_objects(path, map(_record, questions))


def write_passages(path: str | os.PathLike[str], passages: Iterable[Passage]) -> None:
    """Write {"id", "title", "text"} a line, gzipped if the name ends in .gz; `retrieval.corpus.read_passages` reads it.

    Raises UserError where the file cannot be written.
    """
    write_objects(path, ({"id": p.id, "title": p.title, "text": p.text} for p in passages))


def _record(question: Question) -> dict[str, Any]:
    return {
        "id": question.id,
        "text": question.text,
        "answers": list(question.answers),
        "source": question.source,
        "hops": question.hops,
        "passage_ids": list(question.passage_ids),
    }


def _question(record: Mapping[str, Any]) -> Question:
    """Raises ValueError saying what is missing or wrong."""
    fields = {field: _first(record, names) for field, names in _NAMES.items()}
    identifier, text, answers, hops = fields["id"], fields["text"], fields["answers"], fields["hops"]
    if isinstance(identifier, bool) or not isinstance(identifier, (str, int)) or identifier == "":
        raise ValueError("a question needs an id, a string or a whole number")
    if text is not None and not isinstance(text, str):
        raise ValueError(f"the text of question {identifier!r} is not a string")
    if hops is not None and (isinstance(hops, bool) or not isinstance(hops, int)):
        raise ValueError(f"hops of question {identifier!r} must be a whole number or null, not {hops!r}")
    if fields["source"] is not None and not isinstance(fields["source"], str):
        raise ValueError(f"the source of question {identifier!r} is not a string")
    return Question(
        id=str(identifier),
        text=text or "",
        answers=_strings([answers] if isinstance(answers, str) else answers, f"the answers of question {identifier!r}"),
        source=fields["source"] or "",
        hops=hops,
        passage_ids=_strings(fields["passage_ids"], f"the passage ids of question {identifier!r}"),
    )


def _first(record: Mapping[str, Any], names: Iterable[str]) -> Any:
    """The value under the first of `names` that the record has; None where it has none of them."""
    return next((record[name] for name in names if name in record), None)


def _strings(values: Any, what: str) -> tuple[str, ...]:
    """Blank strings are left out: a blank gold alias would match an empty answer. Raises ValueError."""
    if values is None:
        return ()
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{what} must be a list of strings, not {values!r}")
    return tuple(value for value in values if value.strip())
