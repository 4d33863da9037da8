"""`mem1 eval`: a policy on tasks of several sizes: Atlas, questions and passages in files, the web, or a shop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mem1.cli.devices import DeviceOption, DtypeOption
from mem1.cli.engines import (
    ApiKeyEnv,
    BaseUrl,
    ChatTemplate,
    Concurrency,
    Endpoint,
    MaxCompletion,
    MaxCost,
    MaxTokensSpent,
    Price,
    TokenizerName,
)
from mem1.cli.options import Fills, is_given, refuse, work_begins
from mem1.cli.recipes import Recipe, Settings
from mem1.configuration.numbers import LARGEST_SEED, MOST_OBJECTIVES, MOST_TASKS, MOST_TOKENS, MOST_WORKERS, WARMEST
from mem1.contexts import KNOWN

if TYPE_CHECKING:
    from mem1.cli.engines import Agent
    from mem1.protocol import Tags

_MODEL, _AGENT, _TASKS, _WEB, _SHOP, _OUTPUT = "Model", "Agent", "Tasks", "Web", "Shop", "Output"
"""Panels of the help."""


def command(
    invocation: typer.Context,
    model: Annotated[
        str,
        typer.Option(
            help="Folder of a transformers model, 'shipped', 'shipped-shop', or with --base-url its name there.",
            rich_help_panel=_MODEL,
        ),
    ] = "shipped",
    temperature: Annotated[
        float,
        typer.Option(min=0, max=WARMEST, help="0: greedy.", rich_help_panel=_MODEL),
        Fills("mem1.training.loop.recipe:Evaluation.temperature"),
    ] = 0.0,
    workers: Annotated[
        int,
        typer.Option(
            min=1, max=MOST_WORKERS, help="Processes that sample, for a small model on a CPU.", rich_help_panel=_MODEL
        ),
        Fills("mem1.training.loop.recipe:TrainConfig.workers"),
    ] = 1,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    script: Annotated[
        str | None,
        typer.Option(
            help="No model: search the first question, then answer this text (tokens of --tokenizer or --model).",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    recipe: Recipe = None,
    settings: Settings = None,
    base_url: BaseUrl = None,
    endpoint: Endpoint = None,
    tokenizer: TokenizerName = None,
    chat_template: ChatTemplate = False,
    api_key_env: ApiKeyEnv = None,
    concurrency: Concurrency = None,
    max_tokens_spent: MaxTokensSpent = None,
    max_cost: MaxCost = None,
    price: Price = None,
    context: Annotated[
        str,
        typer.Option(help=f"{KNOWN}.", rich_help_panel=_AGENT),
        Fills("mem1.training.loop.recipe:TrainConfig.context"),
    ] = "constant",
    vocabulary: Annotated[
        str,
        typer.Option(
            help="Tags: paper, released; with -web they can open pages, with -shop they are for a shop.",
            rich_help_panel=_AGENT,
        ),
        Fills("mem1.training.loop.recipe:TrainConfig.vocabulary"),
    ] = "paper",
    prompt: Annotated[
        str | None,
        typer.Option(
            help="mem1 (instructions), web (with opening pages), shop, plain, cloze or released.",
            rich_help_panel=_AGENT,
        ),
    ] = None,
    max_context: Annotated[
        int,
        typer.Option(
            min=1, max=MOST_TOKENS, help="Largest context plus completion, in tokens.", rich_help_panel=_AGENT
        ),
        Fills("mem1.rollout:Budget.context"),
    ] = 4096,
    max_completion: MaxCompletion = None,
    task: Annotated[
        str,
        typer.Option(
            help="atlas; multihop: --questions over --corpus or --retriever; cloze: blanked facts of --corpus; "
            "web: --questions on the web; webshop.",
            rich_help_panel=_TASKS,
        ),
    ] = "atlas",
    tasks: Annotated[
        int,
        typer.Option(
            "--limit", min=1, max=MOST_TASKS, help="Tasks for each number of objectives.", rich_help_panel=_TASKS
        ),
        Fills("mem1.training.loop.recipe:Evaluation.tasks"),
    ] = 100,
    objectives: Annotated[
        str | None,
        typer.Option(
            help="Numbers of objectives, separated by commas. Without: those of 1,2,4,8,16 that --depth allows.",
            rich_help_panel=_TASKS,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(min=0, max=LARGEST_SEED, help="Seed of the tasks and of sampling.", rich_help_panel=_TASKS),
        Fills("mem1.training.loop.recipe:Evaluation.seed"),
    ] = 0,
    composition: Annotated[
        str,
        typer.Option(
            help="independent, chain, shared or comparison; file: --questions holds composed tasks.",
            rich_help_panel=_TASKS,
        ),
        Fills("mem1.envs.search.tasks:QuestionFiles.composition"),
    ] = "independent",
    depth: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_OBJECTIVES, help="Longest chain of references in a task; 1.", rich_help_panel=_TASKS
        ),
    ] = None,
    questions: Annotated[
        Path | None, typer.Option(help="File of questions (multihop, web).", rich_help_panel=_TASKS)
    ] = None,
    decompose: Annotated[
        bool,
        typer.Option(help="Single hops in place of questions (2Wiki, MuSiQue).", rich_help_panel=_TASKS),
    ] = False,
    corpus: Annotated[
        Path | None,
        typer.Option(help="File of passages, or an index (multihop); documents too (cloze).", rich_help_panel=_TASKS),
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
    judge_url: Annotated[
        str | None,
        typer.Option(
            help="Chat server that also judges the answers; its key is in MEM1_JUDGE_API_KEY.", rich_help_panel=_OUTPUT
        ),
    ] = None,
    judge_model: Annotated[
        str | None, typer.Option(help="Model that judges, as the server calls it.", rich_help_panel=_OUTPUT)
    ] = None,
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
    from mem1.cli.devices import chosen, nothing_here
    from mem1.cli.display import EvaluationBar, JudgeBar, bars, stderr
    from mem1.cli.engines import budget_of, open_agent, prices, served
    from mem1.cli.pipeline import say_fewer, show
    from mem1.cli.recipes import evaluation_recipe
    from mem1.cli.sources import shop_options, sizes_to_evaluate, task_config, web_options
    from mem1.contexts import context_policy
    from mem1.engines.codec import SAMPLE, check_words
    from mem1.evaluation.flops import folder_shape
    from mem1.evaluation.judge import judge_rows, open_judge
    from mem1.evaluation.runner import Chunking, evaluate
    from mem1.evaluation.store import made_with
    from mem1.protocol import vocabulary as tags_called
    from mem1.rollout import Rollout
    from mem1.training.loop.recipe import Evaluation, TrainConfig
    from mem1.training.weights.policy import policy_folder

    _refuse_what_has_no_effect(invocation, recipe=recipe, script=script, base_url=base_url)
    judge = open_judge(judge_url, judge_model, folder=out)
    if recipe is not None:
        config = evaluation_recipe(invocation, recipe, settings or [])
        model = config.model.path if config.model.path is not None and not is_given(invocation, "model") else model
        chat_template = chat_template or config.model.chat_template
    else:
        config = TrainConfig(
            vocabulary=tags_called(vocabulary).name,
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
            budget=budget_of(model, on_server=bool(base_url), max_completion=max_completion, max_context=max_context),
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
        tokenizer=None if script is not None else tokenizer,
        api_key_env=api_key_env,
        concurrency=None if script is not None else concurrency,
        max_tokens_spent=max_tokens_spent,
        max_cost=max_cost,
        price=price,
    )
    source = config.tasks.source("evaluation", tags)
    if script is not None or on_server is not None:
        nothing_here(device, dtype)
    work_begins()
    if script is not None:
        agent = _scripted(tokenizer or model, script, tags, concurrency, chat_template=chat_template)
    else:
        on = None if on_server is not None else chosen(invocation, device or config.model.device)
        agent = open_agent(
            model,
            tags,
            on_server=on_server,
            chat_template=chat_template,
            workers=workers,
            device=on,
            dtype=dtype or config.model.dtype,
        )
    asked = config.evaluation
    sample = source.tasks(objectives=min(asked.objectives), count=min(SAMPLE, asked.tasks), seed=asked.seed)
    check_words(agent.codec, sample, tags, whose=model if tokenizer is None else tokenizer)
    computed = agent.computed
    rollout = Rollout(
        engine=agent.engine,
        codec=agent.codec,
        environment=config.tasks.around(source.environment),
        context=context_policy(config.context),
        tags=tags,
        budget=config.budget,
        frame=agent.frame,
        reward=config.tasks.reward_function,
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
            settings=None if out is None else made_with(agent.identity, config.tasks, computed and computed.record()),
            chunking=Chunking() if agent.at_a_time is None else Chunking(tasks=1, at_a_time=agent.at_a_time),
            on_progress=EvaluationBar(progress, agent.name, prices(price)),
            shape=None if script is not None or on_server is not None else folder_shape(policy_folder(model)),
        )
    if judge is not None:
        with bars(stderr()) as progress:
            rows = judge_rows(rows, trajectories, judge, folder=out, on_progress=JudgeBar(progress))
    say_fewer(rows, config.evaluation.tasks)
    show(rows, as_json=as_json, computed=computed)


def _refuse_what_has_no_effect(
    invocation: typer.Context, *, recipe: str | None, script: str | None, base_url: list[str] | None
) -> None:
    if recipe is None:
        refuse(invocation, "settings", because="changes keys of a recipe; give the recipe too, by --recipe")
    if script is not None:
        refuse(
            invocation,
            *("temperature", "workers", "base_url", "chat_template"),
            because="a --script takes the place of the model; leave out one or the other",
        )
    if base_url:
        refuse(
            invocation, "workers", because="the server of --base-url samples; say by --concurrency how much at a time"
        )


def _scripted(tokenizer: str, script: str, tags: Tags, at_a_time: int | None, *, chat_template: bool) -> Agent:
    """No model: the first question itself is searched, and `script` is the answer."""
    from mem1.cli.engines import Agent, tokenizer_folder
    from mem1.engines.chat_template import ChatTemplate
    from mem1.engines.codec import Codec
    from mem1.engines.scripted import ScriptedEngine, search_then_answer
    from mem1.errors import UserError
    from mem1.protocol import SEARCH

    if SEARCH not in tags.action_tags:
        raise UserError(f"--script searches, which the vocabulary {tags.name!r} has no action for")
    folder = tokenizer_folder(tokenizer)
    codec = Codec.load(folder)
    frame = ChatTemplate.load(folder, codec) if chat_template else ChatTemplate()
    follows = search_then_answer(script, state=tags.state, search=tags.action_tags[SEARCH])
    return Agent(
        engine=ScriptedEngine(codec, follows, frame),
        codec=codec,
        frame=frame,
        name="scripted",
        identity=f"script {script!r} in tokens of {codec.fingerprint()}",
        at_a_time=at_a_time,
    )
