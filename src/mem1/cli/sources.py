"""Where a command's tasks come from: Atlas, or files of questions and passages; one rule for every command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mem1.errors import UserError

if TYPE_CHECKING:
    from mem1.envs.source import AtlasTasks, MultihopTasks


def task_config(
    task: str,
    questions: Path | None,
    corpus: Path | None,
    *,
    worlds: int,
    prompt: str | None = None,
    top_k: int | None = None,
) -> AtlasTasks | MultihopTasks:
    """What `--task`, `--questions`, `--corpus`, `--prompt` and `--top-k` ask for; None: the default of the tasks.

    `worlds` is the number of worlds of Atlas. Raises UserError where the options do not go together.
    """
    from mem1.envs.source import AtlasTasks, MultihopTasks

    shown: dict[str, Any] = {} if top_k is None else {"top_k": top_k}
    if task == "atlas":
        if questions is not None or corpus is not None or prompt is not None:
            raise UserError("--questions, --corpus and --prompt go with --task multihop")
        return AtlasTasks(worlds=worlds, **shown)
    if task != "multihop":
        raise UserError(f"unknown task {task!r}; known: atlas, multihop")
    if questions is None or corpus is None:
        raise UserError("--task multihop needs --questions FILE and --corpus FILE (or the folder of an index)")
    worded: dict[str, Any] = {} if prompt is None else {"prompt": prompt}
    return MultihopTasks(questions=str(questions), corpus=str(corpus), **worded, **shown)
