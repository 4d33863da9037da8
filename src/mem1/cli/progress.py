"""The terminal: messages, and one live line for what runs now. Results go to stdout, all else to stderr."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.errors import MarkupError
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from mem1.errors import printable
from mem1.net.spending import SpendingLimit, Usage

if TYPE_CHECKING:
    from mem1.evaluation.runner import Progress as Evaluated
    from mem1.training.train import Progress as Step

_LABELS = {
    "reward": "reward",
    "em": "EM",
    "token_accuracy": "right",
    "groups_with_variance": "varied",
    "loss": "loss",
    "turns": "turns",
    "peak_tokens": "peak",
}
"""Metric -> its label in the line of a training, the most telling first."""
_SKIPPED = {
    "skipped_too_few": "skipped: too few attempts left to compare",
    "skipped_equal": "skipped: no attempt has anything to teach",
}
"""Metric that is 1 at a step without an update -> why there was none."""


class _SafeConsole(Console):
    """A terminal that obeys no control character in what is printed: names of files, words of servers."""

    def render_str(self, text: str, **how: Any) -> Text:
        try:
            return super().render_str(printable(text), **how)
        except MarkupError:  # of a name that looks like our marks for bold and dim
            return Text(printable(text))


def stderr() -> Console:
    """The console for progress and notes."""
    return _SafeConsole(stderr=True, highlight=False)


def say(message: str, kind: str | None = None) -> None:
    """Print to stderr; `kind` ("error", "warning") precedes it. Control characters are shown, not obeyed."""
    shown = escape(printable(message))
    colour = "bold red" if kind == "error" else "yellow"
    head = "" if kind is None else f"[{colour}]{kind}:[/] "
    Console(stderr=True, highlight=False).print(head + shown, soft_wrap=True)


_LOGGED_S = 60.0
"""Least seconds between two lines in a file."""


class _Lines(Progress):
    """A bar in each line, and its note beside it, or below it where the terminal is too narrow.

    What is no terminal, as the log of a batch job, gets what has been updated as a line a minute.
    """

    _logged = 0.0

    def start(self) -> None:
        self._logged = time.monotonic()
        super().start()

    def update(self, task_id: TaskID, **fields: Any) -> None:
        super().update(task_id, **fields)
        self._log(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._log(task_id)

    def _log(self, task_id: TaskID) -> None:
        console = self.console
        if (console.is_terminal and not console.is_dumb_terminal) or console.is_jupyter:
            return
        with self._lock:
            task, now = self._tasks[task_id], time.monotonic()
            if task.finished or not task.completed or now - self._logged < _LOGGED_S:
                return  # the end shows all
            self._logged = now
        total = "?" if task.total is None else f"{task.total:.0f}"
        left = "" if task.time_remaining is None else f", {timedelta(seconds=round(task.time_remaining))} left"
        passed = timedelta(seconds=round(task.elapsed or 0))
        note = f"  {task.fields['note']}" if task.fields["note"] else ""
        said = escape(printable(f"{task.completed:.0f}/{total} in {passed}{left}{note}"))
        console.print(f"{task.description} {said}", soft_wrap=True)

    def get_renderables(self) -> Iterator[RenderableType]:
        shown = [task for task in self.tasks if task.visible]
        lines = self.console.render_lines(self.make_tasks_table(shown), pad=False) if shown else []
        for task, line in zip(shown, lines, strict=True):
            bar = Text.assemble(*((segment.text, segment.style or "") for segment in line))
            beside = bar.cell_len + 1 + cell_len(task.fields["note"]) <= self.console.width
            yield bar.append(f"{' ' if beside else chr(10) + '  '}{task.fields['note']}" if task.fields["note"] else "")


@contextmanager
def bars(console: Console) -> Iterator[Progress]:
    """Live progress with time left."""
    name = Column(no_wrap=True, overflow="ellipsis", max_width=36)
    whole = Column(no_wrap=True)
    with _Lines(
        TextColumn("{task.description}", table_column=name),
        BarColumn(bar_width=12, table_column=whole),
        MofNCompleteColumn(table_column=whole),
        TimeElapsedColumn(table_column=whole),
        TextColumn("left", table_column=whole),
        TimeRemainingColumn(table_column=whole),
        console=console,
    ) as progress:
        yield progress


class _Bars:
    """One bar per key, made when it is first updated."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.bars: dict[str | int, Any] = {}

    def update(self, key: str | int, name: str, done: int, of: int, note: str = "") -> None:
        if key not in self.bars:
            self.bars[key] = self.progress.add_task(name, total=of, note="")
        self.progress.update(self.bars[key], completed=done, note=note)


class TrainingBar(_Bars):
    """Shows each step of a training: reward, EM, turns, peak tokens, time left."""

    def __call__(self, step: Step) -> None:
        shown = [why for key, why in _SKIPPED.items() if step.metrics.get(key)]
        shown += [
            f"{label} {value:.2f}"
            for key, label in _LABELS.items()
            if isinstance(value := step.metrics.get(key), float)
        ]
        self.update(step.stage, f"train: {step.stage}", step.step, step.steps, "  ".join(shown))


class EvaluationBar(_Bars):
    """Shows the tasks of an evaluation as they finish: their number, tokens in and out, their cost."""

    def __init__(self, progress: Progress, policy: str, limit: SpendingLimit | None = None) -> None:
        super().__init__(progress)
        self.policy, self.limit = policy, limit

    def __call__(self, now: Evaluated) -> None:
        note = f"{_thousands(now.tokens_in)} tokens in, {_thousands(now.tokens_out)} out"
        if self.limit is not None and (dollars := self.limit.cost(Usage(now.tokens_in, now.tokens_out))):
            note += f", ${dollars:.4f}"
        self.update(now.objectives, f"{self.policy}: N = {now.objectives}", now.done, now.of, note)


class JudgeBar(_Bars):
    """Shows the answers of an evaluation as they are judged; those judged earlier are not counted."""

    def __call__(self, objectives: int, done: int, of: int) -> None:
        self.update(objectives, f"judge: N = {objectives}", done, of)


def _thousands(tokens: int) -> str:
    return str(tokens) if tokens < 1000 else f"{tokens / 1000:,.0f}k"
