"""The programs of docs/memory, run as they stand against a server on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from chat_servers import Reply, chat_server
from page_programs import program
from servers import CommandProcess
from tool_callers import ToolCaller

from mem1.messages import check
from mem1.messages.transcript import ASK


def searches(turns: int) -> Any:
    """A server whose model searches for some turns, writes a state when asked, and then answers."""

    def behave(body: dict[str, Any], number: int) -> Reply:
        check(body["messages"])
        if body["messages"][-1]["content"].startswith(ASK):
            return Reply(text="Nothing found so far.")
        turn = sum(ASK not in str(message) for message in seen)
        seen.append(body["messages"])
        if turn >= turns:
            return Reply(text="The mayor is Anne Lindboe.")
        function = {"name": "search", "arguments": json.dumps({"query": f"mayor {turn}"})}
        calls = [{"id": f"call_{turn}", "type": "function", "function": function}]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        return Reply(body=json.dumps({"choices": [{"message": message}]}).encode())

    seen: list[list[Any]] = []
    return behave


def run_agent(page: str, folder: Path, url: str, file: str = "agent.py") -> str:
    """What the page's program says, with a server at this address."""
    (folder / file).write_text(program(page, file), "utf-8")
    environment = {**os.environ, "OPENAI_BASE_URL": url}
    done = subprocess.run(
        [sys.executable, file], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_loop_of_ones_own_stays_bounded_and_answers(tmp_path: Path):
    with chat_server(searches(12)) as server:
        assert run_agent("own-loop.md", tmp_path, server.url) == "The mayor is Anne Lindboe.\n"
    lengths = [len(request["messages"]) for request in server.requests]
    assert len(lengths) > 13 and max(lengths) <= 1 + 2 * 5 + 1
    events = [json.loads(line) for line in (tmp_path / "folds.jsonl").read_text("utf-8").splitlines()]
    assert {"state", "left_out"} <= {event["kind"] for event in events}


def test_a_writer_beside_the_agent_writes_its_state(tmp_path: Path):
    said = run_agent("own-loop.md", tmp_path, "", "writer.py")
    assert "<memory>\nport of host 0: 8000\nport of host 1: 8001\n" in said
    assert said.endswith("[assistant] I look at host 3.\n[user] It says:\nport of host 3: 8003\n")


def test_an_agent_that_changes_only_its_base_url_stays_bounded_and_answers(tmp_path: Path):
    with chat_server(searches(12)) as server:
        proxy = CommandProcess(
            "proxy", "--upstream", server.url, "--memory", "fold(4)", "--port", "0", "--states", tmp_path / "states"
        )  # fmt: skip
        assert run_agent("proxy.md", tmp_path, f"{proxy.address}/v1") == "The mayor is Anne Lindboe.\n"
        code, said = proxy.stop()
    assert code == 0 and "Stopped. 13 requests, 8 folded, 0 in doubt; 2 states" in said
    lengths = [len(request["messages"]) for request in server.requests]
    assert len(lengths) == 13 + 2 and max(lengths) <= 1 + 2 * 5 + 1


def test_an_agent_with_a_function_and_an_mcp_server_stays_bounded_and_answers(tmp_path: Path):
    (tmp_path / "notes_server.py").write_text(program("agent.md", "notes_server.py"), "utf-8")
    script = [
        *[[("search", json.dumps({"query": f"mayor {turn}"}))] for turn in range(12)],
        [("take_note", '{"text": "x"}')],
    ]
    caller = ToolCaller(script)
    with chat_server(caller) as server:
        answer, *report = run_agent("agent.md", tmp_path, server.url).splitlines()
    assert answer == caller.answer and report[0] == f"answer     {caller.answer}"
    assert report[1].startswith("ending     answered after 14 turns, 13 tool calls (0 failed), 3 states")
    assert "by hosted-90; appending" in report[3] and report[4].startswith("advice     ")
    assert max(len(request["messages"]) for request in server.requests) <= 2 + 2 * 5 + 1
    assert server.requests[-1]["messages"][-1]["content"] == "1 notes"
