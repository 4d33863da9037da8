"""`mem1 run` with --mcp or --memory: `mem1.Agent` works on a question, watched turn by turn.

turn 2  3,120 tokens in view; with every turn appended 3,120
  search  {"query": "mayor of Oslo"}
  result  Anne Lindboe has been mayor of Oslo since ...
  memory  a state after 9 exchanges: 9,812 tokens become 1,204
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from mem1.cli.live_view import shown, with_label
from mem1.cli.options import work_begins
from mem1.cli.progress import stderr
from mem1.cli.recipe_options import Chosen
from mem1.errors import UserError, printable
from mem1.interrupts import stopped_while

if TYPE_CHECKING:
    from mem1.agent import Agent, Called, Returned
    from mem1.engines.servers import ModelServer
    from mem1.messages import Event

_WITHOUT_EFFECT = ("engine.endpoint", "engine.tokenizer", "engine.processed_logprobs")


def run_agent(
    chosen: Chosen,
    questions: Sequence[str],
    *,
    mcp: Sequence[str],
    memory: str | None,
    prices: str | None,
    as_json: bool,
) -> None:
    """Ask the agent one question, show what it does, and print its report."""
    from mem1.agent import Agent, McpServer
    from mem1.agent.agent import MEMORY

    if len(questions) != 1 or not questions[0].strip():
        raise UserError("an agent with --mcp or --memory needs one --question: its task")
    agent = Agent(
        _server(chosen),
        tools=[McpServer(server) for server in mcp],
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
    opened = recipe.engine.elsewhere(recipe.model.path)
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

    def __call__(self, step: str | Called | Returned | Event) -> None:
        from mem1.agent import Called, Returned

        if isinstance(step, str):
            self.said.append(step)
        elif isinstance(step, Called):
            if not self.calling:
                self._turn()
            with_label(self.console, step.name, step.arguments, "yellow")
        elif isinstance(step, Returned):
            with_label(self.console, "result", step.text, "red" if step.failed else "dim")
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
