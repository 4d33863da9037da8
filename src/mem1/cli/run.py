"""`mem1 run`: one agent on one task, turn by turn: one's own questions over one's passages or the web, or Atlas."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mem1.cli.devices import DeviceOption, DtypeOption
from mem1.cli.engines import (
    ApiKeyEnv,
    BaseUrl,
    ChatTemplate,
    Endpoint,
    MaxCompletion,
    MaxCost,
    MaxTokensSpent,
    Price,
    TokenizerName,
)
from mem1.cli.options import Fills, refuse, work_begins
from mem1.configuration.numbers import LARGEST_SEED, MOST_OBJECTIVES, MOST_TOKENS, WARMEST
from mem1.contexts import KNOWN
from mem1.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from mem1.envs.base import Environment
    from mem1.protocol import Tags
    from mem1.records import Question, Task, Trajectory
    from mem1.retrieval import Retriever

_NOT_KNOWN = "(not known)"
"""Stands for the gold answers of one's own questions; nothing is scored against it."""
_PASSAGE_WORDS = 100
_TOP_K = 3


def command(
    invocation: typer.Context,
    model: Annotated[
        str, typer.Option(help="Folder of a transformers model, 'shipped', or with --base-url its name there.")
    ] = "shipped",
    task: Annotated[list[str] | None, typer.Option(help="A question; repeatable. Without: a task of Atlas.")] = None,
    corpus: Annotated[Path | None, typer.Option(help="File of passages to search, or an index, with --task.")] = None,
    retriever: Annotated[
        list[str] | None, typer.Option(help="Address of a retriever in place of --corpus; repeatable.")
    ] = None,
    api: Annotated[
        str | None, typer.Option(help="Search the web in place of --corpus: serper, brave, tavily or searxng.")
    ] = None,
    api_url: Annotated[str | None, typer.Option(help="Its base address, such as http://localhost:8080.")] = None,
    mode: Annotated[str | None, typer.Option(help="Of the web: live, replay (the cache alone) or offline.")] = None,
    cache: Annotated[Path | None, typer.Option(help="File of the cache of searches and pages of the web.")] = None,
    max_searches: Annotated[int | None, typer.Option(min=0, help="Requests to the search API at most.")] = None,
    objectives: Annotated[int, typer.Option(min=1, max=MOST_OBJECTIVES, help="Questions of the task of Atlas.")] = 2,
    seed: Annotated[
        int,
        typer.Option(min=0, max=LARGEST_SEED, help="Of the task of Atlas, and of sampling."),
        Fills("mem1.engines.base:Sampling.seed"),
    ] = 0,
    context: Annotated[
        str, typer.Option(help=f"{KNOWN}."), Fills("mem1.training.loop.recipe:TrainConfig.context")
    ] = "constant",
    vocabulary: Annotated[
        str,
        typer.Option(help="Tags: paper, released; with opening pages paper-web, released-web."),
        Fills("mem1.training.loop.recipe:TrainConfig.vocabulary"),
    ] = "paper",
    prompt: Annotated[
        str | None, typer.Option(help="plain (without: for Atlas and 'shipped') or mem1, which has instructions.")
    ] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Without: 3 a question and 3 more.")] = None,
    max_completion: MaxCompletion = None,
    max_context: Annotated[
        int,
        typer.Option(min=1, max=MOST_TOKENS, help="Largest context plus completion, in tokens."),
        Fills("mem1.rollout:Budget.context"),
    ] = 4096,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="Passages shown a search, with --task; 3, of the web 10.")
    ] = None,
    temperature: Annotated[
        float,
        typer.Option(min=0, max=WARMEST, help="0: greedy."),
        Fills("mem1.training.loop.recipe:Evaluation.temperature"),
    ] = 0.0,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    base_url: BaseUrl = None,
    endpoint: Endpoint = None,
    tokenizer: TokenizerName = None,
    chat_template: ChatTemplate = False,
    api_key_env: ApiKeyEnv = None,
    max_tokens_spent: MaxTokensSpent = None,
    max_cost: MaxCost = None,
    price: Price = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print turns and answer as one JSON object.")] = False,
) -> None:
    """Let an agent work on a task, and watch it turn by turn."""
    from rich.console import Console

    from mem1.cli.devices import chosen, nothing_here
    from mem1.cli.display import stderr
    from mem1.cli.engines import budget_of, open_agent, served
    from mem1.cli.sources import web_options
    from mem1.cli.watching import Watched
    from mem1.contexts import context_policy
    from mem1.engines.base import Sampling
    from mem1.engines.codec import check_words
    from mem1.envs.web.tasks import web_prompt
    from mem1.protocol import vocabulary as tags_called
    from mem1.rollout import Rollout
    from mem1.tasks.prompts import render
    from mem1.training.weights.policy import SHIPPED

    if task:
        refuse(invocation, "objectives", because="each --task is a question, so their number is known; leave it out")
    else:
        refuse(invocation, "top_k", because="is for questions of your own, with --task; leave it out")
    web = web_options(api, api_url, mode, cache, max_searches)
    if not task and (corpus is not None or retriever or web):
        raise UserError(
            '--corpus, --retriever and --api need questions to search them for: --task "..." once or several times'
        )
    on_server = served(
        base_url,
        model,
        endpoint=endpoint,
        tokenizer=tokenizer,
        api_key_env=api_key_env,
        max_tokens_spent=max_tokens_spent,
        max_cost=max_cost,
        price=price,
    )
    tags, keeps = tags_called(vocabulary), context_policy(context)
    work_begins()
    drawn, environment = _own(task, corpus, retriever, web, top_k) if task else _atlas(objectives, seed, tags)
    general = on_server is not None or (bool(task) and model != SHIPPED)
    template = prompt or ((web_prompt(tags) if web else "mem1") if general else "plain")
    drawn = replace(drawn, prompt=render(template, drawn.questions, tags), turn_limit=max_turns or drawn.turn_limit)
    budget = budget_of(model, on_server=on_server is not None, max_completion=max_completion, max_context=max_context)
    on = None if on_server is not None else chosen(invocation, device)
    if on is None:
        nothing_here(device, dtype)
    agent = open_agent(model, tags, on_server=on_server, chat_template=chat_template, device=on, dtype=dtype)
    check_words(agent.codec, [drawn], tags, whose=model if tokenizer is None else tokenizer)
    console = stderr() if as_json else Console(highlight=False)
    watched = Watched(agent.engine, environment, agent.codec, tags, console)
    rollout = Rollout(
        engine=watched,
        codec=agent.codec,
        environment=watched,
        context=keeps,
        tags=tags,
        budget=budget,
        frame=agent.frame,
    )
    for note in agent.notes:
        console.print(note, style="dim", markup=False)
    _introduce(drawn.questions, console)
    (trajectory,) = rollout([drawn], sampling=Sampling(temperature=temperature, seed=seed))
    if task:  # without gold answers there is nothing to score
        trajectory = replace(trajectory, reward=None, metrics={})
    if as_json:
        computed = {} if agent.computed is None else agent.computed.record()
        print(json.dumps({**as_record(trajectory), **computed}))
    else:
        _conclude(trajectory, console)


