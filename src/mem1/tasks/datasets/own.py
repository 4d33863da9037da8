"""What is read and written: our own JSONL of questions, and the files of Search-R1 and of MEM1's released code.

    {"id": "q1", "text": "Who founded Alvex?", "answers": ["Mira Toll"], "hops": 1}                  our own format
    {"id": "nq_3", "question": "...", "answers": ["..."], "dataset": "nq", "gold_ids": ["..."]}
    {"id": "test_0", "question": "...", "golden_answers": ["..."]}                             Search-R1, FlashRAG
    {"id": "n2-seed0-0", "questions": [{...}, {...}]}                                          a composed task

A field has one of several names (`_NAMES`); other fields of a line are ignored. Parquet files:

    one question    data_source "nq", prompt [{"role": "user", "content": "... Question: who founded alvex?"}],
    (Search-R1)     ability, reward_model {"style": "rule", "ground_truth": {"target": ["Mira Toll"]}},
                    extra_info {"split", "index"}, and the columns of FlashRAG: id, question, golden_answers
    N questions     the same, but "... Answer the following questions: who founded alvex?; where is it?",
    (MEM1)          "target": [["Mira Toll"], ["Bergen"]] and extra_info {"split", "indices"}

Our files have the columns of both layouts and one more, `questions`, which other readers ignore: each question in our
own format, so that ids, sources and dependencies are preserved.

Sources: Search-R1, scripts/data_process/qa_search_train_merge.py; MEM1, gen_data/data_process/
qa_search_train_merge_multi.py, inference/generate_rollout.py and train/verl/utils/reward_score/qa_multiple.py.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from token import STRING
from tokenize import TokenError, generate_tokens
from typing import Any

from mem1.errors import UserError
from mem1.jsonl import write_objects
from mem1.parquet import write_rows
from mem1.protocol import RELEASED
from mem1.records import Passage, Question, Task
from mem1.tasks.compose import Split, closed
from mem1.tasks.datasets.files import (
    Record,
    Sample,
    Wanted,
    first,
    hashed,
    identifier,
    items,
    mapping,
    shown,
    strings,
    text,
)
from mem1.tasks.prompts import render

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
    text, hops = fields["text"], fields["hops"]
    if isinstance(hops, str) and (digits := re.fullmatch(r"([0-9]{0,4})(?:\.0)?", hops)):  # as tables have it
        hops = int(digits[1]) if digits[1] else None
    if text is not None and not isinstance(text, str):
        raise ValueError(f"the text of question {name!r} is not a string")
    if hops is not None and (isinstance(hops, bool) or not isinstance(hops, int)):
        raise ValueError(f"hops of question {name!r} must be an integer or null, not {hops!r}")
    if fields["source"] is not None and not isinstance(fields["source"], str):
        raise ValueError(f"the source of question {name!r} is not a string")
    return Question(
        id=name,
        text=text or "",
        answers=_listed(fields["answers"], f"the answers of question {name!r}"),
        source=fields["source"] or "",
        hops=hops,
        passage_ids=_listed(fields["passage_ids"], f"the passage ids of question {name!r}"),
        titles=_listed(fields["titles"], f"the titles of question {name!r}"),
        depends_on=_numbers(fields["depends_on"], name),
    )


def _listed(values: Any, what: str) -> tuple[str, ...]:
    """A list of texts; a text alone as the only one, or, if it is a list in JSON or Python, as in tables, as that list.

    Raises ValueError naming `what` for anything else, such as NumPy's lists, which have no commas.
    """
    if not isinstance(values, str):
        return strings(values, what)
    written = values.strip()
    if not written.startswith("["):
        return strings([values], what)
    with suppress(ValueError):
        return strings(json.loads(written), what)
    with suppress(ValueError, SyntaxError, MemoryError, RecursionError, TokenError):
        found = ast.literal_eval(written)
        parts = [token for token in generate_tokens(io.StringIO(written).readline) if token.type == STRING]
        if len(parts) == len(found):  # 'a' 'b' would be read as one text
            return strings(found, what)
    if re.match(r"""\[\s*['"].*['"]\s*\]$""", written, re.DOTALL):
        raise ValueError(f'{what} are no list with commas, {shown(written)}; write ["one", "another"]')
    return strings([values], what)


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


PROMPT = "released"
"""Prompt of our files: answers by position, separated by semicolons, as MEM1's scorer expects them."""
SCORED = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
"""Data sources for which the published trainers have a reward; they stop at any other."""
_MANY, _ONE = "questions: ", "Question: "
_BETWEEN = re.compile(r"(?<=\?); ")


def searchr1(record: Record, wanted: Wanted) -> Sample:
    """The question, or the questions of one task."""
    if record.get("questions") is not None:
        return composed(record, wanted)
    reward = mapping(record.get("reward_model"), "'reward_model'")
    target: Any = mapping(reward.get("ground_truth"), "'ground_truth'").get("target")
    golds = target if isinstance(target, list) and target and isinstance(target[0], list) else [target]
    source, asked = text(record, "data_source"), _asked(record, len(golds))
    return Sample(
        tuple(
            Question(
                id=_name(record, source, question) if len(golds) == 1 else hashed(source, question),
                text=question,
                answers=strings([gold] if isinstance(gold, str) else gold, "'target'"),
                source=source,
            )
            for question, gold in zip(asked, golds, strict=True)
        )
    )


def _asked(record: Record, count: int) -> list[str]:
    """The questions of a row: a single one from its column, several from the end of the prompt."""
    if count == 1 and isinstance(record.get("question"), str):
        return [record["question"].strip()]
    messages = [mapping(message, "a message") for message in items(record, "prompt")]
    content = text(messages[-1], "content") if messages else ""
    _, marker, asked = content.rpartition(_MANY if count > 1 else _ONE)
    if not marker:
        raise ValueError(f"no {(_MANY if count > 1 else _ONE).strip()!r} in the prompt {shown(content)}")
    found = [q.strip() for q in _BETWEEN.split(asked.strip())] if count > 1 else [asked.strip()]
    if len(found) != count:
        raise ValueError(f"{len(found)} questions for {count} lists of answers in the prompt {shown(content)}")
    return found


def _name(record: Record, source: str, asked: str) -> str:
    """Id with its source, as ids such as "train_0" are repeated in every data set of a file."""
    given = record.get("id")
    if not isinstance(given, str) or not given:
        return hashed(source, asked)
    return given if given.startswith(source) else f"{source}:{given}"


def write_tasks(path: str | os.PathLike[str], tasks: Sequence[Task], *, split: Split = "train") -> None:
    """Write composed tasks: .parquet for MEM1's and Search-R1's code, .jsonl(.gz) in our own format.

    `split` is a column of the Parquet file. Raises UserError for any other ending.
    """
    target = Path(path)
    if target.suffix == ".parquet":
        several = any(task.objectives > 1 for task in tasks)
        firsts = accumulate((task.objectives for task in tasks), initial=0)
        rows = [
            _row(index, task, split, several, first)
            for index, (task, first) in enumerate(zip(tasks, firsts, strict=False))
        ]
        write_rows(target, rows, lambda pa: _schema(pa, several))
    elif target.name.endswith((".jsonl", ".jsonl.gz")):
        write_objects(target, ({"id": t.id, "questions": list(map(question_record, t.questions))} for t in tasks))
    else:
        raise UserError(f"{target}: the name must end in .parquet (for MEM1's code) or .jsonl (our own format)")


def _row(index: int, task: Task, split: Split, several: bool, first: int) -> dict[str, Any]:
    """`first`: number of the task's first question among all questions of the file."""
    golds = [list(question.answers) for question in task.questions]
    asked = [replace(question, text=closed(question.text)) for question in task.questions]
    target = golds if several else golds[0]
    return {
        "id": task.id,
        "question": "; ".join(question.text for question in asked),
        "golden_answers": target,
        "data_source": task.questions[0].source,
        "prompt": [{"role": "user", "content": render(PROMPT, asked, RELEASED)}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": target}},
        "extra_info": {
            "split": "train" if split == "train" else "test",
            "index": index,
            "indices": list(range(first, first + task.objectives)),
        },
        "questions": [question_record(question) for question in task.questions],
    }


def _schema(pa: Any, several: bool) -> Any:
    """A fixed schema, so that the types of columns do not depend on which values are empty.

    several    some task has more than one objective
    """
    names, numbers = pa.list_(pa.string()), pa.list_(pa.int64())
    golds = pa.list_(names) if several else names
    question = {
        "id": pa.string(),
        "text": pa.string(),
        "answers": names,
        "source": pa.string(),
        "hops": pa.int64(),
        "passage_ids": names,
        "titles": names,
        "depends_on": numbers,
    }
    return pa.schema(
        {
            "id": pa.string(),
            "question": pa.string(),
            "golden_answers": golds,
            "data_source": pa.string(),
            "prompt": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
            "ability": pa.string(),
            "reward_model": pa.struct({"style": pa.string(), "ground_truth": pa.struct({"target": golds})}),
            "extra_info": pa.struct({"split": pa.string(), "index": pa.int64(), "indices": numbers}),
            "questions": pa.list_(pa.struct(question)),
        }
    )
