"""A run of the benchmark that is killed again and again, at a faulty server: the same result, nothing asked twice."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bench_player import AT_A_TIME, play
from bench_server import FAULTS, script_server
from bench_suites import KILLED, LARGE

from mem1.bench.results import Result, load_result

ROOT = Path(__file__).parents[2]


def without_times(result: Result) -> Result:
    attempts = tuple(replace(attempt, seconds=0.0) for attempt in result.attempts)
    return replace(result, seconds=0.0, attempts=attempts)


def journaled(folder: Path) -> list[tuple[str, str, int]]:
    """The calls of the journal's whole lines."""
    lines = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    records = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return [(record["task"], record["memory"], record["number"]) for record in records]


def killed_and_resumed(name: str, kills: int, folder: Path) -> None:
    suite = {"KILLED": KILLED, "LARGE": LARGE}[name]
    with script_server(suite) as server:
        undisturbed = play(suite, server.url, folder / "undisturbed")
        usual, calls = dict(server.answered), journaled(folder / "undisturbed")
        assert len(calls) == len(set(calls)) == server.total, "every answer was written down"
        server.answered.clear()
        server.share = 0.25
        for kill in range(kills):
            command = [sys.executable, "tests/support/bench_player.py", f"bench_suites:{name}", server.url]
            process = subprocess.Popen(
                [*command, str(folder / "killed")], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            assert server.wait_for((kill + 1) * len(calls) // (kills + 1))
            process.kill()
            said, _ = process.communicate()
            assert process.returncode < 0, said.decode()
            assert not (folder / "killed" / "result.json").exists()
        resumed = play(suite, server.url, folder / "killed")
    written = load_result(folder / "killed" / "result.json")
    assert without_times(resumed) == without_times(undisturbed) == without_times(written)
    # what was written down before a kill was never asked again: it would stand in the journal twice
    assert sorted(journaled(folder / "killed")) == sorted(calls)
    # what was asked twice had been under way when the process was killed
    assert 0 <= server.total - len(calls) <= kills * AT_A_TIME
    assert set(server.answered) == set(usual) and all(server.answered[digest] >= usual[digest] for digest in usual)
    assert len(server.faults) == len(FAULTS) and {attempt.ended for attempt in resumed.attempts} == {"answered"}


@pytest.mark.slow
def test_a_run_that_is_killed_three_times_has_the_same_result_and_asks_nothing_twice(tmp_path: Path):
    killed_and_resumed("KILLED", 3, tmp_path)


@pytest.mark.slow
def test_a_thousand_tasks_killed_ten_times_have_the_same_result_and_nothing_is_asked_twice(tmp_path: Path):
    killed_and_resumed("LARGE", 10, tmp_path)


def test_a_line_that_was_cut_in_the_middle_is_asked_for_again(tmp_path: Path):
    with script_server(KILLED) as server:
        first = play(KILLED, server.url, tmp_path)
        calls = server.total
        (tmp_path / "attempts.jsonl").unlink()
        (tmp_path / "result.json").unlink()
        journal = tmp_path / "journal.jsonl"
        journal.write_bytes(journal.read_bytes()[:-20])
        again = play(KILLED, server.url, tmp_path)
    assert server.total == calls + 1
    assert without_times(again) == without_times(first)
