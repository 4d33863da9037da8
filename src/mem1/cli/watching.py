"""An agent at work, turn by turn on the terminal: what it wrote, what it was shown, how much it had in view.

turn 2  76 tokens in view; with every turn appended 76
  state   now Q1 Moru Kest
  search  mayor of Moru Kest
  result  [HINT] You have 7 turns left. [/HINT] Moru Kest is a city . ...
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mem1.protocol import ANSWER, MALFORMED, SUMMARY, Tags, observation, parse

if TYPE_CHECKING:
    from mem1.engines.base import Completion, Engine, Sampling
    from mem1.engines.codec import Codec
    from mem1.envs.base import Action, Environment, Observation, Outcome
    from mem1.records import Task

LONGEST = 600
"""Characters shown of one text."""
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]+")


@dataclass
class Watched:
    """Engine and environment of one attempt in one object: passes everything on and prints it as it happens."""

    engine: Engine
    environment: Environment
    codec: Codec
    tags: Tags
    console: Console
    turns: int = field(init=False, default=0)
    appended: int = field(init=False, default=0)
    """Tokens of the prompt and of all completions and results so far."""

    def complete(
        self, contexts: Sequence[Sequence[int]], *, max_tokens: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """One turn. Raises ValueError where there is not exactly one context: one attempt is watched."""
        (context,) = contexts
        self.turns += 1
        with self.console.status(f"turn {self.turns}: thinking"):
            (completion,) = self.engine.complete(contexts, max_tokens=max_tokens, sampling=sampling)
        if completion.failed is not None:
            self._line("failed", completion.failed, "red")
            return [completion]
        opening, opened = self._opened(context)
        if self.turns == 1:
            self.appended = len(context) - opened
        in_view, new = len(context) + len(completion.token_ids), len(completion.token_ids)
        self._heading(in_view, self.appended + opened + new)
        kind = self._show(opening + self.codec.decode(completion.token_ids))
        if kind == SUMMARY:
            self.turns -= 1  # no turn of the task, and an agent that appends would not have written it
        else:
            self.appended += new
        return [completion]

    def _opened(self, context: Sequence[int]) -> tuple[str, int]:
        """The tag that the context ends with, opened for the model, and its tokens; none: "" and 0."""
        for kind in (ANSWER, SUMMARY):
            if kind in self.tags.action_tags:
                opening = self.tags.opening(kind)
                ids = self.codec.encode(opening)
                if tuple(context[-len(ids) :]) == ids:
                    return opening, len(ids)
        return "", 0

    def observe(self, requests: Sequence[Action]) -> list[Observation]:
        """The reply to the turn's action."""
        with self.console.status(f"turn {self.turns}: searching"):
            replies = self.environment.observe(requests)
        for request, reply in zip(requests, replies, strict=True):
            if reply.failed is not None:
                self._line("failed", reply.failed, "red")
                continue
            if self.turns == request.task.turn_limit or reply.ended:
                continue
            inside, tagged = observation(reply.text, request.task.turn_limit - self.turns, self.tags)
            self.appended += len(self.codec.encode_untrusted(tagged, self.tags))
            self._line(self.tags.result, inside, "dim")
        return replies

    def score(self, task: Task, answer: str) -> Outcome:
        """Worth of the answer."""
        return self.environment.score(task, answer)

    def _heading(self, in_view: int, appended: int) -> None:
        self.console.print(
            f"[bold]turn {self.turns}[/]  {in_view:,} tokens in view; with every turn appended {appended:,}"
        )

    def _show(self, text: str) -> str:
        """Print a completion; the kind of its action."""
        parsed = parse(text, self.tags)
        if parsed.kind == MALFORMED:
            self._line("wrote", text, "red")
            self._line("malformed", parsed.error or "", "red")
            return parsed.kind
        if parsed.thought:
            self._line("thought", parsed.thought, "dim")
        if parsed.kind != SUMMARY:
            self._line("state", parsed.state or "(none)", "cyan")
        self._line(parsed.kind, parsed.content, "bold green" if parsed.kind == ANSWER else "yellow")
        return parsed.kind

    def _line(self, label: str, text: str, style: str) -> None:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(min_width=9)
        grid.add_column()
        grid.add_row(Text(label, style="dim"), Text(shown(text), style=style))
        self.console.print(Padding(grid, (0, 0, 0, 2)))


def shown(text: str) -> str:
    """One line without control characters, which a terminal would obey, cut where it is long."""
    line = " ".join(_CONTROL.sub(" ", text).split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} ..."
