"""`mem1 bench`: what it takes, what it prints, and that it goes on where it was stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench_server import script_server
from bench_suites import SMALL
from chat_servers import Reply, chat_server
from terminals import Terminal

from mem1.bench.results import load_result

SUITE = ("--suite", "bench_suites:SMALL")
ASKED = 32
"""Calls of the script under keep: a search per hop, and the answer."""


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Terminal:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return Terminal(capsys, monkeypatch)


def test_a_script_in_tags_and_as_a_chat_agent_has_tables_and_files(terminal: Terminal, tmp_path: Path):
    code, out, said = terminal("bench", "--script", "unlimited", *SUITE)
    assert code == 0 and "1.00 [" in out and "differences" not in out
    folder = Path("runs/bench/script-unlimited-bench_suites-SMALL")
    assert str(folder / "result.json") in said and str(folder / "page.html") in said
    assert load_result(folder / "result.json").model == "script, unlimited"
    assert "script, unlimited" in (folder / "page.html").read_text()
    chat = ("bench", "--script", "200", "--chat", "--memory", "full, fold(2)", "--prices", "hosted-50", *SUITE)
    code, out, _ = terminal(*chat, "--families", "chain", "--json", "--out", "chat")
    told = json.loads(out)
    assert code == 0 and [side["memory"] for side in told["sides"]] == ["full", "fold(2)"]
    assert [list(side["families"]) for side in told["sides"]] == [["chain"]] * 2
    assert told["sides"][0]["all"]["per_right"]["cost"] > 0 and len(told["comparisons"]) == 1
    assert terminal("bench", "compare", "chat", "--json")[0] == 0


def test_a_server_is_asked_after_an_estimate_and_nothing_twice(terminal: Terminal):
    with script_server(SMALL) as server:
        run = ("bench", "--base-url", server.url, "--model", "m", "--memory", "full", *SUITE, "--out", "run")
        code, out, said = terminal(*run, "--prices", "hosted-50")
        assert code == 0 and "1.00 [" in out and server.total == ASKED
        assert "Estimated before anything is asked" in said and "cached of them" in said
        assert terminal(*run, "--prices", "hosted-50", "--json")[0] == 0 and server.total == ASKED
        assert 'prices.name: "hosted-50" in the folder, "hosted-90" now' in terminal.error(
            *run, "--prices", "hosted-90"
        )
        assert "about.settings.temperature: not set in the folder, 0 now" in terminal.error(
            *run, "--prices", "hosted-50", "--setting", "temperature=0"
        )


def test_a_run_stops_before_it_costs_too_much_and_goes_on_with_more(terminal: Terminal):
    own = ("--fresh", "1000", "--cached", "1000", "--write", "1000", "--output", "1000")
    with script_server(SMALL) as server:
        run = ("bench", "--base-url", server.url, "--model", "m", "--memory", "full", *SUITE, "--out", "run", *own)
        run = (*run, "--concurrency", "1", "--setting", "max_tokens=100")
        said = terminal.error(*run, "--max-cost", "5")
        assert "the limit of 5 own unit is reached" in said and "repeat the command to continue" in said
        first = server.total
        assert 0 < first < ASKED
        assert "limit of 5 own unit" in terminal.error(*run, "--max-cost", "5")
        assert server.total == first, "what was spent before counts"
        journal = [json.loads(line) for line in Path("run/journal.jsonl").read_text().splitlines()]
        assert 4 < sum(call["money"] for call in journal) <= 5
        code, out, _ = terminal(*run, "--max-cost", "1000", "--json")
        assert code == 0 and server.total == ASKED
        assert json.loads(out)["sides"][0]["all"]["area"]["value"] == 1.0


def test_settings_are_in_every_request(terminal: Terminal):
    message = {"role": "assistant", "content": "Q1 x"}
    said = json.dumps({"choices": [{"message": message}]}).encode()
    with chat_server(lambda body, number: Reply("", body=said)) as server:
        run = ("bench", "--base-url", server.url, "--model", "m", "--memory", "full", *SUITE, "--families", "chain")
        assert terminal(*run, "--setting", "temperature=0", "--setting", "reasoning_effort=low", "--out", "a")[0] == 0
        assert terminal(*run, "--setting", "max_completion_tokens=50", "--out", "b")[0] == 0
    settings: list[dict[str, Any]] = [
        {key: value for key, value in body.items() if key not in ("messages", "tools")} for body in server.requests
    ]
    assert settings[0] == {"model": "m", "max_tokens": 4000, "temperature": 0, "reasoning_effort": "low"}
    assert settings[-1] == {"model": "m", "max_completion_tokens": 50}
    assert load_result(Path("a/result.json")).attempts[0].right == (0.0, 0.0)


def test_attempts_at_which_the_server_failed_are_an_error_with_its_reason(terminal: Terminal):
    said = b'{"error": {"message": "Incorrect API key provided"}}'
    with chat_server(lambda body, number: Reply("", body=said, status=401)) as server:
        run = ("bench", "--base-url", server.url, "--model", "m", "--memory", "full", *SUITE, "--families", "chain")
        code, out, error = terminal(*run, "--out", "run")
    assert code == 1 and "; they count as wrong." in out and out.count("Incorrect API key") == 1
    assert "error: 3 of 3 attempts ended as engine failed (http" in error and "Incorrect API key" in error
    with script_server(SMALL) as server:
        assert terminal(*run[:2], server.url, *run[3:], "--out", "run")[0] == 0


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "say who takes the benchmark: --base-url URL --model NAME, --policy FOLDER, or --script unlimited"),
        ("--policy shipped --script none", "one of --policy and --script"),
        ("--base-url http://127.0.0.1:9", "--base-url needs --model"),
        ("--base-url http://u:p@127.0.0.1:9 --model m", "contains a user name, a password or a query"),
        ("--script none --model m", "--model: is for a model on a server"),
        ("--script 100", "--script is the number of tokens of its state: unlimited, none, 50, 200, 1000; not '100'"),
        ("--script none --chat", "a chat agent without any state is --memory window(1)"),
        ("--policy shipped --chat", "--chat: is for a script"),
        ("--script 50 --device cpu", "--device: is for a policy"),
        ("--script 50 --memory constant,full", "limited under the memory constant, not under full"),
        ("--script unlimited --memory forget", "unknown memory 'forget'"),
        ("--script unlimited --memory a,,b", "should be names with commas between them"),
        ("--script unlimited --suite fast", "unknown suite 'fast'"),
        ("--script unlimited --families tall", "has no family 'tall'; it has: independent, chain"),
        ("--script unlimited --seed 4294967295", "--seed takes numbers up to 4,294,966"),
        ("--script unlimited --prices free", "unknown price class 'free'"),
        ("--script unlimited --fresh 1", "give all four prices; missing: --cached"),
        ("--base-url http://127.0.0.1:9 --model m --max-cost 5", "--max-cost needs prices"),
        (
            "--base-url http://127.0.0.1:9 --model m --prices hosted-50 --max-cost 5 --setting max_tokens=null",
            "set max_tokens or max_completion_tokens to a number",
        ),
        (
            "--base-url http://127.0.0.1:9 --model m --prices hosted-50 --max-cost 5 "
            "--setting max_completion_tokens=null",
            "set max_tokens or max_completion_tokens to a number",
        ),
        ("--base-url http://127.0.0.1:9 --model m --memory fold(auto)", "fold(auto) needs prices"),
        ("--base-url http://127.0.0.1:9 --model m --setting tools=1", "settings must not hold tools"),
        ("--base-url http://127.0.0.1:9 --model m --setting x", "--setting is KEY=VALUE"),
        ("--base-url http://127.0.0.1:9 --model m --api-key-env NO_SUCH_KEY", "environment variable NO_SUCH_KEY"),
        ("--json compare a b", "--json: goes with a run; mem1 bench compare has its own"),
    ],
)
def test_what_does_not_fit_together_is_one_message(terminal: Terminal, command: str, message: str):
    said = terminal.error("bench", *command.split())
    assert said.startswith("error: ") and message in said
    assert not Path("runs").exists()
