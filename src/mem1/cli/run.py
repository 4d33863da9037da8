"""`mem1 run`: one agent on one task, turn by turn: your own questions over your passages or the web, or Atlas.

A policy works on a task of a recipe:

turn 2  76 tokens in view; with every turn appended 76
  state   now Q1 Moru Kest
  search  mayor of Moru Kest
  info    [HINT] You have 7 turns left. [/HINT] Moru Kest is a city . ...

With --mcp or --memory a chat agent with tools, `mem1.Agent`, works on a question:

turn 2  3,120 tokens in view; with every turn appended 3,120
  search  {"query": "mayor of Oslo"}
  result  Anne Lindboe has been mayor of Oslo since ...
  memory  a state after 9 exchanges: 9,812 tokens become 1,204
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mem1.cli.options import QUICKSTART, Chosen, JsonOption, machine, refuse, with_recipe, work_begins
from mem1.cli.progress import stderr
from mem1.errors import UserError, printable
from mem1.evaluation.tokens import appended_tokens
from mem1.interrupts import stopped_while
from mem1.net.failover import is_http
from mem1.protocol import ANSWER, MALFORMED, NOTE, SUMMARY, Tags
from mem1.records import Task, Trajectory, Turn

if TYPE_CHECKING:
    from mem1.agent import Agent, McpServer
    from mem1.agent.agent import Step
    from mem1.engines.servers import ModelServer
    from mem1.messages import Event
    from mem1.recipe.recipe import Recipe

LONGEST = 600
"""Most characters shown of a text."""
_FOLLOWED = 8
"""Most questions of a task that is shown without being asked for."""
_NOT_KNOWN = "(not known)"
"""Gold answer of a question of one's own; nothing is scored against it."""


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]+")


@dataclass
class LiveView:
    """Prints each turn of one attempt; for `Rollout(on_turn=...)`."""

    tags: Tags
    console: Console
    turns: list[Turn] = field(default_factory=list)

    def __call__(self, task: Task, turn: Turn) -> None:
        self.turns.append(turn)
        number = sum(turn.action != SUMMARY for turn in self.turns)  # a summary is no turn of the task
        appended = appended_tokens(Trajectory(turns=tuple(self.turns), task=task))[-1]
        in_view = f"  {turn.num_tokens:,} tokens in view; with every turn appended {appended:,}"
        name = "summary" if turn.action == SUMMARY else f"turn {number}"
        self.console.print(Text.assemble((name, "bold"), (in_view, "dim")))
        if turn.state:
            with_label(self.console, self.tags.state, turn.state, "cyan")
        for note in turn.notes:
            with_label(self.console, self.tags.note or NOTE, note, "bold cyan")
        if turn.action == MALFORMED:
            with_label(self.console, "wrote", turn.text, "red")
        colours = {MALFORMED: "red", ANSWER: "bold green"}
        with_label(self.console, turn.action, turn.content, colours.get(turn.action, "yellow"))
        if turn.observation:
            with_label(self.console, self.tags.result, turn.observation, "dim")