def _own(
    texts: list[str],
    corpus: Path | None,
    retriever: list[str] | None,
    web: dict[str, Any],
    top_k: int | None,
) -> tuple[Task, Environment]:
    """One's own questions over one's own passages or the web; the prompt is still to be written."""
    from mem1.envs.web.tasks import WEB
    from mem1.records import Question, Task
    from mem1.tasks.compose import TurnLimit

    if not all(text.strip() for text in texts):
        raise UserError("a --task is empty; give each a question")
    questions = tuple(Question(id=f"q{i}", text=t, answers=(_NOT_KNOWN,)) for i, t in enumerate(texts, start=1))
    if web and (corpus is not None or retriever):
        raise UserError("--api searches the web; it goes without --corpus and --retriever")
    name, environment = (WEB, _web(web, top_k)) if web else _over_passages(corpus, retriever, top_k or _TOP_K)
    limit = TurnLimit().turns(len(questions))
    return Task(id="run", questions=questions, prompt="", turn_limit=limit, corpus=name), environment


def _web(given: dict[str, Any], top_k: int | None) -> Environment:
    from mem1.cli.sources import web_config
    from mem1.envs.web.tasks import Web

    return web_config(Web, given if top_k is None else {**given, "top_k": top_k}).make_environment()


def _over_passages(corpus: Path | None, retriever: list[str] | None, top_k: int) -> tuple[str, Environment]:
    """The collection's name and what answers searches of it."""
    from mem1.envs.search.env import QAEnvironment

    name, searched = _passages(corpus, retriever)
    return name, QAEnvironment({name: searched}, top_k=top_k, passage_words=_PASSAGE_WORDS)


