"""The programs of docs/memory/frameworks.md, run as they stand against a server on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from agent_servers import agent_server
from page_programs import program

ANSWER = "The mayor is Anne Lindboe."


@pytest.mark.parametrize(
    ("title", "package"),
    [
        ("langchain_agent.py", "langchain.agents.middleware"),
        ("pydantic_ai_agent.py", "pydantic_ai.capabilities"),
        ("openai_agents_agent.py", "agents.run"),
        ("inspect_agent.py", "inspect_ai.agent"),
    ],
)
def test_an_agent_stays_bounded_and_answers(title: str, package: str, tmp_path: Path):
    pytest.importorskip(package)
    (tmp_path / "agent.py").write_text(program("frameworks.md", title), "utf-8")
    if title == "inspect_agent.py":  # it counts with tiktoken, which fetches its vocabulary
        (tmp_path / "tiktoken.py").write_text(
            "class Words:\n    def encode(self, text, **_):\n        return range(len(text) // 4)\n\n\n"
            "def get_encoding(name):\n    return Words()\n"
        )
    with agent_server(15, tool="search", argument="query", answer=ANSWER) as server:
        addresses = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "none", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
        done = subprocess.run(
            [sys.executable, "agent.py"],
            cwd=tmp_path,
            env={**os.environ, **addresses},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.stdout == f"{ANSWER}\n", done.stderr
    assert server.refused == [] and server.streamed >= 16
    assert max(server.sizes) < 9_000 and max(server.lengths) < 15 * 3 and server.asked >= 1
    events = [json.loads(line) for line in (tmp_path / "folds.jsonl").read_text("utf-8").splitlines()]
    assert "state" in {event["kind"] for event in events}
