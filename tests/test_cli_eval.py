"""`mem1 eval`: what it keeps, what it goes on from, what it shows of the cost."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from samples import write_lines
from test_cli import Terminal
from test_runner import without_timings

from mem1.cli.display import EvaluationBar, JudgeBar, Prices, bars
from mem1.evaluation.metrics import OF_TIME
from mem1.evaluation.runner import Progress

ANSWERS = ("eval", "--script", "Ana Brul", "--objectives", "1,2", "--limit", "5", "--json")
SCRIPTED = (*ANSWERS, "--tokenizer", "stand-in", "--max-completion", "200")


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "300")
    return Terminal(capsys, monkeypatch)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    """Options of a few questions over one passage."""
    questions = [{"id": f"q{i}", "text": f"Who founded company {i}?", "answers": ["Ana Brul"]} for i in range(10)]
    write_lines(tmp_path / "questions.jsonl", *questions)
    write_lines(tmp_path / "corpus.jsonl", {"id": "p", "title": "Company", "text": "Ana Brul founded a company."})
    paths = ("--questions", str(tmp_path / "questions.jsonl"), "--corpus", str(tmp_path / "corpus.jsonl"))
    return ("--task", "multihop", *paths, "--prompt", "plain")


def rows(printed: str) -> list[dict[str, Any]]:
    return json.loads(printed)["rows"]


def timeless(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in OF_TIME} for row in found]


def test_the_same_command_goes_on_and_other_settings_are_refused(
    terminal: Terminal, files: tuple[str, ...], tmp_path: Path
):
    folder = tmp_path / "evaluation"
    same = (*SCRIPTED, *files, "--out", folder)
    code, printed, _ = terminal(*same)
    assert code == 0
    assert [(row["objectives"], row["tasks"], row["policy"]) for row in rows(printed)] == [
        (1, 5, "scripted"),
        (2, 5, "scripted"),
    ]
    unbroken = without_timings(folder)
    lines = (folder / "scripted-2.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "scripted-2.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][:30])
    assert timeless(rows(terminal(*same, "--concurrency", "4")[1])) == timeless(rows(printed))
    assert without_timings(folder) == unbroken
    refused = terminal.error(*same, "--context", "full", "--script", "Moru Kest")
    assert 'context: "constant" in the folder, "full" now' in refused
    assert "model: \"script 'Ana Brul' in tokens of " in refused


def test_concurrency_is_not_for_a_model_in_this_process(terminal: Terminal):
    assert "--concurrency, " in (said := terminal.error("eval", "--concurrency", "4")) and "go with --base-url" in said


def test_the_bar_shows_tasks_tokens_and_what_they_cost():
    console = Console(width=200, record=True, force_terminal=True)
    with bars(console) as progress:
        bar = EvaluationBar(progress, "m", Prices(tokens_in=2.0, tokens_out=8.0))
        bar(Progress(objectives=4, done=3, of=10, tokens_in=1_500_000, tokens_out=20_000))
    # 1.5 million at 2 dollars and 0.02 million at 8
    shown = console.export_text()
    assert "m: N = 4" in shown and "3/10" in shown
    assert "1,500k tokens in, 20k out, $3.1600" in shown


def test_the_judge_has_a_bar_of_its_own():
    console = Console(width=200, record=True, force_terminal=True)
    with bars(console) as progress:
        bar = JudgeBar(progress)
        bar(4, 1, 12)
        bar(4, 2, 12)
    shown = console.export_text()
    assert "judge: N = 4" in shown and "2/12" in shown


def command(folder: Path) -> list[str]:
    evaluated = ("eval", "--objectives", "1,2", "--limit", "100", "--temperature", "1", "--out", str(folder), "--json")
    return [sys.executable, "-m", "mem1", *evaluated]


@pytest.mark.slow
def test_a_process_killed_at_random_twenty_times_gives_the_result_of_an_unbroken_one(tmp_path: Path):
    unbroken = subprocess.run(command(tmp_path / "unbroken"), capture_output=True, text=True, check=True)
    rng = random.Random(0)
    killed = 0
    while killed < 20:
        folder = tmp_path / f"killed-{killed // 5}"  # each of four evaluations is killed five times
        process = subprocess.Popen(command(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not any(folder.glob("*.json")) and process.poll() is None:
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 8))
        process.kill()
        assert process.wait() in (-signal.SIGKILL, 0)
        killed += 1
    for number in range(4):
        folder = tmp_path / f"killed-{number}"
        again = subprocess.run(command(folder), capture_output=True, text=True, check=True)
        assert timeless(json.loads(again.stdout)["rows"]) == timeless(json.loads(unbroken.stdout)["rows"])
        assert without_timings(folder) == without_timings(tmp_path / "unbroken")
