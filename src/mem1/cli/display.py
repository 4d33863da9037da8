"""Progress on the terminal: one live line for what runs now. Everything goes to stderr, results to stdout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from mem1.training.train import Progress as Step

_LABELS = {
    "loss": "loss",
    "reward": "reward",
    "em": "EM",
    "turns": "turns",
    "peak_tokens": "peak",
    "groups_with_variance": "varied",
    "token_accuracy": "right",
}


def stderr() -> Console:
    """Where progress and notes go."""
    return Console(stderr=True, highlight=False)


@contextmanager
def bars(console: Console) -> Iterator[Progress]:
    """Live progress with time left."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
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
        shown = [
            f"{label} {value:.2f}"
            for key, label in _LABELS.items()
            if isinstance(value := step.metrics.get(key), float)
        ]
        self.progress.update(self.bars[step.stage], completed=step.step, note="  ".join(shown))


class EvaluationBar:
    """Shows the attempts of an evaluation as they finish."""

    def __init__(self, progress: Progress, policy: str) -> None:
        self.progress, self.policy = progress, policy
        self.bars: dict[int, Any] = {}

    def __call__(self, objectives: int, done: int, of: int) -> None:
        if objectives not in self.bars:
            self.bars[objectives] = self.progress.add_task(
                f"evaluate {self.policy}: N = {objectives}", total=of, note=""
            )
        self.progress.update(self.bars[objectives], completed=done)
