"""`mem1 eval`: what it keeps, how it resumes, its judge, and the cost that it shows."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from chat_servers import chat_server
from judges import honest
from rich.console import Console
from samples import write_lines
from terminals import Terminal
from timings import without_timings

import mem1
from mem1.cli.progress import EvaluationBar, JudgeBar, bars
from mem1.evaluation.metrics import OF_TIME
from mem1.evaluation.report.run_folders import evaluation_facts
from mem1.evaluation.runner import Progress
from mem1.net.spending import SpendingLimit
from mem1.run_folder import RESOLVED

ANSWERS = ("eval", "engine.kind=script", "engine.answer=Ana Brul", "--objectives", "1,2", "--limit", "5", "--json")
SCRIPTED = (*ANSWERS, "--tokenizer", "stand-in", "budget.completion_per_objective=0", "budget.completion_extra=200")


ATLAS = ("eval", "--objectives", "1", "--limit", "3", "tasks.worlds=1")
SCRIPT = ("engine.kind=script", "engine.answer=Q1 nobody")


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
    return (*paths, "tasks.prompt=plain")


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
    assert timeless(rows(terminal(*same, "engine.concurrency=4")[1])) == timeless(rows(printed))
    assert without_timings(folder) == unbroken
    write_lines(tmp_path / "corpus.jsonl", {"id": "p", "title": "Company", "text": "Moru Kest founded a company."})
    assert 'searched: "' in terminal.error(*same)
    refused = terminal.error(*same, "memory=full", "engine.answer=Moru Kest")
    assert 'context: "constant" in the folder, "full" now' in refused
    assert "model: \"script 'Ana Brul' in tokens of " in refused


def test_an_evaluation_that_could_not_sample_anything_says_why_and_fails(terminal: Terminal):
    code, out, said = terminal(*ATLAS, *SCRIPT, "--tokenizer", "stand-in", "budget.context=50", "--json")
    assert code == 1 and rows(out)[0]["endings"]["out_of_tokens"] == 3
    assert "nothing could be sampled: " in said and "of 3 attempts ended with out_of_tokens: a context of " in said
    assert "leaves no room within 50: raise budget.completion_extra" in said


def test_what_is_true_of_several_sizes_is_said_once(terminal: Terminal, files: tuple[str, ...]):
    _, _, said = terminal(*SCRIPTED, *files, "--objectives", "1,2", "--limit", "95")
    assert said.count("these questions yield no others") == 1
    assert re.search(r"fewer tasks than asked for \(10 of 95 at N = 1, \d+ of 95 at N = 2\)", said)


def test_the_bar_shows_tasks_tokens_and_what_they_cost():
    console = Console(width=200, record=True, force_terminal=True)
    with bars(console) as progress:
        bar = EvaluationBar(progress, "m", SpendingLimit(dollars_per_million_input=2.0, dollars_per_million_output=8.0))
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


def test_a_judge_stands_in_the_row_and_below_the_table_and_a_repeat_asks_nobody(terminal: Terminal, tmp_path: Path):
    with chat_server(honest) as server:
        asked = (*ATLAS, *SCRIPT, "--out", tmp_path, f"judge.url={server.url}", "judge.model=m")
        code, out, _ = terminal(*asked, "--json")
        (row,) = json.loads(out)["rows"]
        judge = row["judge"]
        assert (code, len(server.requests)) == (0, 3)
    assert row["flops"] is None, "a script computes nothing"
    assert (judge["model"], judge["correct"], judge["judged"], judge["agreement"]) == ("m", 0.0, 1.0, 1.0)
    code, out, _ = terminal(*asked)
    assert code == 0 and "it judged 100% of them" in " ".join(out.split())


def test_a_row_has_the_models_flops_and_the_tables_of_a_report_keep_them_and_the_verdict(
    terminal: Terminal, tmp_path: Path
):
    with chat_server(honest) as server:
        asked = (*ATLAS, "--out", tmp_path, f"judge.url={server.url}", "judge.model=m", "--json")
        (row,) = json.loads(terminal(*asked)[1])["rows"]
    assert row["judge"]["judged"] == 1.0
    # at least every token through every matrix of the shipped policy, and the attention is less than that again
    matrices = 2 * 851968 * row["total_tokens"]
    assert matrices < row["flops_cached"] + 2 * 851968 * row["cached_tokens"] < row["flops"] < 2 * matrices
    parts = row["fresh_tokens"] + row["cached_tokens"] + row["output_tokens"]
    assert parts == pytest.approx(row["total_tokens"])
    (line,) = csv.DictReader(io.StringIO(terminal("report", tmp_path, "--format", "csv")[1]))
    assert float(line["flops_cached"]) == row["flops_cached"]
    assert (line["judge.model"], float(line["judge.agreement"])) == ("m", row["judge"]["agreement"])
    table = terminal("report", tmp_path, "--format", "md")[1]
    assert f"{row['flops']:.3g}" in table and "it judged 100% of them" in table
    assert not terminal("report", tmp_path)[0]
    assert "the judge m accepts" in (tmp_path / "report.html").read_text()
    (same,) = mem1.evaluate(mem1.AtlasTasks(worlds=1), "shipped", name="shipped", objectives=1, tasks=3)
    with pytest.raises(mem1.UserError, match="objectives = '1,2': give numbers"):
        mem1.evaluate("atlas-quick", "shipped", objectives="1,2")  # type: ignore[arg-type]
    assert timeless([json.loads(json.dumps(same.as_dict()))]) == timeless([{**row, "judge": None}])


def test_half_a_judge_is_refused_before_anything_is_run(terminal: Terminal):
    assert "required key judge.url is missing" in terminal.error(*ATLAS, *SCRIPT, "judge.model=m")


def command(folder: Path) -> list[str]:
    evaluated = (
        "eval",
        "--objectives",
        "1,2",
        "--limit",
        "100",
        "evaluation.temperature=1",
        "--out",
        str(folder),
        "--json",
    )
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


def test_the_report_says_how_an_evaluation_was_made(terminal: Terminal, tmp_path: Path):
    folder = tmp_path / "evaluation"
    asked = (*ATLAS, *SCRIPT, "--out", folder)
    assert terminal(*asked, "evaluation.seed=3")[0] == 0
    facts = evaluation_facts(folder)
    assert facts["command"] == f"mem1 {' '.join(ATLAS)} {' '.join(SCRIPT)} --out evaluation evaluation.seed=3"
    assert (facts["seed"], facts["model"], facts["memory"]) == ("3", "scripted", "constant")
    assert f"mem1 {mem1.__version__}" in facts["versions"] and facts["hardware"]
    assert terminal("report", folder)[0] == 0
    assert facts["command"] in (folder / "report.html").read_text()
    (folder / RESOLVED).write_text("{")
    assert evaluation_facts(folder) == {}
    assert terminal("report", folder)[0] == 0