def with_label(console: Console, label: str, text: str, style: str) -> None:
    """Print one line of a turn, what it is before what it says."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(min_width=9)
    grid.add_column()
    grid.add_row(Text(shown(label), style="dim"), Text(shown(text), style=style))
    console.print(Padding(grid, (0, 0, 0, 2)))


def shown(text: str) -> str:
    """One line without control characters, which a terminal would obey; a long text is cut."""
    line = " ".join(_CONTROL.sub(" ", text).split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} ..."


@with_recipe("model", "base_url", "tokenizer", "questions", "corpus", "objectives", "seed")
def command(
    invocation: typer.Context,
    chosen: Chosen,
    question: Annotated[
        list[str] | None, typer.Option(help="Your own question, in place of the recipe's tasks; repeatable.")
    ] = None,
    mcp: Annotated[
        list[str] | None,
        typer.Option(
            help="Ask a chat agent with the tools of this MCP server: command, http address or JSON file; repeatable."
        ),
    ] = None,
    mcp_header: Annotated[
        list[str] | None,
        typer.Option(help="'Name: value' for the http address of --mcp; '${NAME}' is a variable; repeatable."),
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
    mem1 run --question "Who founded Alvex?" --corpus notes.index --model models/my-model
    mem1 run --question "..." tasks.kind=web tasks.api=serper --base-url http://127.0.0.1:8000/v1 --model qwen
    mem1 run --question "..." --mcp "npx -y my-server" --base-url http://127.0.0.1:8000/v1 --model qwen
    """
    if mcp or memory is not None:
        servers = _mcp_servers(mcp or (), mcp_header or ())
        run_agent(chosen, question or (), mcp=servers, memory=memory, prices=prices, as_json=as_json)
        return
    refuse(invocation, "mcp_header", because="goes with --mcp")
    refuse(invocation, "prices", because="goes with --mcp or --memory")
    from mem1.cli.progress import stderr
    from mem1.engines.base import Sampling
    from mem1.engines.codec import check_words
    from mem1.engines.out_of_memory import ANSWERING, memory_named
    from mem1.evaluation.agents import open_agent
    from mem1.policy.protocol import resolve

    with tempfile.TemporaryDirectory() as folder:
        chosen = chosen if question else _with_a_demonstration(chosen)
        recipe = _recipe(chosen, question or [], Path(folder) / "questions.jsonl")
        speaks = resolve(recipe)
        recipe, tags = speaks.applied(recipe), speaks.tags
        source = recipe.tasks.source("evaluation", tags)
        work_begins()
        size = len(question) if question else _size(chosen, recipe.evaluation.objectives)
        (task,) = source.tasks(objectives=size, count=1, seed=recipe.evaluation.seed)
    agent = open_agent(recipe, machine(invocation))
    check_words(agent.codec, [task], tags, whose=agent.name, results=recipe.tasks.results)
    console = stderr() if as_json else Console(highlight=False)
    rollout = agent.rollout(recipe, source, on_turn=LiveView(tags, console))
    policy = (f"policy: {recipe.model.name}",) if recipe.engine.kind == "local" else ()
    for note in (*policy, f"protocol: {speaks}", *agent.notes):
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
    if chosen.sets("evaluation.objectives") and len(evaluated) > 1:
        raise UserError("mem1 run works on one task: give one number by --objectives")
    if chosen.recipe is None or chosen.sets("evaluation.objectives"):
        return evaluated[0]
    return max((size for size in evaluated if size <= _FOLLOWED), default=evaluated[0])


def _recipe(chosen: Chosen, questions: list[str], file: Path) -> Recipe:
    """The recipe; one's own questions become a task in `file`."""
    if not questions:
        return chosen.load({"tasks.worlds": "1", "evaluation.objectives": "[2]"})
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
        verdict = (
            "" if "em" not in answer else f"   {'right' if answer['em'] else 'wrong'}, gold: {shown(answer['gold'])}"
        )
        console.print(Text(f"Q{answer['question']} {shown(answer['answer']) or '(no answer)'}{verdict}"))
    console.print(f"peak {record['peak_tokens']:,} tokens; with every turn appended {record['appended_peak_tokens']:,}")


