"""Progress in the log of a batch job, which is no terminal."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from mem1.cli import progress
from mem1.cli.progress import bars


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=clock))
    return clock


def ten_steps(console: Console, clock: Clock) -> list[str]:
    """One each half minute."""
    with bars(console) as shown:
        bar = shown.add_task("train: rl", total=10, note="")
        for step in range(10):
            clock.now += 30
            shown.update(bar, advance=1, note=f"reward {step / 10} [/x] \x1b")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_log_gets_a_line_a_minute_and_the_end(clock: Clock):
    *lines, last = ten_steps(Console(file=io.StringIO(), width=200), clock)
    assert [line.split(" in ")[0] for line in lines] == [f"train: rl {step}/10" for step in (2, 4, 6, 8)]
    assert lines[0].endswith("left  reward 0.1 [/x] \\x1b") and "10/10" in last


def test_a_terminal_has_its_bar_alone(clock: Clock):
    console = Console(file=io.StringIO(), width=200, force_terminal=True, _environ={"TERM": "xterm"})
    assert not [line for line in ten_steps(console, clock) if line.startswith("train: rl 2/10")]
