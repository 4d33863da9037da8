"""`mem1 run` as a chat agent: tools of MCP servers, what is shown, the report, and failures."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_servers import Reply, chat_server
from terminals import Terminal
from tool_callers import ToolCaller

SERVER = f"{sys.executable} {Path(__file__).parents[1] / 'support' / 'mcp_stdio.py'}"
SCRIPT = [[("add", '{"a": 2, "b": 3}'), ("fails", "{}")], *[[("shout", '{"text": "\\u001b[31mred"}')]] * 3]


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "200")
    return Terminal(capsys, monkeypatch)


def asked(url: str, *more: str) -> list[str]:
    return ["run", "--question", "Add 2 and 3.", "--base-url", url, "--model", "m", "--mcp", SERVER, *more]


def test_calls_results_and_states_are_shown_and_then_the_report(terminal: Terminal):
    with chat_server(ToolCaller(SCRIPT, answer="It is\n\x1b[31m5")) as server:
        code, out, _ = terminal(*asked(server.url, "--memory", "fold(2)", "--prices", "hosted-90"))
    lines = [line.split() for line in out.splitlines()]
    assert code == 0 and "\x1b" not in out
    assert lines[0][:2] == ["turn", "1"] and lines[1] == ["add", '{"a":', "2,", '"b":', "3}"]
    assert lines[2] == ["fails", "{}"] and lines[3] == ["result", '{"sum":5}']
    assert lines[4] == ["result", "error:", "the", "disk", "is", "full"]
    assert [line[1] for line in lines if line[:1] == ["turn"]] == ["1", "2", "3", "4"]
    assert any(line[:4] == ["memory", "a", "state", "after"] for line in lines)
    report = out[out.index("\nanswer ") :].splitlines()
    assert report[1:3] == ["answer     It is", "\\x1b[31m5"]
    assert report[3].startswith("ending     answered after 5 turns, 5 tool calls (1 failed), ")
    assert report[4].startswith("tokens     peak ") and "by hosted-90; appending" in report[5]
    assert [tool["function"]["name"] for tool in server.requests[0]["tools"]][:2] == ["recall", "add"]


def test_json_has_the_report_each_call_of_the_model_and_the_conversation(terminal: Terminal):
    caller = ToolCaller(SCRIPT)
    with chat_server(caller) as server:
        code, out, err = terminal(*asked(server.url, "--json"))
    record: dict[str, Any] = json.loads(out)
    assert code == 0 and "turn 1 " in err
    assert (record["answer"], record["ending"], record["tool_calls"]) == (caller.answer, "answered", 5)
    assert [call["prompt"] for call in record["calls"]] == [prompt for prompt, _, _ in caller.counted]
    assert [message["role"] for message in record["messages"]][:4] == ["user", "assistant", "tool", "tool"]


def test_a_failure_in_the_middle_is_one_line_after_the_report_so_far(terminal: Terminal):
    caller = ToolCaller(SCRIPT)

    def behave(body: dict[str, Any], number: int) -> Reply:
        return caller(body, number) if number < 2 else Reply(status=400, body=b'{"error": "too\\nlong"}')

    with chat_server(behave) as server:
        code, out, err = terminal(*asked(server.url))
    assert code == 2 and re.findall(r"^turn \d", out, re.M) == ["turn 1", "turn 2"] and "answer " not in out
    assert "ending     failed after 2 turns, 3 tool calls" in err
    assert err.splitlines()[-1].startswith("error: the model gives no reply: ") and "status 400" in err.splitlines()[-1]


def test_an_mcp_server_that_does_not_start_is_one_line(terminal: Terminal):
    with chat_server(ToolCaller([])) as server:
        said = terminal.error(*asked(server.url, "--mcp", f"{SERVER} broken"))
    assert said.startswith("error: the MCP server ") and "it wrote: No module named" in said
    assert server.requests == []
