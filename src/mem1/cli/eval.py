"""`mem1 eval`: a policy on tasks of several sizes: Atlas, questions and passages in files, the web, or a shop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mem1.cli.engines import (
    ApiKeyEnv,
    BaseUrl,
    ChatTemplate,
    Concurrency,
    Endpoint,
    MaxCost,
    MaxTokensSpent,
    Price,
    TokenizerName,
)
from mem1.cli.recipes import Recipe, Settings
from mem1.contexts import KNOWN

if TYPE_CHECKING:
    from mem1.cli.engines import Agent
    from mem1.protocol import Tags


def command(
    invocation: typer.Context,
    model: Annotated[
        str,
        typer.Option(
            help="Folder of a transformers model, 'shipped', 'shipped-shop', or with --base-url its name there."
        ),
    ] = "shipped",
    recipe: Recipe = None,
    settings: Settings = None,
    task: Annotated[
        str,
        typer.Option(
            help="atlas; multihop: --questions over --corpus or --retriever; web: --questions on the web; webshop."
        ),
    ] = "atlas",
    questions: Annotated[Path | None, typer.Option(help="File of questions (multihop, web).")] = None,
    corpus: Annotated[Path | None, typer.Option(help="File of passages, or an index (multihop).")] = None,
    retriever: Annotated[
        list[str] | None, typer.Option(help="Address of a retriever in place of --corpus; repeatable (multihop).")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="mem1 (instructions), web (with opening pages), shop, plain or released.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="Passages shown a search; 3, in Atlas 2, of the web 10.")
    ] = None,
    api: Annotated[str | None, typer.Option(help="Search API (web): serper, brave, tavily or searxng.")] = None,
    api_url: Annotated[str | None, typer.Option(help="Its base address (web), such as http://localhost:8080.")] = None,
    mode: Annotated[str | None, typer.Option(help="live, replay (the cache alone) or offline (web).")] = None,
    cache: Annotated[Path | None, typer.Option(help="File of the cache of searches and pages (web).")] = None,
    max_searches: Annotated[int | None, typer.Option(min=0, help="Requests to the search API at most (web).")] = None,
    catalogue: Annotated[
        Path | None,
        typer.Option(help="What mem1 webshop load wrote, or the original's files; else invented (webshop)."),
    ] = None,
    goals: Annotated[str | None, typer.Option(help="synthetic or human (webshop).")] = None,
    pages: Annotated[str | None, typer.Option(help="text, text_rich, html, or short (webshop).")] = None,
    objectives: Annotated[
        str | None,
        typer.Option(
            help="Numbers of objectives, separated by commas. Without: those of 1,2,4,8,16 that --depth allows."
        ),
    ] = None,
    composition: Annotated[
        str, typer.Option(help="independent, chain, shared or comparison; file: --questions holds composed tasks.")
    ] = "independent",
    depth: Annotated[int | None, typer.Option(min=1, help="Longest chain of references in a task; 1.")] = None,
    decompose: Annotated[bool, typer.Option(help="Single hops in place of questions (2Wiki, MuSiQue).")] = False,
    tasks: Annotated[int, typer.Option("--limit", min=1, help="Tasks for each number of objectives.")] = 100,
    context: Annotated[str, typer.Option(help=f"{KNOWN}.")] = "constant",
    vocabulary: Annotated[
        str, typer.Option(help="Tags: paper, released; with -web they can open pages, with -shop they are for a shop.")
    ] = "paper",
    temperature: Annotated[float, typer.Option(min=0.0, help="0: greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the tasks and of sampling.")] = 0,
    max_context: Annotated[int, typer.Option(help="Largest context plus completion, in tokens.")] = 4096,
    max_completion: Annotated[int, typer.Option(help="Tokens of a completion, besides 8 an objective.")] = 32,
    workers: Annotated[int, typer.Option(min=1, help="Processes that sample, for a small model on a CPU.")] = 1,
    base_url: BaseUrl = None,
    endpoint: Endpoint = None,
    tokenizer: TokenizerName = None,
    chat_template: ChatTemplate = False,
    api_key_env: ApiKeyEnv = None,
    concurrency: Concurrency = None,
    max_tokens_spent: MaxTokensSpent = None,
    max_cost: MaxCost = None,
    price: Price = None,
    script: Annotated[
        str | None,
        typer.Option(help="No model: search the first question itself, then answer this text (tokens of --model)."),
    ] = None,
    judge_url: Annotated[
        str | None, typer.Option(help="Chat server that also judges the answers; its key is in MEM1_JUDGE_API_KEY.")
    ] = None,
    judge_model: Annotated[str | None, typer.Option(help="Model that judges, as the server calls it.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the trajectories; sizes done there are not run again.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Evaluate a policy: exact match with interval, F1, turns, peak tokens, by number of objectives."""
    from mem1.cli.display import EvaluationBar, bars, stderr
    from mem1.cli.engines import open_agent, served
    from mem1.cli.pipeline import show
    from mem1.cli.recipes import evaluation_recipe
    from mem1.cli.sources import shop_options, sizes_to_evaluate, task_config, web_options
    from mem1.contexts import context_policy
    from mem1.evaluation.judging import judge_rows, open_judge
    from mem1.evaluation.runner import evaluate
    from mem1.evaluation.shapes import folder_shape
    from mem1.protocol import vocabulary as tags_called
    from mem1.rollout import Budget, Rollout
    from mem1.training.config import Evaluation, TrainConfig
    from mem1.training.policy import policy_folder

    judge = open_judge(judge_url, judge_model, folder=out)
    if recipe is not None:
        config = evaluation_recipe(invocation, recipe, settings or [])
        model = config.model.path if config.model.path is not None and model == "shipped" else model
    else:
        config = TrainConfig(
            vocabulary=tags_called(vocabulary).name,  # type: ignore[arg-type]
            context=context,
            tasks=task_config(
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
            ),
            budget=Budget(context=max_context, completion_extra=max_completion),
            evaluation=Evaluation(
                objectives=sizes_to_evaluate(objectives, composition, depth),
                tasks=tasks,
                temperature=temperature,
                seed=seed,
            ),
        )
    tags = tags_called(config.vocabulary)
    on_server = served(
        base_url,
        model,
        endpoint=endpoint,
        tokenizer=tokenizer,
        api_key_env=api_key_env,
        concurrency=concurrency,
        max_tokens_spent=max_tokens_spent,
        max_cost=max_cost,
        price=price,
    )
    source = config.tasks.source("evaluation", tags)
    if script is not None:
        agent = _scripted(model, script, tags)
    else:
        agent = open_agent(model, tags, on_server=on_server, chat_template=chat_template, workers=workers)
    rollout = Rollout(
        engine=agent.engine,
        codec=agent.codec,
        environment=source.environment,
        context=context_policy(config.context),
        tags=tags,
        budget=config.budget,
        frame=agent.frame,
    )
    for note in agent.notes:
        stderr().print(note, markup=False)
    with bars(stderr()) as progress:
        rows, trajectories = evaluate(
            rollout,
            source,
            config.evaluation,
            policy=agent.name,
            folder=out,
            on_round=EvaluationBar(progress, agent.name),
            shape=None if script is not None or on_server is not None else folder_shape(policy_folder(model)),
        )
    if judge is not None:
        rows = judge_rows(rows, trajectories, judge)
    show([row.as_dict() for row in rows], as_json=as_json)


def _scripted(model: str, script: str, tags: Tags) -> Agent:
    """No model: the first question itself is searched, and `script` is the answer."""
    from mem1.cli.engines import Agent
    from mem1.engines.chat_frame import ChatFrame
    from mem1.engines.codec import Codec
    from mem1.engines.scripted import ScriptedEngine, search_then_answer
    from mem1.errors import UserError
    from mem1.protocol import SEARCH
    from mem1.training.policy import policy_folder

    if SEARCH not in tags.action_tags:
        raise UserError(f"--script searches, which the vocabulary {tags.name!r} has no action for")
    codec = Codec.load(policy_folder(model))
    engine = ScriptedEngine(codec, search_then_answer(script, state=tags.state, search=tags.action_tags[SEARCH]))
    return Agent(engine=engine, codec=codec, frame=ChatFrame(), name="scripted")
