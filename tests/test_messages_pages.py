"""The programs of docs/memory, run as they stand against a server on this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from chat_servers import Reply, chat_server
from servers import CommandProcess

from mem1.messages import check
from mem1.messages.transcript import ASK

PAGES = Path(__file__).parents[1] / "docs" / "memory"


def program(page: str, title: str) -> str:
    """The block of a page that is a file."""
    found = re.search(rf'^```python title="{title}"\n(.*?)^```$', (PAGES / page).read_text("utf-8"), re.M | re.S)
    assert found is not None
    return found[1]


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


def run_agent(page: str, folder: Path, url: str) -> str:
    """What the page's program says, with a server at this address."""
    (folder / "agent.py").write_text(program(page, "agent.py"), "utf-8")
    environment = {**os.environ, "OPENAI_BASE_URL": url}
    done = subprocess.run(
        [sys.executable, "agent.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False
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
