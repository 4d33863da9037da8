"""Where a command's tasks come from: Atlas, files, files and the web, or a shop; one rule for every command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import pydantic

from mem1.errors import UserError

if TYPE_CHECKING:
    from mem1.envs.atlas.tasks import AtlasTasks
    from mem1.envs.cloze.tasks import ClozeTasks
    from mem1.envs.search.tasks import MultihopTasks
    from mem1.envs.web.tasks import Web, WebTasks
    from mem1.envs.webshop.tasks import WebShopTasks
    from mem1.retrieval.client import RetrievalServer
    from mem1.tasks.dependencies import Dependence

AnyWeb = TypeVar("AnyWeb", bound="Web")
SIZES = (1, 2, 4, 8, 16)
"""Numbers of objectives that are evaluated where none are asked for."""
FROM_FILE = "file"
"""The composition of files that hold composed tasks."""


def task_config(
    task: str,
    questions: Path | None,
    corpus: Path | None,
    retriever: Sequence[str] | None,
    *,
    worlds: int,
    prompt: str | None = None,
    top_k: int | None = None,
    composition: str = "independent",
    depth: int | None = None,
    decompose: bool = False,
    web: Mapping[str, Any] | None = None,
    shop: Mapping[str, Any] | None = None,
) -> AtlasTasks | MultihopTasks | ClozeTasks | WebTasks | WebShopTasks:
    """What the options of the same names ask for; None: the default of the tasks.

    `worlds` is the number of worlds of Atlas, `web` and `shop` what `web_options` and `shop_options` made of
    theirs. Raises UserError where the options do not go together.
    """
    from mem1.envs.atlas.tasks import AtlasTasks
    from mem1.envs.search.tasks import MultihopTasks

    given = dict(web or {})
    if given and task != "web":
        raise UserError("the options of the web (--api, --api-url, --mode, --cache, --max-searches) go with --task web")
    if shop and task != "webshop":
        raise UserError("the options of a shop (--catalogue, --goals, --pages) go with --task webshop")
    if task == "webshop":
        if questions or corpus or retriever or top_k or decompose or composition != "independent" or depth:
            raise UserError("--task webshop goes with --catalogue, --goals, --pages and --prompt, and no other source")
        return _shop_tasks({**(shop or {}), **({} if prompt is None else {"prompt": prompt})})
    shown: dict[str, Any] = {} if top_k is None else {"top_k": top_k}
    together = {"composition": _composition(task, composition, depth), "depth": depth}
    if task == "atlas":
        if questions is not None or corpus is not None or retriever or prompt is not None or decompose:
            raise UserError("--questions, --corpus, --retriever, --prompt and --decompose go with --task multihop")
        return AtlasTasks(worlds=worlds, **shown, **together)
    if task not in ("multihop", "cloze", "web"):
        raise UserError(f"unknown task {task!r}; known: atlas, multihop, cloze, web, webshop")
    if decompose and composition == FROM_FILE:
        raise UserError("--decompose goes with files of questions, not with --composition file")
    worded: dict[str, Any] = {} if prompt is None else {"prompt": prompt}
    if task == "cloze":
        if corpus is None or questions is not None or retriever or decompose:
            raise UserError(
                "--task cloze needs --corpus FOLDER (of mem1 data cloze, or documents), and no other source"
            )
        from mem1.envs.cloze.tasks import ClozeTasks

        return ClozeTasks(corpus=str(corpus), **worded, **shown, **together)
    asked = {"decompose": decompose, **worded, **shown, **together}
    if task == "web":
        if questions is None or corpus is not None or retriever:
            raise UserError("--task web needs --questions FILE, and no --corpus or --retriever: it searches the web")
        from mem1.envs.web.tasks import WebTasks

        return web_config(WebTasks, {"questions": str(questions), **given, **asked})
    if questions is None or (corpus is None) == (not retriever):
        raise UserError(
            "--task multihop needs --questions FILE, and --corpus FILE (or the folder of an index) or --retriever URL"
        )
    searched: dict[str, Any] = {"retriever": server(retriever)} if retriever else {"corpus": str(corpus)}
    return MultihopTasks(questions=str(questions), **searched, **asked)


def web_options(
    api: str | None, api_url: str | None, mode: str | None, cache: Path | None, max_searches: int | None
) -> dict[str, Any]:
    """The keys of `Web` that these options give; None: not given."""
    given = {
        "api": api,
        "api_url": api_url,
        "mode": mode,
        "cache": None if cache is None else str(cache),
        "budget": None if max_searches is None else {"searches": max_searches},
    }
    return {key: value for key, value in given.items() if value is not None}


def web_config(kind: type[AnyWeb], given: Mapping[str, Any]) -> AnyWeb:
    """`Web` or `WebTasks` of these keys. Raises UserError where a value is wrong."""
    from mem1.configuration.mistakes import explain

    try:
        return kind(**given)
    except pydantic.ValidationError as error:
        raise UserError(f"the web's options: {explain(error, kind, [])}") from error


def shop_options(catalogue: Path | None, goals: str | None, pages: str | None) -> dict[str, Any]:
    """The keys of `WebShopTasks` that these options give; None: not given."""
    given = {"catalogue": None if catalogue is None else str(catalogue), "goals": goals, "pages": pages}
    return {key: value for key, value in given.items() if value is not None}


def _shop_tasks(given: Mapping[str, Any]) -> WebShopTasks:
    from mem1.configuration.mistakes import explain
    from mem1.envs.webshop.tasks import WebShopTasks

    try:
        return WebShopTasks(**given)
    except pydantic.ValidationError as error:
        raise UserError(f"the shop's options: {explain(error, WebShopTasks, [])}") from error


def server(urls: Sequence[str]) -> RetrievalServer:
    """The retriever at these addresses. Raises UserError where one of them is no address."""
    from mem1.retrieval.client import RetrievalServer

    try:
        return RetrievalServer(urls=tuple(urls))
    except pydantic.ValidationError as error:
        raise UserError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error


def sizes_to_evaluate(asked: str | None, composition: str, depth: int | None) -> tuple[int, ...]:
    """The numbers of objectives that `--objectives` names; without it those of `SIZES` that allow the depth."""
    from mem1.tasks.dependencies import smallest

    if asked is not None:
        return _numbers(asked)
    if composition == FROM_FILE:
        raise UserError("--composition file needs --objectives: how many questions the tasks of the file have")
    fewest = 1 if composition == "independent" else smallest(dependence(composition), depth or 1)
    fitting = tuple(size for size in SIZES if size >= fewest)
    return fitting or (fewest,)


def dependence(composition: str) -> Dependence:
    """The kind of this name. Raises UserError for an unknown one."""
    from mem1.tasks.dependencies import Dependence

    for known in get_args(Dependence):
        if composition == known:
            return known
    raise UserError(f"unknown composition {composition!r}; known: independent, {', '.join(get_args(Dependence))}")


def _composition(task: str, composition: str, depth: int | None) -> Any:
    if composition == FROM_FILE and task not in ("multihop", "web"):
        raise UserError("--composition file goes with --task multihop and --task web")
    if composition not in ("independent", FROM_FILE):
        return dependence(composition)
    if depth is not None:
        raise UserError(f"--depth applies to the compositions chain, shared and comparison, not to {composition}")
    return composition


def _numbers(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UserError(f"--objectives takes whole numbers separated by commas, such as 1,2,4; not {text!r}") from error
    if min(sizes) < 1:
        raise UserError(f"--objectives takes numbers of at least 1, not {min(sizes)}")
    return sizes
