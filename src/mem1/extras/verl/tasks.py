"""Tasks as the Parquet file that verl's data set reads, and back from the row that it passes to an agent loop.

    data_source "mem1-n2", prompt [{"role": "user", "content": "Answer ..."}],
    extra_info {"index": 0, "split": "train", "task": '{"id": "n2-seed0-0", "questions": [...], ...}'}

`extra_info` holds the whole task as JSON: question ids, gold answers, turn limit and collection come back unchanged.
verl requires the column `prompt`, but the policy is shown the task's own prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mem1.errors import UserError
from mem1.parquet import write_rows
from mem1.records import Task, task_from_json, task_to_json
from mem1.tasks.splits import Split


def write_tasks(path: Path, tasks: Sequence[Task], *, split: Split) -> None:
    """One row per task; the old file or the whole new one. Raises UserError where it cannot be written."""
    write_rows(path, [_row(index, task, split) for index, task in enumerate(tasks)], _schema)


def read_row(extra_info: Mapping[str, Any] | None) -> tuple[Task, Split]:
    """The task of a row and its half. Raises UserError for a row that `write_tasks` did not write."""
    try:
        info = dict(extra_info or {})
        task, split = task_from_json(json.loads(info["task"])), info["split"]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"a row of the data has no mem1 task in extra_info ({error!r}); write the file with `mem1 data verl`"
        ) from error
    if split != "train" and split != "evaluation":
        raise UserError(f"extra_info.split is {split!r}; it must be train or evaluation")
    return task, split


def _row(index: int, task: Task, split: Split) -> dict[str, Any]:
    return {
        "data_source": f"mem1-n{task.objectives}",
        "prompt": [{"role": "user", "content": task.prompt}],
        "extra_info": {"index": index, "split": split, "task": json.dumps(task_to_json(task), ensure_ascii=False)},
    }


def _schema(pa: Any) -> Any:
    return pa.schema(
        {
            "data_source": pa.string(),
            "prompt": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
            "extra_info": pa.struct({"index": pa.int64(), "split": pa.string(), "task": pa.string()}),
        }
    )