def as_record(trajectory: Trajectory) -> dict[str, Any]:
    """What `--json` prints; scores and gold answers only if the trajectory was scored."""
    from mem1.evaluation.tokens import appended_peak_tokens, appended_tokens, peak_tokens
    from mem1.scoring import answers_given

    assert trajectory.task is not None
    questions, pieces = trajectory.task.questions, answers_given(trajectory.answer, trajectory.task)
    answers: list[dict[str, Any]] = [
        {"question": number, "text": question.text, "answer": given}
        for number, question, given in zip(trajectory.task.numbers, questions, pieces, strict=True)
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


_WITHOUT_EFFECT = ("engine.endpoint", "engine.tokenizer", "engine.processed_logprobs")


def run_agent(
    chosen: Chosen,
    questions: Sequence[str],
    *,
    mcp: Sequence[McpServer],
    memory: str | None,
    prices: str | None,
    as_json: bool,
) -> None:
    """Ask the agent one question, show what it does, and print its report."""
    from mem1.agent import Agent
    from mem1.agent.agent import MEMORY

    if len(questions) != 1 or not questions[0].strip():
        raise UserError("an agent with --mcp or --memory needs one --question: its task")
    agent = Agent(
        _server(chosen),
        tools=mcp,
        memory=MEMORY if memory is None else memory,
        prices=prices,
    )
    work_begins()
    console = stderr() if as_json else Console(highlight=False)
    view = _View(agent, console)
    with stopped_while("working on the task"), agent, console.status("working"):
        try:
            for step in agent.stream(questions[0]):
                view(step)
        except (UserError, KeyboardInterrupt):
            so_far = agent.report()
            if so_far.turns:
                stderr().print(Text(printable(str(so_far))), soft_wrap=True)
            raise
    report = agent.report()
    if as_json:
        print(json.dumps({**report.record(), "messages": agent.messages}))
    else:
        console.print(Text(f"\n{printable(str(report))}"), soft_wrap=True)


def _mcp_servers(named: Sequence[str], headers: Sequence[str]) -> list[McpServer]:
    """The servers of --mcp. Headers go to one address: a token is not for all of them."""
    from mem1.agent.mcp_config import servers_of

    addresses = [name for name in named if is_http(name)]
    if headers and len(addresses) != 1:
        raise UserError("--mcp-header goes with one http address of --mcp; name several servers in a JSON file")
    return [server for name in named for server in servers_of(name, headers)]


def _server(chosen: Chosen) -> ModelServer:
    """The chat server. Raises UserError for settings that belong to a recipe."""
    from mem1.engines.servers import ModelServer

    keys = [setting.partition("=")[0].strip() for setting in chosen.settings]
    wrong = [key for key in keys if key[:7] not in ("engine.", "model.p", "model.n") or key in _WITHOUT_EFFECT]
    if wrong or chosen.recipe is not None:
        raise UserError(
            "with --mcp or --memory, mem1 run is an agent at a chat server, and takes --question, --base-url, --model "
            f"and keys of [engine]; leave out {wrong[0] if chosen.recipe is None else chosen.recipe}"
        )
    recipe = chosen.load()
    if not isinstance(recipe.engine, ModelServer):
        raise UserError("an agent with --mcp or --memory needs a chat server: give --base-url and --model")
    opened = recipe.engine.remote_engine(recipe.model.path)
    assert opened is not None
    server, _ = opened
    assert isinstance(server, ModelServer)
    return server


@dataclass
class _View:
    """Prints each turn of an agent."""

    agent: Agent
    console: Console
    said: list[str] = field(default_factory=list)
    """Text of a turn whose calls have not come yet; at the end, the answer, which the report has."""
    calling: bool = False
    """Whether the last line was a call."""

    def __call__(self, step: Step) -> None:
        from mem1.agent import Called, Repeated, Returned

        if isinstance(step, str):
            self.said.append(step)
        elif isinstance(step, Called):
            if not self.calling:
                self._turn()
            with_label(self.console, step.name, step.arguments, "yellow")
        elif isinstance(step, Returned):
            with_label(self.console, "result", step.text, "red" if step.failed else "dim")
        elif isinstance(step, Repeated):
            self.said.clear()
            with_label(self.console, "again", f"the reply was {step.why} ({step.tries} in a row)", "red")
        else:
            with_label(self.console, "memory", _told(step), "cyan")
        self.calling = isinstance(step, Called)

    def _turn(self) -> None:
        report = self.agent.report()
        call = report.calls[-1]
        in_view = f"  {call.prompt:,} tokens in view; with every turn appended {call.appended:,}"
        self.console.print(Text.assemble((f"turn {report.turns}", "bold"), (in_view, "dim")))
        if text := "".join(self.said).strip():
            with_label(self.console, "says", text, "")
        self.said.clear()


def _told(event: Event) -> str:
    sizes = f"{event.tokens_before:,} tokens become {event.tokens_after:,}"
    if event.kind == "state":
        return f"a state after {event.exchange} exchanges: {sizes}"
    if event.kind == "left_out":
        return f"{len(event.left_out)} more results left out or shortened: {sizes}"
    return shown(f"the model wrote no state: {event.why}" if event.kind == "no_state" else event.why)
