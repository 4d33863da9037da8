"""Progress on the terminal: one live line for what runs now. Everything goes to stderr, results to stdout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.errors import MarkupError
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from mem1.errors import printable

if TYPE_CHECKING:
    from mem1.evaluation.runner import Progress as Evaluated
    from mem1.training.loop.train import Progress as Step

_LABELS = {
    "reward": "reward",
    "em": "EM",
    "token_accuracy": "right",
    "groups_with_variance": "varied",
    "loss": "loss",
    "turns": "turns",
    "peak_tokens": "peak",
}
"""What stands in the line of a training, the most telling first: a narrow terminal cuts the end."""
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
    """Where progress and notes go."""
    return _SafeConsole(stderr=True, highlight=False)


@contextmanager
def bars(console: Console) -> Iterator[Progress]:
    """Live progress with time left. In a narrow terminal the note is cut, never bar, count or time."""
    name = Column(no_wrap=True, overflow="ellipsis", max_width=24)
    whole = Column(no_wrap=True)
    rest = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    with Progress(
        TextColumn("{task.description}", table_column=name),
        BarColumn(bar_width=12, table_column=whole),
        MofNCompleteColumn(table_column=whole),
        TimeElapsedColumn(table_column=whole),
        TextColumn("left", table_column=whole),
        TimeRemainingColumn(table_column=whole),
        TextColumn("{task.fields[note]}", table_column=rest),
        console=console,
        expand=True,
    ) as progress:
        yield progress


class TrainingBar:
    """Shows each step of a training: reward, EM, turns, peak tokens, time left."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.bars: dict[str, Any] = {}

    def __call__(self, step: Step) -> None:
        if step.stage not in self.bars:
            self.bars[step.stage] = self.progress.add_task(f"train: {step.stage}", total=step.steps, note="")
        shown = [why for key, why in _SKIPPED.items() if step.metrics.get(key)]
        shown += [
            f"{label} {value:.2f}"
            for key, label in _LABELS.items()
            if isinstance(value := step.metrics.get(key), float)
        ]
        self.progress.update(self.bars[step.stage], completed=step.step, note="  ".join(shown))


@dataclass(frozen=True, slots=True)
class Prices:
    """What a server asks for, in dollars a million tokens."""

    tokens_in: float = 0.0
    """Context tokens, as if none were in its cache."""
    tokens_out: float = 0.0
    """Sampled tokens."""

    def cost(self, tokens_in: int, tokens_out: int) -> float:
        """In dollars."""
        return (self.tokens_in * tokens_in + self.tokens_out * tokens_out) / 1e6


class EvaluationBar:
    """Shows the tasks of an evaluation as they finish: their number, tokens in and out, what they cost."""

    def __init__(self, progress: Progress, policy: str, prices: Prices | None = None) -> None:
        self.progress, self.policy, self.prices = progress, policy, prices
        self.bars: dict[int, Any] = {}

    def __call__(self, now: Evaluated) -> None:
        if now.objectives not in self.bars:
            self.bars[now.objectives] = self.progress.add_task(
                f"{self.policy}: N = {now.objectives}", total=now.of, note=""
            )
        note = f"{_thousands(now.tokens_in)} tokens in, {_thousands(now.tokens_out)} out"
        if self.prices is not None:
            note += f", ${self.prices.cost(now.tokens_in, now.tokens_out):.4f}"
        self.progress.update(self.bars[now.objectives], completed=now.done, note=note)


class JudgeBar:
    """Shows the answers of an evaluation as they are judged; those that were judged before are not counted."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.bars: dict[int, Any] = {}

    def __call__(self, objectives: int, done: int, of: int) -> None:
        if objectives not in self.bars:
            self.bars[objectives] = self.progress.add_task(f"judge: N = {objectives}", total=of, note="")
        self.progress.update(self.bars[objectives], completed=done)


def _thousands(tokens: int) -> str:
    return str(tokens) if tokens < 1000 else f"{tokens / 1000:,.0f}k"
