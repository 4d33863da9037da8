"""Where a command's tasks come from: Atlas, or files of questions and passages; one rule for every command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mem1.errors import UserError

if TYPE_CHECKING:
    from mem1.envs.source import AtlasTasks, MultihopTasks
    from mem1.retrieval.http import HttpServer


def task_config(
    task: str,
    questions: Path | None,
    corpus: Path | None,
    retriever: Sequence[str] | None,
    *,
    worlds: int,
    prompt: str | None = None,
    top_k: int | None = None,
) -> AtlasTasks | MultihopTasks:
    """What the options of the same names ask for; None: the default of the tasks.

    `worlds` is the number of worlds of Atlas. Raises UserError where the options do not go together.
    """
    from mem1.envs.source import AtlasTasks, MultihopTasks

    shown: dict[str, Any] = {} if top_k is None else {"top_k": top_k}
    if task == "atlas":
        if questions is not None or corpus is not None or retriever or prompt is not None:
            raise UserError("--questions, --corpus, --retriever and --prompt go with --task multihop")
        return AtlasTasks(worlds=worlds, **shown)
    if task != "multihop":
        raise UserError(f"unknown task {task!r}; known: atlas, multihop")
    if questions is None or (corpus is None) == (not retriever):
        raise UserError("--task multihop needs --questions FILE, and --corpus FILE or --retriever URL")
    worded: dict[str, Any] = {} if prompt is None else {"prompt": prompt}
    searched: dict[str, Any] = {"retriever": server(retriever)} if retriever else {"corpus": str(corpus)}
    return MultihopTasks(questions=str(questions), **searched, **worded, **shown)


def server(urls: Sequence[str]) -> HttpServer:
    """The retriever at these addresses. Raises UserError where one of them is no address."""
    import pydantic

    from mem1.retrieval.http import HttpServer

    try:
        return HttpServer(urls=tuple(urls))
    except pydantic.ValidationError as error:
        raise UserError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error
