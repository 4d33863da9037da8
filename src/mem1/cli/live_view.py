"""Turns of an attempt on the terminal, as they are taken.

turn 2  76 tokens in view; with every turn appended 76
  state   now Q1 Moru Kest
  search  mayor of Moru Kest
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mem1.evaluation.tokens import appended_tokens
from mem1.protocol import ANSWER, MALFORMED, NOTE, SUMMARY, Tags
from mem1.records import Task, Trajectory, Turn

LONGEST = 600
"""Most characters shown of a text."""


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
