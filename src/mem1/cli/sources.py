"""Where a command's tasks come from: Atlas, files of questions and passages, or the web; one rule for every command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic

from mem1.errors import UserError

if TYPE_CHECKING:
    from mem1.envs.source import AtlasTasks, MultihopTasks
    from mem1.envs.web_source import WebTasks


def task_config(
    task: str,
    questions: Path | None,
    corpus: Path | None,
    *,
    worlds: int,
    prompt: str | None = None,
    top_k: int | None = None,
    web: Mapping[str, Any] | None = None,
) -> AtlasTasks | MultihopTasks | WebTasks:
    """What `--task`, `--questions`, `--corpus`, `--prompt` and `--top-k` ask for; None: the default of the tasks.

    `worlds` is the number of worlds of Atlas, `web` the keys of WebTasks that options gave (None: not given). Raises
    UserError where the options do not go together.
    """
    from mem1.envs.source import AtlasTasks, MultihopTasks

    shown: dict[str, Any] = {} if top_k is None else {"top_k": top_k}
    given = {key: value for key, value in (web or {}).items() if value is not None}
    if given and task != "web":
        raise UserError("the options of the web (--api, --api-url, --mode, --cache, --max-searches) go with --task web")
    if task == "atlas":
        if questions is not None or corpus is not None or prompt is not None:
            raise UserError("--questions, --corpus and --prompt go with --task multihop")
        return AtlasTasks(worlds=worlds, **shown)
    if task not in ("multihop", "web"):
        raise UserError(f"unknown task {task!r}; known: atlas, multihop, web")
    worded: dict[str, Any] = {} if prompt is None else {"prompt": prompt}
    if task == "web":
        return _web_tasks(questions, corpus, {**given, **worded, **shown})
    if questions is None or corpus is None:
        raise UserError("--task multihop needs --questions FILE and --corpus FILE")
    return MultihopTasks(questions=str(questions), corpus=str(corpus), **worded, **shown)


def _web_tasks(questions: Path | None, corpus: Path | None, given: dict[str, Any]) -> WebTasks:
    from mem1.configuration.mistakes import explain
    from mem1.envs.web_source import WebTasks

    if questions is None or corpus is not None:
        raise UserError("--task web needs --questions FILE, and no --corpus: it searches the web")
    try:
        return WebTasks(questions=str(questions), **given)
    except pydantic.ValidationError as error:
        raise UserError(f"--task web: {explain(error, WebTasks, [])}") from error