def _passages(corpus: Path | None, retriever: list[str] | None) -> tuple[str, Retriever]:
    """The collection's name and its search engine."""
    from mem1.cli.sources import server
    from mem1.retrieval.client import HttpRetriever
    from mem1.retrieval.open_index import open_retriever

    if retriever and corpus is None:
        return retriever[0], HttpRetriever.open(server(retriever))
    if corpus is not None and not retriever:
        return corpus.name, open_retriever(corpus)
    raise UserError(
        "--task needs --corpus FILE, passages to search (one object with id, title and text a line) or an index; "
        "--retriever URL; or --api NAME, the web"
    )


def _atlas(objectives: int, seed: int, tags: Tags) -> tuple[Task, Environment]:
    """A task of an evaluation world."""
    from mem1.envs.atlas.tasks import AtlasTasks

    source = AtlasTasks(worlds=1).source("evaluation", tags)
    (task,) = source.tasks(objectives=objectives, count=1, seed=seed)
    return task, source.environment


def _introduce(questions: tuple[Question, ...], console: Console) -> None:
    from rich.text import Text

    from mem1.cli.watching import shown

    for number, question in enumerate(questions, start=1):
        console.print(Text(f"Q{number} {shown(question.text)}"))
    console.print()


def _conclude(trajectory: Trajectory, console: Console) -> None:
    """How it ended, each answer, and what was in view at most."""
    from rich.text import Text

    from mem1.cli.watching import shown

    record = as_record(trajectory)
    detail = f" ({shown(record['detail'])})" if record["detail"] else ""
    turns = "1 turn" if len(record["turns"]) == 1 else f"{len(record['turns'])} turns"
    console.print(Text(f"\n{record['ended'].replace('_', ' ')}{detail} after {turns}"))
    for answer in record["answers"]:
        verdict = "" if "em" not in answer else f"   {'right' if answer['em'] else 'wrong'}, gold: {answer['gold']}"
        console.print(Text(f"Q{answer['question']} {shown(answer['answer']) or '(no answer)'}{verdict}"))
    console.print(f"peak {record['peak_tokens']:,} tokens; with every turn appended {record['appended_peak_tokens']:,}")


def as_record(trajectory: Trajectory) -> dict[str, Any]:
    """What `--json` prints; scores and gold answers only where the trajectory was scored."""
    from mem1.evaluation.metrics import appended_peak_tokens, appended_tokens, peak_tokens
    from mem1.scoring import split_answers

    assert trajectory.task is not None
    questions = trajectory.task.questions
    answers: list[dict[str, Any]] = [
        {"question": i, "text": q.text, "answer": given}
        for i, (q, given) in enumerate(
            zip(questions, split_answers(trajectory.answer, len(questions)), strict=True), start=1
        )
    ]
    for answer, question, em in zip(answers, questions, trajectory.per_objective("em"), strict=False):
        answer |= {"em": em, "gold": " / ".join(question.answers)}
    turns = [
        {
            "state": turn.state,
            "action": turn.action,
            "content": turn.content,
            "observation": turn.observation,
            "tokens": turn.num_tokens,
            "appended_tokens": appended,
        }
        for turn, appended in zip(trajectory.turns, appended_tokens(trajectory), strict=True)
    ]
    return {
        "context": trajectory.context,
        "ended": str(trajectory.ended),
        "detail": trajectory.detail,
        "answers": answers,
        "turns": turns,
        "peak_tokens": peak_tokens(trajectory),
        "appended_peak_tokens": appended_peak_tokens(trajectory),
    }
