"""NQ-open, TriviaQA, PopQA and Bamboogle: questions and answers without passages.

    NQ-open     {"question": "who founded alvex", "answer": ["Mira Toll"]}                                JSONL
    TriviaQA    {"Data": [{"QuestionId": "tc_1", "Question": "...",
                           "Answer": {"Value": "Mira Toll", "Aliases": ["M. Toll"], "NormalizedAliases": [...]}}]}
    PopQA       id, subj, prop, obj, ..., question, possible_answers ('["Mira Toll", "M. Toll"]')         TSV or CSV
    Bamboogle   Question, Answer                                                                          CSV

Sources: github.com/google-research-datasets/natural-questions (nq_open), github.com/mandarjoshi90/triviaqa (samples),
the card of huggingface.co/datasets/akariasai/PopQA, and Press et al. 2023 (arXiv 2210.03350) for Bamboogle.
"""

from __future__ import annotations

import json
from typing import Any

from mem1.records import Question
from mem1.tasks.datasets.fields import (
    Record,
    Sample,
    Wanted,
    distinct,
    first,
    hashed,
    identifier,
    mapping,
    shown,
    strings,
    text,
)

NQ, TRIVIAQA, POPQA, BAMBOOGLE = "nq", "triviaqa", "popqa", "bamboogle"


def nq_open(record: Record, wanted: Wanted) -> Sample:
    """A question without an id: it gets one from its text."""
    asked = text(record, "question")
    answers = strings(record.get("answer"), "'answer'")
    return Sample((Question(id=hashed(NQ, asked), text=asked, answers=distinct(answers), source=NQ),))


def triviaqa(record: Record, wanted: Wanted) -> Sample:
    """Value first, then the aliases, then their normalised forms."""
    asked = first(record, ("Question", "question"))
    answer = mapping(first(record, ("Answer", "answer")), "'Answer'")
    given = first(answer, ("Value", "value"))
    names: list[str] = [given] if isinstance(given, str) else []
    for field, lower in (("Aliases", "aliases"), ("NormalizedAliases", "normalized_aliases")):
        names += strings(first(answer, (field, lower)), f"{field!r}")
    if not isinstance(asked, str):
        raise ValueError(f"'Question' must be a string, not {shown(asked)}")
    name = identifier(first(record, ("QuestionId", "question_id")))
    return Sample((Question(id=name, text=asked, answers=distinct(names), source=TRIVIAQA),))


def popqa(record: Record, wanted: Wanted) -> Sample:
    """The subject is the title of the passage that answers it, by its Wikipedia title where the file has one."""
    answers: Any = record.get("possible_answers")
    if isinstance(answers, str):
        try:
            answers = json.loads(answers)
        except ValueError as error:
            raise ValueError(f"'possible_answers' must be a JSON list in a string, not {shown(answers)}") from error
    question = Question(
        id=identifier(record.get("id")),
        text=text(record, "question"),
        answers=distinct(strings(answers, "'possible_answers'")),
        source=POPQA,
        hops=1,
        titles=distinct(str(record.get(field) or "") for field in ("subj", "s_wiki_title")),
    )
    return Sample((question,))


def bamboogle(record: Record, wanted: Wanted) -> Sample:
    """A question without an id: it gets one from its text."""
    asked, answer = text(record, "Question"), text(record, "Answer")
    return Sample((Question(id=hashed(BAMBOOGLE, asked), text=asked, answers=distinct((answer,)), source=BAMBOOGLE),))
