"""`mem1 run`: one agent on one task, turn by turn: your own questions over your passages or the web, or Atlas.

With --mcp or --memory it is a chat agent with tools (mem1.cli.run_agent), else a policy:

turn 2  76 tokens in view; with every turn appended 76
  state   now Q1 Moru Kest
  search  mayor of Moru Kest
  info    [HINT] You have 7 turns left. [/HINT] Moru Kest is a city . ...
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from mem1.cli.live_view import LiveView, shown
from mem1.cli.options import JsonOption, machine, refuse, work_begins
from mem1.cli.recipe_options import QUICKSTART, Chosen, with_recipe
from mem1.errors import UserError
from mem1.interrupts import stopped_while
from mem1.records import Task, Trajectory

if TYPE_CHECKING:
    from mem1.recipe.recipe import Recipe


_FOLLOWED = 8
"""Most questions of a task that is shown without being asked for."""
_NOT_KNOWN = "(not known)"
"""Gold answer of a question of one's own; nothing is scored against it."""


@with_recipe()
def command(
    invocation: typer.Context,
    chosen: Chosen,
    question: Annotated[
        list[str] | None, typer.Option(help="Your own question, in place of the recipe's tasks; repeatable.")
    ] = None,
    mcp: Annotated[
        list[str] | None,
        typer.Option(help="Ask a chat agent with the tools of this MCP server, a command or http address; repeatable."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Memory of a chat agent: full, fold(k), fold(auto), notes, notebook(k), archive(k), ..."),
    ] = None,
    prices: Annotated[
        str | None, typer.Option(help="Price class for a chat agent's report, and for fold(auto) (docs/cost.md).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Let an agent work on one task, and watch it turn by turn.

    Alone: the policy that the latest mem1 quickstart trained in runs/, or the one that it starts from, on eight
    questions about an invented world (Atlas). With keys and no recipe: the shipped policy on such a task, or your
    --question. With --mcp or --memory: a chat agent at a server (docs/memory/agent.md).

    \b
    mem1 run
    mem1 run --objectives 3 memory=full
    mem1 run --question "Who founded Alvex?" --corpus notes --model models/my-model
    mem1 run --question "..." tasks.kind=web tasks.api=serper --base-url http://127.0.0.1:8000/v1 --model qwen
    mem1 run --question "..." --mcp "npx -y my-server" --base-url http://127.0.0.1:8000/v1 --model qwen
    """
    if mcp or memory is not None:
        from mem1.cli.run_agent import run_agent

        run_agent(chosen, question or (), mcp=mcp or (), memory=memory, prices=prices, as_json=as_json)
        return
    refuse(invocation, "prices", because="goes with --mcp or --memory")
    from mem1.cli.progress import stderr
    from mem1.engines.base import Sampling
    from mem1.engines.codec import check_words
    from mem1.engines.out_of_memory import ANSWERING, memory_named
    from mem1.evaluation.agents import open_agent
    from mem1.protocol import vocabulary

    with tempfile.TemporaryDirectory() as folder:
        chosen = chosen if question else _with_a_demonstration(chosen)
        recipe = _recipe(chosen, question or [], Path(folder) / "questions.jsonl")
        tags = vocabulary(recipe.vocabulary)
        source = recipe.tasks.source("evaluation", tags)
        work_begins()
        size = len(question) if question else _size(chosen, recipe.evaluation.objectives)
        (task,) = source.tasks(objectives=size, count=1, seed=recipe.evaluation.seed)
    agent = open_agent(recipe, tags, machine(invocation))
    check_words(agent.codec, [task], tags, whose=agent.name, results=recipe.tasks.results)
    console = stderr() if as_json else Console(highlight=False)
    rollout = agent.rollout(recipe, source, on_turn=LiveView(tags, console))
    for note in (f"policy: {recipe.model.name}", *agent.notes) if recipe.engine.kind == "local" else agent.notes:
        console.print(note, style="dim", markup=False)
    _introduce(task, console)
    sampling = Sampling(temperature=recipe.evaluation.temperature, seed=recipe.evaluation.seed)
    doing = "working on the task"
    with stopped_while(doing), console.status("working"), memory_named(doing, ANSWERING):
        (trajectory,) = rollout([replace(task, id="run") if question else task], sampling=sampling)
    if question:  # without gold answers there is nothing to score
        trajectory = replace(trajectory, reward=None, metrics={})
    if as_json:
        computed = {} if agent.computed is None else agent.computed.record()
        print(json.dumps({**as_record(trajectory), **computed}))
    else:
        _conclude(trajectory, console)


def _with_a_demonstration(chosen: Chosen) -> Chosen:
    """Quickstart's newest run in runs/, else its recipe, where the command line names neither policy nor tasks."""
    if chosen.recipe is not None or any(not setting.startswith("evaluation.") for setting in chosen.settings):
        return chosen
    runs = [path for path in Path("runs").glob("quickstart*/train/config.toml") if (path.parent / "policy").is_dir()]
    if not runs:
        return replace(chosen, recipe=QUICKSTART)
    newest = max(runs, key=lambda path: (path.parent / "policy").stat().st_mtime)
    trained = f"model.path={json.dumps(str(newest.parent / 'policy'))}"
    return replace(chosen, recipe=str(newest), settings=(trained, *chosen.settings))


def _size(chosen: Chosen, evaluated: Sequence[int]) -> int:
    """The number of questions that is asked for, else the largest that is evaluated and can be followed."""
    if chosen.recipe is None or chosen.sets("evaluation.objectives"):
        return evaluated[0]
    return max((size for size in evaluated if size <= _FOLLOWED), default=evaluated[0])


def _recipe(chosen: Chosen, questions: list[str], file: Path) -> Recipe:
    """The recipe; one's own questions become a task in `file`."""
    general = chosen.sets("engine.urls") or chosen.sets("model.path")
    if not questions:
        prompt = "mem1" if chosen.sets("engine.urls") else "plain"
        return chosen.load({"tasks.worlds": "1", "tasks.prompt": prompt, "evaluation.objectives": "[2]"})
    if not all(text.strip() for text in questions):
        raise UserError("a --question is empty; write it out")
    for key in ("tasks.questions", "evaluation.objectives"):
        if chosen.sets(key):
            raise UserError(f"--question gives the questions; leave out {key}")
    if chosen.recipe is None and not any(chosen.sets(key) for key in ("tasks.kind", "tasks.corpus", "tasks.retriever")):
        raise UserError(
            "--question needs something to search: --corpus (passages or an index), tasks.retriever.urls=[...], "
            "tasks.kind=web tasks.api=... for the web, or --mcp for a chat agent with tools"
        )
    asked = [{"id": f"q{i}", "question": text, "answers": [_NOT_KNOWN]} for i, text in enumerate(questions, start=1)]
    file.write_text(json.dumps({"id": "run", "questions": asked}) + "\n", encoding="utf-8")
    given = [f"tasks.questions={json.dumps(str(file))}", "tasks.composition=file"]
    if chosen.recipe is None and not general and not chosen.sets("tasks.prompt"):
        given.append("tasks.prompt=plain")  # the shipped policy knows no instructions
    return replace(chosen, settings=(*chosen.settings, *given)).load()


def _introduce(task: Task, console: Console) -> None:
    for number, question in zip(task.numbers, task.questions, strict=True):
        console.print(Text(f"Q{number} {shown(question.text)}"))
    console.print()


def _conclude(trajectory: Trajectory, console: Console) -> None:
    """How it ended, each answer, and the largest number of tokens in view."""
    record = as_record(trajectory)
    detail = f" ({shown(record['detail'])})" if record["detail"] else ""
    turns = "1 turn" if len(record["turns"]) == 1 else f"{len(record['turns'])} turns"
    console.print(Text(f"\n{record['ended'].replace('_', ' ')}{detail} after {turns}"))
    for answer in record["answers"]:
        verdict = "" if "em" not in answer else f"   {'right' if answer['em'] else 'wrong'}, gold: {answer['gold']}"
        console.print(Text(f"Q{answer['question']} {shown(answer['answer']) or '(no answer)'}{verdict}"))
    console.print(f"peak {record['peak_tokens']:,} tokens; with every turn appended {record['appended_peak_tokens']:,}")


def as_record(trajectory: Trajectory) -> dict[str, Any]:
    """What `--json` prints; scores and gold answers only if the trajectory was scored."""
    from mem1.evaluation.metrics import appended_peak_tokens, appended_tokens, peak_tokens
    from mem1.scoring import split_answers

    assert trajectory.task is not None
    questions, numbers = trajectory.task.questions, trajectory.task.numbers
    answers: list[dict[str, Any]] = [
        {"question": number, "text": question.text, "answer": given}
        for number, question, given in zip(numbers, questions, split_answers(trajectory.answer, numbers), strict=True)
    ]
    for answer, question, em in zip(answers, questions, trajectory.per_objective("em"), strict=False):
        answer |= {"em": em, "gold": " / ".join(question.answers)}
    turns = [
        {
            "state": turn.state,
            "notes": list(turn.notes),
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
