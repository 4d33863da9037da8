"""`mem1 eval`: a policy on tasks of several sizes: Atlas, questions and passages in files, the web, or a shop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mem1.engines.base import Engine
    from mem1.protocol import Tags
    from mem1.training.policy import Policy

_MODEL, _AGENT, _TASKS, _WEB, _SHOP, _OUTPUT = "Model", "Agent", "Tasks", "Web", "Shop", "Output"
"""Panels of the help."""


def command(
    model: Annotated[
        str,
        typer.Option(help="Folder of a transformers model, 'shipped' or 'shipped-shop'.", rich_help_panel=_MODEL),
    ] = "shipped",
    temperature: Annotated[float, typer.Option(min=0.0, help="0: greedy.", rich_help_panel=_MODEL)] = 0.0,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that sample, for a small model on a CPU.", rich_help_panel=_MODEL)
    ] = 1,
    script: Annotated[
        str | None,
        typer.Option(
            help="No model: search the first question itself, then answer this text (tokens of --model).",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tasks in work at a time, each by itself, where no model is in this process.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    price_in: Annotated[
        float | None,
        typer.Option(min=0.0, help="Dollars a million context tokens, to show the cost.", rich_help_panel=_MODEL),
    ] = None,
    price_out: Annotated[
        float | None, typer.Option(min=0.0, help="Dollars a million sampled tokens.", rich_help_panel=_MODEL)
    ] = None,
    context: Annotated[
        str, typer.Option(help="constant, fold(k), full or window(k).", rich_help_panel=_AGENT)
    ] = "constant",
    vocabulary: Annotated[
        str,
        typer.Option(
            help="Tags: paper, released; with -web they can open pages, with -shop they are for a shop.",
            rich_help_panel=_AGENT,
        ),
    ] = "paper",
    prompt: Annotated[
        str | None,
        typer.Option(
            help="mem1 (instructions), web (with opening pages), shop, plain or released.", rich_help_panel=_AGENT
        ),
    ] = None,
    max_context: Annotated[
        int, typer.Option(help="Largest context plus completion, in tokens.", rich_help_panel=_AGENT)
    ] = 4096,
    max_completion: Annotated[
        int, typer.Option(help="Tokens of a completion, besides 8 an objective.", rich_help_panel=_AGENT)
    ] = 32,
    task: Annotated[
        str,
        typer.Option(
            help="atlas; multihop: --questions over --corpus or --retriever; web: --questions on the web; webshop.",
            rich_help_panel=_TASKS,
        ),
    ] = "atlas",
    tasks: Annotated[
        int, typer.Option("--limit", min=1, help="Tasks for each number of objectives.", rich_help_panel=_TASKS)
    ] = 100,
    objectives: Annotated[
        str | None,
        typer.Option(
            help="Numbers of objectives, separated by commas. Without: those of 1,2,4,8,16 that --depth allows.",
            rich_help_panel=_TASKS,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the tasks and of sampling.", rich_help_panel=_TASKS)] = 0,
    composition: Annotated[
        str,
        typer.Option(
            help="independent, chain, shared or comparison; file: --questions holds composed tasks.",
            rich_help_panel=_TASKS,
        ),
    ] = "independent",
    depth: Annotated[
        int | None,
        typer.Option(min=1, help="Longest chain of references in a task; 1.", rich_help_panel=_TASKS),
    ] = None,
    questions: Annotated[
        Path | None, typer.Option(help="File of questions (multihop, web).", rich_help_panel=_TASKS)
    ] = None,
    decompose: Annotated[
        bool,
        typer.Option(help="Single hops in place of questions (2Wiki, MuSiQue).", rich_help_panel=_TASKS),
    ] = False,
    corpus: Annotated[
        Path | None, typer.Option(help="File of passages, or an index (multihop).", rich_help_panel=_TASKS)
    ] = None,
    retriever: Annotated[
        list[str] | None,
        typer.Option(
            help="Address of a retriever in place of --corpus; repeatable (multihop).", rich_help_panel=_TASKS
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(min=1, help="Passages shown a search; 3, in Atlas 2, of the web 10.", rich_help_panel=_TASKS),
    ] = None,
    api: Annotated[
        str | None, typer.Option(help="Search API: serper, brave, tavily or searxng.", rich_help_panel=_WEB)
    ] = None,
    api_url: Annotated[
        str | None, typer.Option(help="Its base address, such as http://localhost:8080.", rich_help_panel=_WEB)
    ] = None,
    mode: Annotated[
        str | None, typer.Option(help="live, replay (the cache alone) or offline.", rich_help_panel=_WEB)
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="File of the cache of searches and pages.", rich_help_panel=_WEB)
    ] = None,
    max_searches: Annotated[
        int | None, typer.Option(min=0, help="Requests to the search API at most.", rich_help_panel=_WEB)
    ] = None,
    catalogue: Annotated[
        Path | None,
        typer.Option(
            help="What mem1 webshop load wrote, or the original's files; else invented.", rich_help_panel=_SHOP
        ),
    ] = None,
    goals: Annotated[str | None, typer.Option(help="synthetic or human.", rich_help_panel=_SHOP)] = None,
    pages: Annotated[str | None, typer.Option(help="text, text_rich, html, or short.", rich_help_panel=_SHOP)] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the trajectories, saved as they are made; the same command goes on with what is missing.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object.", rich_help_panel=_OUTPUT)
    ] = False,
) -> None:
    """Evaluate a policy: exact match with interval, F1, turns, peak tokens, by number of objectives.

    With --out, the same command goes on after a Ctrl-C or a kill, and ends with the result of an unbroken run.
    """
    from mem1.cli.display import EvaluationBar, Prices, bars, stderr
    from mem1.cli.pipeline import show
    from mem1.cli.sources import shop_options, sizes_to_evaluate, task_config, web_options
    from mem1.contexts import context_policy
    from mem1.errors import UserError
    from mem1.evaluation.chunks import Chunking
    from mem1.evaluation.header import made_with
    from mem1.evaluation.runner import evaluate
    from mem1.protocol import vocabulary as tags_called
    from mem1.rollout import Budget, Rollout
    from mem1.training.config import Evaluation
    from mem1.training.policy import load_policy

    if concurrency is not None and script is None:
        raise UserError("--concurrency is for a model on a server or a --script; a model here takes tasks in batches")
    tags = tags_called(vocabulary)
    tasks_asked = task_config(
        task,
        questions,
        corpus,
        retriever,
        worlds=16,
        prompt=prompt,
        top_k=top_k,
        composition=composition,
        depth=depth,
        decompose=decompose,
        web=web_options(api, api_url, mode, cache, max_searches),
        shop=shop_options(catalogue, goals, pages),
    )
    source = tasks_asked.source("evaluation", tags)
    sizes = sizes_to_evaluate(objectives, composition, depth)
    policy = load_policy(model)
    rollout = Rollout(
        engine=_engine(policy, script, tags, workers),
        codec=policy.codec,
        environment=source.environment,
        context=context_policy(context),
        tags=tags,
        budget=Budget(context=max_context, completion_extra=max_completion),
    )
    name = "scripted" if script is not None else Path(model).name
    priced = price_in is not None or price_out is not None
    with bars(stderr()) as progress:
        rows, _ = evaluate(
            rollout,
            source,
            Evaluation(objectives=sizes, tasks=tasks, temperature=temperature, seed=seed),
            policy=name,
            folder=out,
            settings=None if out is None else made_with(_identity(policy, script), tasks_asked),
            chunking=Chunking() if concurrency is None else Chunking(tasks=1, at_a_time=concurrency),
            on_progress=EvaluationBar(progress, name, Prices(price_in or 0.0, price_out or 0.0) if priced else None),
        )
    show([row.as_dict() for row in rows], as_json=as_json)


def _engine(policy: Policy, script: str | None, tags: Tags, workers: int) -> Engine:
    from mem1.engines.scripted import ScriptedEngine, search_then_answer
    from mem1.engines.workers import local_engine
    from mem1.errors import UserError
    from mem1.protocol import SEARCH

    if script is None:
        return local_engine(policy.model, policy.codec, tags.stop_strings, workers=workers)
    if SEARCH not in tags.action_tags:
        raise UserError(f"--script searches, which the vocabulary {tags.name!r} has no action for")
    search = tags.action_tags[SEARCH]
    return ScriptedEngine(policy.codec, search_then_answer(script, state=tags.state, search=search))


def _identity(policy: Policy, script: str | None) -> str:
    """What tells two policies apart: the model itself, or what the script answers in its tokens."""
    return policy.fingerprint() if script is None else f"script {script!r} in tokens of {policy.fingerprint()}"
