"""Write questions, passages and composed tasks; an existing file is replaced only by a whole one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from mem1.errors import UserError
from mem1.jsonl import write_objects
from mem1.records import Passage, Question, Task
from mem1.tasks.datasets.own import question_record, task_record
from mem1.tasks.datasets.parquet import write_parquet
from mem1.tasks.datasets.splits import Split


def write_questions(path: str | os.PathLike[str], questions: Iterable[Question]) -> None:
    """Write our own form, gzipped if the name ends in .gz; `read_questions` is its inverse. Raises UserError."""
    write_objects(path, map(question_record, questions))


def write_passages(path: str | os.PathLike[str], passages: Iterable[Passage]) -> None:
    """Write {"id", "title", "text"} a line, gzipped if the name ends in .gz; `retrieval.corpus.read_passages` reads it.

    Raises UserError where the file cannot be written.
    """
    write_objects(path, ({"id": p.id, "title": p.title, "text": p.text} for p in passages))


def write_tasks(
    path: str | os.PathLike[str], tasks: Sequence[Task], *, split: Split = "train", source: str | None = None
) -> None:
    """Write composed tasks, as the ending says: .parquet for MEM1's and Search-R1's code, .jsonl(.gz) in our own form.

    `split` and `source` are what the Parquet file says of its rows: train or test, and its data_source, without
    which it is that of a task's first question. Raises UserError for another ending.
    """
    target = Path(path)
    if target.suffix == ".parquet":
        write_parquet(target, tasks, split=split, source=source)
    elif target.name.endswith((".jsonl", ".jsonl.gz")):
        write_objects(target, (task_record(task.id, task.questions) for task in tasks))
    else:
        raise UserError(f"{target}: the name must end in .parquet (for MEM1's code) or .jsonl (our own form)")
